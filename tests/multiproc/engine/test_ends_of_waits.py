"""Every kind of wait and all that ends one: what the rank that waits raises, and what the other one raises then.

Rank 0 waits; rank 1 acts as soon as it does, or a thread of rank 0 acts in its place.
"""

import contextlib
import os
import signal
import time

import numpy as np
import pytest
from support.harness import eventually, shared_names, start_processes, start_ranks
from support.threads import beside
from support.waits import until_waiting

import shmring
from shmring.errors import AbortedError, BrokenError, ClosedError, CollectiveTimeoutError, PeerLostError

LARGE = 200_000


def overwrite_the_reader(comm):
    while True:  # a root does not wait until the slots are full
        comm.broadcast(np.ones(LARGE), root=comm.rank)


def fill_the_pair_queue(comm):
    while True:
        comm.send(np.ones(LARGE), 1)


def submit(comm):
    return [comm.all_reduce(np.ones(n), async_op=True) for n in (3, LARGE, 3)]


# Where rank 0 waits, and whether what interrupts it there breaks the communicator: only if the other rank may have
# read a part.
WAITS = {
    "barrier": (lambda comm: comm.barrier(), True),
    "planned collective": (lambda comm: comm.all_reduce(np.ones(LARGE)), True),
    "split collective": (lambda comm: comm.all_reduce(np.ones(LARGE)), True),
    "full outbox": (overwrite_the_reader, True),
    "bundle": (lambda comm: comm.all_reduce_many([np.ones(LARGE), np.ones(3)]), True),
    "function": (lambda comm: comm.all_reduce(np.ones(LARGE), op=lambda a, b: a + b), True),
    "plan": (lambda comm: comm.plan("all_reduce", np.ones(3))(), True),
    "object": (lambda comm: comm.all_gather_object("a"), True),
    "shared array": (lambda comm: comm.empty(5), True),
    "split": (lambda comm: comm.split(0), True),
    "receive": (lambda comm: comm.recv(np.ones(3), 1), False),
    "receive from any rank": (lambda comm: comm.recv(np.ones(3)), False),
    "full pair queue": (fill_the_pair_queue, True),
    "request": (lambda comm: comm.irecv(np.ones(3), 1).wait(), False),
    "probe": (lambda comm: comm.probe(1), False),
    "object message": (lambda comm: comm.recv_object(1), False),
    "first work": (lambda comm: comm.works[0].wait(), False),
    "last work": (lambda comm: comm.works[-1].wait(), False),
    "new group": (lambda comm: comm.subgroup([0, 1]), False),
    "shrink": (lambda comm: comm.shrink(), False),
}
WORK = ("first work", "last work")
RENDEZVOUS = ("new group", "shrink")
INTERRUPTS = {"ctrl-c": KeyboardInterrupt, "handler that raises": LookupError}
LEAVING = "no such file"


def signal_to_rank_zero(number):
    return lambda comm: os.kill(comm._engine.segments[0].header.pid, number)


def leave(comm):
    raise LookupError(LEAVING)


# What rank 1 does, or a thread of rank 0; what rank 0 raises, and what rank 1 raises afterwards if it is still there.
ENDS = {
    "ctrl-c": (signal_to_rank_zero(signal.SIGINT), KeyboardInterrupt, "", AbortedError, "KeyboardInterrupt"),
    "handler that raises": (
        signal_to_rank_zero(signal.SIGALRM), LookupError, "", AbortedError, "rank 0 aborted: LookupError"),
    "handler that closes": (
        signal_to_rank_zero(signal.SIGUSR2), (ClosedError, AbortedError), "", BrokenError, "rank 0"),
    "close in a thread": (lambda comm: comm.close(), AbortedError, "closed while another thread was in a call",
                          BrokenError, "rank 0"),
    "abort in a thread": (lambda comm: comm.abort("enough"), AbortedError, "rank 0 aborted: enough",
                          AbortedError, "rank 0 aborted: enough"),
    "abort": (lambda comm: comm.abort("enough"), AbortedError, "rank 1 aborted: enough",
              AbortedError, "rank 1 aborted: enough"),
    "exception": (leave, AbortedError, f"rank 1 aborted: LookupError: {LEAVING}", None, ""),
    "close": (lambda comm: comm.close(), PeerLostError, r"rank 1 .* closed", ClosedError, ""),
    "death": (lambda comm: os.kill(os.getpid(), signal.SIGKILL), PeerLostError, r"rank 1 .*died", None, ""),
    "timeout": (lambda comm: None, CollectiveTimeoutError, "rank 1", CollectiveTimeoutError, "rank 1"),
}  # fmt: skip
BEGUN, ENDED = range(2)  # flags that rank 0 sets: it is about to wait; its wait has ended
IN_A_THREAD = ("close in a thread", "abort in a thread")


