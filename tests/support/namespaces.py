"""Namespaces for tests: ranks that see another /dev/shm, another network, other process ids, or another user."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x08000000, 0x20000000, 0x40000000

STRANGER = 54321  # some uid that is not ours
CABLE = "cable"  # the network device of a machine of `two_machines`


def _works(*command: str) -> str:
    """Why a command does not work here; empty if it does."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def _no_stranger() -> str:
    if os.geteuid():
        return "only root can play another user"
    try:
        subprocess.run(["true"], user=STRANGER, check=True)
    except OSError as error:  # a user namespace may hold one user only
        return f"there is no other user here: {error}"
    return ""


no_stranger = _no_stranger()
_no_mount = _works("unshare", "-m", "-i", "sh", "-c", "mount -t tmpfs -o size=1m tmpfs /dev/shm")
_no_network = _works("unshare", "-n", "ip", "link", "add", CABLE, "type", "veth", "peer", "name", "other")
_no_pids = _works("unshare", "--pid", "--fork", "--kill-child", "true")

needs_mount = pytest.mark.skipif(bool(_no_mount), reason=f"no file system may be mounted here: {_no_mount}")
needs_machines = pytest.mark.skipif(
    bool(_no_mount or _no_network), reason=f"no network namespaces here (ip of iproute2, and root): {_no_network}"
)
needs_pids = pytest.mark.skipif(bool(_no_pids), reason=f"no new PID namespace here: {_no_pids}")
needs_stranger = pytest.mark.skipif(bool(no_stranger), reason=no_stranger)


class Room:
    """A mount and an IPC namespace with a /dev/shm of its own, and perhaps a network."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def names(self) -> list[str]:
        """What stands in its /dev/shm."""
        return sorted(os.listdir(f"/proc/{self.pid}/root/dev/shm"))

    def run(self, *command: str) -> None:
        """Run a command in its network."""
        subprocess.run(["nsenter", "-t", str(self.pid), "-n", *command], check=True)

    def line(self, *command: str) -> list[str]:
        """The command line that runs a command in it."""
        return ["nsenter", "-t", str(self.pid), "-m", "-i", "-n", "--", *command]

    def await_cable(self) -> None:
        """Mount a /sys with the devices of its network, and wait until the cable works, which takes a second."""
        subprocess.run(self.line("mount", "-t", "sysfs", "sysfs", "/sys"), check=True)
        state = self.line("cat", f"/sys/class/net/{CABLE}/operstate")
        while subprocess.run(state, capture_output=True, text=True, check=True).stdout != "up\n":
            time.sleep(0.02)


@contextlib.contextmanager
def room(size: str, *more: str) -> Iterator[Room]:
    """A `Room` whose /dev/shm is a tmpfs with this ``size`` (as mount takes it); ranks `enter` it.

    ``more`` are options of unshare, for further namespaces.
    """
    line = f"mount -t tmpfs -o size={size} tmpfs /dev/shm && echo && exec cat"
    process = subprocess.Popen(
        ["unshare", "-m", "-i", *more, "sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "\n", "the namespace was not made"
        yield Room(process.pid)
    finally:
        process.communicate()


@contextlib.contextmanager
def two_machines(size: str) -> Iterator[tuple[Room, Room]]:
    """Two rooms, each with a network of its own, and a cable between them: 10.0.0.1 and 10.0.0.2."""
    with room(size, "-n") as first, room(size, "-n") as second:
        first.run("ip", "link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns", str(second.pid))
        for number, one in enumerate((first, second), 1):
            one.run("ip", "address", "add", f"10.0.0.{number}/24", "dev", CABLE)
            one.run("ip", "link", "set", CABLE, "up")
            one.run("ip", "link", "set", "lo", "up")
        for one in (first, second):
            one.await_cable()
        yield first, second


def enter(pid: int) -> None:
    """In a rank without threads of its own: go to the room of the process ``pid``."""
    for space, kind in (("ipc", CLONE_NEWIPC), ("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS)):
        fd = os.open(f"/proc/{pid}/ns/{space}", os.O_RDONLY)
        try:
            if _libc.setns(fd, kind):
                number = ctypes.get_errno()
                raise OSError(number, f"setns({space}): {os.strerror(number)}")
        finally:
            os.close(fd)


def in_new_pid_namespace(fn, *args):
    """``fn(*args)`` in a child that is process 1 of a PID namespace; what it returned, or raised, comes back.

    The child dies with this process, whatever kills it.
    """
    if _libc.unshare(CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWPID)")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _libc.prctl(1, int(signal.SIGKILL), 0, 0, 0)
        try:
            value = fn(*args)
        except BaseException as error:
            value = error
        with os.fdopen(writer, "wb") as file:
            pickle.dump(value, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(pid, 0)
    if not data:
        raise ChildProcessError(f"the child ended with {os.waitstatus_to_exitcode(status)}")
    value = pickle.loads(data)
    if isinstance(value, BaseException):
        raise value
    return value
