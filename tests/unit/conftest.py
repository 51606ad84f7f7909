"""What the tests of names, segments and rendezvous share: a session of one's own, which must leave nothing."""

import gc
import os
import secrets

import pytest

from shmring.core.memory import names, spelling, syscalls


@pytest.fixture
def session():
    """A unique session key; afterwards /dev/shm has no file of the session, and this process holds no name."""
    key = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    prefix = spelling.session_prefix(key)[1:]
    held = set(names._claims)
    yield key
    syscalls.fault = None
    gc.collect()  # an error's traceback may hold a segment, in a cycle
    left = [entry for entry in os.listdir(names.SHM_DIRECTORY) if entry.startswith(prefix)]
    for entry in left:
        os.unlink(f"{names.SHM_DIRECTORY}/{entry}")
    assert left == []
    assert set(names._claims) == held
