"""Errors as bytes, in which ranks of other processes read them: numbers and a text, so that nothing is unpickled."""

from __future__ import annotations

import struct

from shmring.errors import AbortedError, CollectiveTimeoutError, MismatchError, PeerLostError, ShmringError

RECORD_NBYTES = 4096
_HEAD = struct.Struct("<BBH")  # kind, number of numbers, bytes of the text
_MOST_NUMBERS = 64

_KINDS = (AbortedError, PeerLostError, CollectiveTimeoutError, MismatchError)


def pack_error(error: ShmringError) -> bytes:
    """A record of an error, of at most `RECORD_NBYTES` bytes. Errors of other kinds become an `AbortedError`."""
    kind = next((i for i, one in enumerate(_KINDS) if isinstance(error, one)), 0)
    numbers: tuple[int, ...] = (-1,)
    if isinstance(error, PeerLostError):
        numbers = (error.rank, error.pid)
    elif isinstance(error, CollectiveTimeoutError):
        numbers = error.late[:_MOST_NUMBERS]
    elif isinstance(error, MismatchError):
        numbers = error.ranks[:_MOST_NUMBERS]
    elif isinstance(error, AbortedError):
        numbers = (error.rank,)
    text = str(error).encode()[: RECORD_NBYTES - _HEAD.size - 8 * len(numbers)]
    return _HEAD.pack(kind, len(numbers), len(text)) + struct.pack(f"<{len(numbers)}q", *numbers) + text


def unpack_error(record: bytes) -> ShmringError:
    """The error of a record."""
    try:
        kind, n, length = _HEAD.unpack_from(record)
        numbers = struct.unpack_from(f"<{n}q", record, _HEAD.size)
        start = _HEAD.size + 8 * n
        text = record[start : start + length].decode("utf-8", "replace")
        known: type = _KINDS[kind]
        return known(text, numbers) if known in (CollectiveTimeoutError, MismatchError) else known(text, *numbers)
    except (struct.error, IndexError, TypeError):
        return AbortedError("a rank failed, and its error record is malformed")
