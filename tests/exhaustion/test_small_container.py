"""A container with less memory than is asked for: an error that says so, where the kernel would kill the process."""

import errno
import os
import textwrap
from pathlib import Path

import numpy as np
import pytest
from support.programs import run_python

import shmring
from shmring.core.memory import mapping
from shmring.errors import OutOfSharedMemoryError

MAKERS = {
    "queue": lambda: shmring.Queue(capacity_nbytes=64 << 20),
    "channel": lambda: shmring.channel(64 << 20),
    "latest": lambda: shmring.Latest(64 << 20),
    "communicator": lambda: shmring.init(rank=0, size=1, slot_nbytes=16 << 20, nslots=8),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_has_no_room_in_the_control_group_is_refused(monkeypatch, make):
    for module in (mapping, __import__("shmring.core.memory.reserve", fromlist=["reserve"])):
        monkeypatch.setattr(module, "memory_room", lambda: 1 << 20)
    with pytest.raises(OutOfSharedMemoryError, match="container, has 1048576 bytes left") as caught:
        make()
    assert caught.value.available == 1 << 20
    sender, _receiver = shmring.channel(1 << 18)  # there is room for it
    sender.send(np.arange(3))


def test_room_that_others_take_meanwhile_is_noticed(monkeypatch):
    rooms = [1 << 30, 1 << 30, 0]
    monkeypatch.setattr(mapping, "memory_room", lambda: rooms.pop(0))
    before = os.statvfs("/dev/shm").f_bfree
    with pytest.raises(OutOfSharedMemoryError):
        shmring.channel(512 << 20)
    assert rooms == []
    assert os.statvfs("/dev/shm").f_bfree >= before - (256 << 20) // 4096  # other programs have pages there, too


def group(limit_nbytes):
    """A new control group of that much memory, to whose list of processes a process writes its number."""
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        at = Path(root) / f"shmring-test-{os.getpid()}"
        try:
            at.mkdir()
        except OSError:
            continue
        try:
            (at / name).write_text(str(limit_nbytes))
            return at
        except OSError as error:
            at.rmdir()
            if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT):
                raise
    pytest.skip("this user may not make control groups")


PROGRAM = textwrap.dedent("""
    import os, sys
    open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
    import shmring
    try:
        shmring.Queue(capacity_nbytes=1 << 30)
    except shmring.OutOfSharedMemoryError as error:
        print(error)
    queue = shmring.Queue(capacity_nbytes=16 << 20)
    queue.put(1)
    print(queue.get())
""")


def test_a_queue_that_is_larger_than_its_container_is_refused():
    at = group(300 << 20)
    try:
        printed = run_python("-c", PROGRAM, str(at))
    finally:
        at.rmdir()
    assert "container" in printed
    assert printed.endswith("\n1\n")
