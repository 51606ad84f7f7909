"""How the names of segments are spelled: ``/shmring-UID-SESSION-PART``."""

from __future__ import annotations

import hashlib
import os
import re


def _slug(key: str) -> str:
    """``key`` as letters, digits, ``_`` and ``.``: readable, and as distinct as its hash."""
    readable = re.sub(r"[^A-Za-z0-9_]+", "_", key)[:24].strip("_")
    return f"{readable}.{hashlib.blake2b(key.encode(), digest_size=8).hexdigest()}"


def user_prefix() -> str:
    """The start of all names of this user's segments.

    The environment variable ``SHMRING_FILE_PREFIX`` keeps programs apart: processes with different values see none of
    each other's names.
    """
    prefix = os.environ.get("SHMRING_FILE_PREFIX", "")
    if not re.fullmatch(r"[A-Za-z0-9_]{0,32}", prefix):
        raise ValueError(f"SHMRING_FILE_PREFIX={prefix!r}: must be at most 32 letters, digits and underscores")
    return f"/shmring-{prefix}.{os.geteuid()}-" if prefix else f"/shmring-{os.geteuid()}-"


def session_prefix(session: str) -> str:
    """The start of all names of a session and its sub-sessions."""
    if not isinstance(session, str):
        raise TypeError(f"session={session!r}: must be a str")
    return f"{user_prefix()}{_slug(session.partition('/')[0])}-"


def segment_name(session: str, part: str | int) -> str:
    """The name of one segment of a session: ``/shmring-UID-SESSION-PART``, at most 174 bytes.

    Parameters
    ----------
    session : str
        Any text. The part after a first ``/`` names a sub-session, which `sweep` counts to its session.
    part : str or int
        Which segment: 1 to 64 letters, digits, ``_``, ``.``, ``-``.
    """
    part = str(part)
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", part):
        raise ValueError(f"part={part!r} is not 1 to 64 letters, digits, '_', '.' or '-'")
    prefix = session_prefix(session)
    _, slash, rest = session.partition("/")
    return prefix + (f"{_slug(rest)}-" if slash else "") + part
