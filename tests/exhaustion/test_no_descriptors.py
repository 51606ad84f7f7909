"""Too few descriptors, and every other refused system call: a rendezvous or a creation has one outcome on all ranks."""

import contextlib
import errno
import os
import resource

import numpy as np
import pytest
from support.collective_checks import SMALL, works
from support.harness import PATIENCE, run_processes, run_ranks, start_processes
from support.limits import limited

import shmring
from shmring.core.memory import syscalls
from shmring.errors import OutOfSharedMemoryError, PeerLostError, RendezvousError, SegmentError

REFUSED = (SegmentError, OutOfSharedMemoryError, RendezvousError)
# Seconds that a rank waits for one that has failed: not long where that is certain to happen.
BRIEF_S, LONG_S = 0.3 * PATIENCE, 20 * PATIENCE


@contextlib.contextmanager
def descriptors(more):
    """Within a block this process may open only so many further descriptors."""
    gaps = fill_gaps()
    try:
        with limited(resource.RLIMIT_NOFILE, max(gaps) + 1 + more):
            yield
    finally:
        for fd in gaps:
            os.close(fd)


def fill_gaps():
    """Open descriptors for all unused numbers below the highest: the limit is on the number, not on the count."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    taken = []
    while not taken or taken[-1] <= highest:
        taken.append(os.open("/dev/null", os.O_RDONLY))
    return taken


class Refusal:
    """Within a block the ``at``-th system call of names and segments fails; ``hit`` is whether it was reached."""

    def __init__(self, at):
        self.left = at
        self.hit = False

    def __enter__(self):
        syscalls.fault = self._fault
        return self

    def __exit__(self, *exc):
        syscalls.fault = None

    def _fault(self, name):
        self.left -= 1
        if self.left == 0:
            self.hit = True
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


# -- init -------------------------------------------------------------------------------------------------------------


def init_with_few(rank, session, more, timeout):
    """The outcome: True if the communicator works, else the error's name."""
    try:
        with descriptors(more) if rank == 1 else contextlib.nullcontext():
            comm = shmring.init(rank=rank, size=2, session=session, rendezvous_timeout=timeout, **SMALL)
    except (*REFUSED, PeerLostError) as error:
        return type(error).__name__
    with comm:
        return works(comm)


def test_init_with_any_number_of_descriptors_succeeds_on_both_ranks_or_fails_on_both(seed):
    few = [start_processes(2, init_with_few, f"few-{seed}-{n}", n, 1) for n in range(8)]  # their waits overlap
    results = [gang.results() for gang in few]
    for n, (_, struck) in enumerate(results):
        if struck != "SegmentError":  # it had enough of them; a second may have been too short for so many processes
            results[n] = run_processes(2, init_with_few, f"enough-{seed}-{n}", n, LONG_S)
    assert results[0] == ["RendezvousTimeoutError", "SegmentError"]
    assert results[-1] == [True, True]
    for spared, struck in results:
        assert (spared is True) == (struck is True), results
        assert "PeerLostError" not in (spared, struck)


# -- groups and shared arrays -----------------------------------------------------------------------------------------


def split(comm, timeout):
    with comm.split(0, rendezvous_timeout=timeout) as group:
        assert works(group)


def dup(comm, timeout):
    with comm.dup(rendezvous_timeout=timeout) as group:
        assert works(group)


def empty(comm, _timeout):
    x = comm.empty(2000)
    x[...] = comm.rank
    comm.barrier()
    assert all((comm.shared_view(x, r) == r).all() for r in range(comm.size))
    comm.barrier()


def shared_result(comm, _timeout):
    x = comm.shared_result(2000, root=1)
    assert (comm.all_reduce(np.ones(2000), x) == comm.size).all()
    comm.barrier()


def share(comm, _timeout):
    x = np.full(20_000, comm.rank, np.int64)
    try:
        shared = comm.share(x)
    except REFUSED:
        assert (x == comm.rank).all()
        raise
    with shared:
        assert (comm.all_reduce(x) == sum(range(comm.size))).all()
    assert (x == sum(range(comm.size))).all()


MAKERS = {make.__name__: make for make in (split, dup, empty, shared_result, share)}
ALL_OR_NONE = ("empty", "shared_result", "share")  # a group may be complete for one rank alone


def outcome_of(make, comm, timeout):
    try:
        make(comm, timeout)
    except (*REFUSED, PeerLostError) as error:
        return type(error).__name__
    return "made"


def make_with_few(comm, what, most):
    results = []
    for more in range(most):
        for timeout in (1, LONG_S):
            with descriptors(more) if comm.rank == 1 else contextlib.nullcontext():
                outcome = outcome_of(MAKERS[what], comm, timeout)
            assert works(comm), (more, results)
            if comm.broadcast_object(outcome == "SegmentError", root=1):
                break  # else rank 1 had enough of them, and the time may have been too short
        results.append(outcome)
    return results


@pytest.mark.sample(2)
@pytest.mark.parametrize("what", MAKERS)
def test_creating_with_any_number_of_descriptors_leaves_the_parent_usable(what):
    spared, struck = run_ranks(2, make_with_few, what, 6, init=SMALL)
    print(spared, struck)
    assert struck[0] == "SegmentError"
    assert (spared[-1], struck[-1]) == ("made", "made")
    assert [a == "made" for a in spared] == [a == "made" for a in struck]


def make_with_refusals(comm, what, victim):
    """Fail at the first system call, at the second, ... until the creation needs no more of them; then create."""
    results = []
    while True:
        for timeout in (BRIEF_S, LONG_S):
            with Refusal(len(results) + 1 if comm.rank == victim else 0) as refusal:
                outcome = outcome_of(MAKERS[what], comm, timeout)
            assert works(comm), results
            hit, made = comm.broadcast_object((refusal.hit, outcome == "made"), root=victim)
            if hit or made:
                break  # else the time was over before that system call
        if not hit:
            return [*results, outcome_of(MAKERS[what], comm, LONG_S)]
        results.append(outcome)


@pytest.mark.sample(4)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("what", MAKERS)
def test_whichever_system_call_fails_the_parent_stays_usable_and_the_next_creation_succeeds(what, victim):
    results = run_ranks(2, make_with_refusals, what, victim, init=SMALL)
    print(*results, sep="\n")
    assert [t[-1] for t in results] == ["made", "made"]
    assert len(results[0]) > 5
    if what in ALL_OR_NONE:
        assert [a == "made" for a in results[0]] == [a == "made" for a in results[1]]
