"""A descent: a group loses one rank after the other, each in another call or in another way, and continues each time.

One start of processes serves a case with 4 ranks, one with 3, and one with 2. After each case the survivors call
`shrink`, which must succeed; the next case uses the communicator that it returns.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import numpy as np
from fault_calls import CALLS, SETTINGS
from fault_deaths import DEATHS, STOP_TIMEOUT_S, check_error
from support.harness import PATIENCE, report

import shmring
from shmring.core.memory import syscalls
from shmring.errors import BrokenError, MessageTimeoutError, RendezvousError

WAITS = {"spinning": 300.0, "sleeping": 0.0}  # microseconds before a waiter yields and sleeps


@dataclass(frozen=True)
class Case:
    """One cell of the grid."""

    call: str
    moment: str
    """``before`` the call, ``waiting`` in it for a rank that comes late, at the ``kernel@n``-th system call that it
    makes, or the ``shm_unlink@n``-th of that name, at the n-th pass of the injection point ``name@n``, or ``after`` it.
    A rank that does not pass the moment dies after the call."""
    death: str
    wait: str
    victim: int
    """Counted from the last rank if negative."""

    def __str__(self) -> str:
        return f"{self.call}, rank {self.victim}: {self.death} {self.moment}, the others {self.wait}"

    def settings(self) -> dict:
        """For the communicator that it happens to."""
        timeout = STOP_TIMEOUT_S if self.death == "SIGSTOP" else 60.0
        return {**SETTINGS, "timeout": timeout, "spin_us": WAITS[self.wait], "tick_ms": 20}


def descend(rank, session, size, cases):
    """Life of one rank through all cases, to the one in which it fails."""
    origin = rank
    settings = cases[0].settings()
    if any(case.call.startswith("all_reduce_exchange") for case in cases):
        settings |= {"stores": 4, "one_shot_nbytes": 0}
    if any(case.call == "all_to_all_private" for case in cases):
        settings |= {"direct": 1}
    comm = shmring.init(rank=rank, size=size, session=session, **settings)
    for number, case in enumerate(cases):
        victim = case.victim % comm.size
        pid = comm._engine.segments[victim].header.pid
        if comm.rank == victim:
            with comm:
                fail(comm, case, number)
        try:
            survive(comm, case, number, victim, pid)
            comm = go_on(comm, origin, cases[number + 1].settings() if number + 1 < len(cases) else {})
        except Exception as error:
            if case.death == "SIGSTOP":
                os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"{case} of {comm.size}: {type(error).__name__}: {error}") from error
    comm.close()


# ---- the rank that fails --------------------------------------------------------------------------------------------


def fail(comm, case, number):
    """Make the call and fail at the moment of the case. Returns by an exception, if at all."""
    die = DEATHS[case.death]

    def stamped(*_):
        report(f"died {number} {time.monotonic()}")
        die()

    call = CALLS[case.call](comm)
    next(call)
    point, _, count = case.moment.partition("@")
    if case.moment == "before":
        stamped()
    elif case.moment == "waiting":
        signal.signal(signal.SIGALRM, unless_packing(stamped))
        signal.setitimer(signal.ITIMER_REAL, 0.015)
    elif point in ("kernel", "shm_unlink"):
        syscalls.fault = at_call(point, int(count), stamped)
    elif count:
        arm(case)
    for _ in call:
        pass
    if case.moment == "waiting":
        time.sleep(0.05)  # a victim that did not have to wait dies a little later
    disarm()
    report("missed")
    stamped()


def unless_packing(act):
    """A signal handler that acts; later, if an object is being pickled, which would take what it raises for its own."""

    def handler(_, frame):
        while frame is not None:
            if frame.f_globals["__name__"] == "shmring.core.objects.codec":
                signal.setitimer(signal.ITIMER_REAL, 0.005)
                return
            frame = frame.f_back
        act()

    return handler


def at_call(point, count, act):
    """A fault for `syscalls.fault`: acts at that many system calls from now, of any name if the point is ``kernel``."""
    left = count

    def fault(call):
        nonlocal left
        if point in ("kernel", call):
            left -= 1
            if left == 0:
                act()

    return fault


def arm(case):
    """Have the injection point of this case act; of an ordinary build it is never reached."""
    actions = {
        "SIGKILL": signal.SIGKILL,
        "SIGSTOP": signal.SIGSTOP,
        "SIGTERM": signal.SIGTERM,
        "os._exit": "exit",
        "raise": signal.SIGUSR2,
        "sys.exit": signal.SIGUSR2,
    }
    action = actions[case.death]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda *_: DEATHS[case.death]())
    os.environ["SHMRING_FAULT"] = f"{case.moment}:{action if action == 'exit' else int(action)}"


def disarm():
    """No fault from here on."""
    os.environ.pop("SHMRING_FAULT", None)
    syscalls.fault = None


# ---- the others -----------------------------------------------------------------------------------------------------


def survive(comm, case, number, victim, pid):
    """Make the call that ``victim`` fails in: a right result or the right error, which then stays."""
    call = CALLS[case.call](comm)
    try:
        next(call)
        if case.moment == "waiting" and comm.rank == (victim + 1) % comm.size:
            time.sleep(0.04)
        for error in call:
            check_error(error, case.death, victim, pid)
            end_stopped(comm, case, victim, pid)
        comm.barrier()
    except (BrokenError, RendezvousError, MessageTimeoutError) as error:
        report(f"noticed {number} {time.monotonic()}")
        check_error(error, case.death, victim, pid)
    else:
        raise AssertionError(f"a barrier succeeded without rank {victim}")
    stay_broken(comm, case, victim, pid)
    end_stopped(comm, case, victim, pid)


def end_stopped(comm, case, victim, pid):
    """One of the others ends a rank that has stopped, or it would be waited for."""
    if case.death == "SIGSTOP" and comm.rank == (victim + 1) % comm.size:
        os.kill(pid, signal.SIGKILL)


def stay_broken(comm, case, victim, pid):
    """Every later call raises, at once: a watchdog ends what hangs."""
    x = np.ones(2)
    for later in (
        comm.barrier,
        lambda: comm.all_reduce(x),
        lambda: comm.broadcast(x, root=comm.rank),
        lambda: comm.send(x, victim),
        lambda: comm.recv(x, victim),
        lambda: comm.all_gather_object(x),
        lambda: comm.dup(),
        lambda: comm.empty(3),
        lambda: comm.barrier(async_op=True).wait(),
    ):
        try:
            later()
        except BrokenError as error:
            check_error(error, case.death, victim, pid)
        else:
            raise AssertionError(f"{later} succeeded without rank {victim}")
    assert comm.is_broken


def go_on(comm, origin, settings):
    """Shrink to the survivors, see that it works, and leave the old communicator."""
    group = comm.shrink(**settings)
    patience = 60 * PATIENCE  # the group's own timeout may be short: that of a case with a rank that stops
    survivors = group.all_gather_object(origin, timeout=patience)
    assert survivors == sorted(survivors), survivors
    assert len(survivors) == group.size == comm.size - 1
    assert survivors[group.rank] == origin
    for n in (2, 50_000):
        x = np.full(n, origin, np.int64)
        group.all_reduce(x, timeout=patience)
        assert (x == sum(survivors)).all()
    comm.close()
    return group