def is_meant(wait, end):
    """Whether the end is one of this wait, and of no test elsewhere."""
    breaks = WAITS[wait][1]
    if end == "timeout":  # which messages raise as an error of theirs, and groups after a time of their own
        return breaks or wait in WORK
    if end == "handler that closes":  # which other calls refuse
        return not breaks and wait not in (*WORK, *RENDEZVOUS)
    if end == "close in a thread":  # which waits for work
        return wait not in (*WORK, *RENDEZVOUS)
    return wait != "shrink" or end in INTERRUPTS  # it goes on without ranks that have left


def act_when_rank_zero_waits(comm, wait, end, flags):
    while not flags[BEGUN]:
        time.sleep(0.001)
    if wait in RENDEZVOUS:
        eventually(a_name_stands)
    else:
        until_waiting(comm, 0)  # between two calls an interrupt breaks nothing
    ENDS[end][0](comm)


def a_name_stands(part=""):
    """A rank has made its segment for a rendezvous, in which it waits."""
    assert any(part in name for name in shared_names())


def wait_and_act(comm, wait, end):
    flags = comm.empty(2)
    breaks = WAITS[wait][1] or end not in INTERRUPTS
    if comm.rank == 0:
        be_ended(comm, wait, end, flags)
    else:
        flags = comm.shared_view(flags, 0)
        if end not in IN_A_THREAD:
            act_when_rank_zero_waits(comm, wait, end, flags)
        while not flags[ENDED]:
            time.sleep(0.001)
    if not breaks:
        go_on(comm, wait)
        return
    _, _, _, error, text = ENDS[end]
    if comm.rank == 0:
        error, text = (BrokenError, ClosedError), ""
    with pytest.raises(error, match=text):
        while True:  # the first may complete: rank 0 had come to it
            comm.barrier()


def be_ended(comm, wait, end, flags):
    signal.signal(signal.SIGALRM, lambda *_: leave(comm))
    signal.signal(signal.SIGUSR2, lambda *_: comm.close())
    comm.works = submit(comm) if wait in WORK else []
    _, error, text, _, _ = ENDS[end]
    with contextlib.ExitStack() as stack:
        if end in IN_A_THREAD:
            stack.enter_context(beside(act_when_rank_zero_waits, comm, wait, end, flags))
        with pytest.raises(error, match=text) as caught:
            flags[BEGUN] = 1
            WAITS[wait][0](comm)
    flags[ENDED] = 1
    if error is CollectiveTimeoutError:
        assert caught.value.late == (1,)
    elif "rank 1" in text:
        assert caught.value.rank == 1
    if end == "death" and wait not in RENDEZVOUS:
        assert caught.value.pid == comm._engine.segments[1].header.pid
    if end not in INTERRUPTS:
        for work in comm.works:
            with pytest.raises(error, match=text):
                work.wait()


def go_on(comm, wait):
    """The ranks continue as if the call that was interrupted had not been made; but work goes on."""
    if wait in WORK:
        works = comm.works if comm.rank == 0 else submit(comm)
        assert all((work.wait() == 2).all() for work in works)
    comm.barrier()
    other, x, out = 1 - comm.rank, np.full(LARGE, comm.rank), np.empty(LARGE, np.int64)
    assert comm.sendrecv(x, other, out, other).source == other
    assert (out == other).all()
    assert (comm.all_reduce(np.ones(LARGE)) == 2).all()


@pytest.mark.sample(40)
@pytest.mark.parametrize("spin_us", [-1, 1e9], ids=["sleeps", "spins"])
@pytest.mark.parametrize(("wait", "end"), [(wait, end) for wait in WAITS for end in ENDS if is_meant(wait, end)])
def test_everything_that_ends_a_wait_ends_every_kind_of_wait(wait, end, spin_us):
    init = {"spin_us": spin_us, "timeout": 0.2 if end == "timeout" else None}
    if wait == "split collective":
        init |= {"threads": 3, "split_nbytes": 0}
    waiter, other = start_ranks(2, wait_and_act, wait, end, init=init).outcomes()
    assert waiter.ok, waiter
    if end == "death":
        assert other.signal == signal.SIGKILL
    elif end == "exception":
        assert isinstance(other.error, LookupError)
    else:
        assert other.ok, other


def meet_in_vain(rank, session):
    with pytest.raises(KeyboardInterrupt):
        shmring.init(rank=0, size=2, session=session)


def test_ctrl_c_ends_a_rendezvous_and_leaves_nothing():
    session = f"vain{os.getpid()}"
    gang = start_processes(1, meet_in_vain, session)
    eventually(lambda: a_name_stands(session))
    gang.signal(0, signal.SIGINT)
    gang.results()
