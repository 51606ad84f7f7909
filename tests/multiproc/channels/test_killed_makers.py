"""A process that is killed while it makes a channel, queue or fan without a name leaves nothing in shared memory."""

import os
import signal

import pytest
from support.children import in_child, status_of
from support.harness import shared_names

import shmring
from shmring.core.memory import syscalls

MAKERS = {
    "channel": shmring.channel,
    "records": lambda: shmring.channel(dtype="i8"),
    "fan-in": lambda: shmring.fan_in(2),
    "broadcast": lambda: shmring.broadcast_channel(2),
    "queue": shmring.Queue,
}


def killed_before(call, make):
    """Make a channel, and be killed before the system call of this number."""
    left = call

    def count(_):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    syscalls.fault = count
    make()


@pytest.mark.parametrize("what", MAKERS)
def test_a_maker_killed_at_any_step_leaves_no_name(what):
    before = shared_names()
    ncalls = 0
    while status_of(in_child(killed_before, ncalls, MAKERS[what])) == -signal.SIGKILL:
        assert shared_names() == before, f"killed before call {ncalls}"
        ncalls += 1
    assert ncalls >= 3


@pytest.mark.parametrize("what", MAKERS)
def test_what_has_no_name_never_had_one(what, monkeypatch):
    before = shared_names()
    seen = []
    monkeypatch.setattr(syscalls, "fault", lambda _: seen.append(shared_names()))
    made = MAKERS[what]()
    assert all(names == before for names in seen)
    assert shared_names() == before
    del made


def test_without_nameless_files_in_shared_memory_the_kernel_keeps_one_elsewhere(monkeypatch):
    def refuse(name):
        if name == "open":
            raise OSError(95, "Operation not supported")

    monkeypatch.setattr(syscalls, "fault", refuse)
    sender, receiver = shmring.channel()
    sender.send(b"x")
    assert receiver.recv() == b"x"
    found = [look for look in shmring.list_channels() if look.name == sender._channel.memory.name]
    assert len(found) == 1
