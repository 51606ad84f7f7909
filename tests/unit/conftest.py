"""What the tests of names, segments and meetings share: a session of one's own, which must leave nothing."""

import os
import secrets

import pytest

from shmring import names


@pytest.fixture
def session():
    """A session key nobody else has; afterwards nothing of it stands in /dev/shm, and no descriptor is left open."""
    key = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    prefix = names.session_prefix(key)[1:]
    claims, descriptors = len(names._claims), len(os.listdir("/proc/self/fd"))
    yield key
    names.fault = None
    left = [entry for entry in os.listdir(names.SHM_DIRECTORY) if entry.startswith(prefix)]
    for entry in left:
        os.unlink(f"{names.SHM_DIRECTORY}/{entry}")
    assert left == []
    assert len(names._claims) == claims
    assert len(os.listdir("/proc/self/fd")) == descriptors
