"""What survivors see when ranks die, stop, leave, disagree or give up. None of it hangs; all of it is named."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest
from support import harness
from support.children import in_child, status_of
from support.harness import RANKS, report, start_ranks
from support.helper_threads import helpers, until_helpers
from support.interrupts import Interrupts
from support.on_ranks import on_processes, on_ranks
from support.segments import standing
from support.threads import at_once, beside
from support.waits import until_idle, until_waiting

import shmring
from shmring.errors import (
    AbortedError,
    ClosedError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    RendezvousTimeoutError,
)

GROUPS = [n for n in RANKS if n > 1]
SMALL, LARGE = 4, 1 << 20
TEAMS = [1, 3]  # threads of each rank


def of(threads, **settings):
    """The settings of a communicator; with more threads than one, all its large calls are split."""
    return {"threads": threads, **({} if threads == 1 else {"split_nbytes": 0}), **settings}


def loop_for_ever(comm, count, memory="private"):
    x = comm.array(np.ones(count, np.float32)) if memory == "shared" else np.ones(count, np.float32)
    comm.all_reduce(x, op="max")
    if memory == "shared":
        assert comm._engine.sharing.nzero_copy == 1
    if memory == "pair queues":
        for dst in range(comm.size):
            comm.isend(np.ones(1 << 20), dst)
    assert standing(comm.name) == []
    report("going")
    while True:
        comm.all_reduce(x, op="max")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("memory", "count", "threads"),
    [
        ("private", SMALL, 1),
        ("private", LARGE, 1),
        ("private", LARGE // 32, 3),
        ("private", LARGE, 3),
        ("shared", LARGE, 1),
    ],
)
@pytest.mark.parametrize("n", GROUPS)
def test_survivors_of_a_kill_in_the_middle_of_all_reduces_name_the_dead(n, memory, count, threads):
    gang = start_ranks(n, loop_for_ever, count, memory, init=of(threads))
    gang.wait_for("going")
    time.sleep(0.01)
    victim = n // 2
    killed_at = time.monotonic()
    for outcome in gang.survivors_of(victim):
        assert type(outcome.error) is PeerLostError, outcome
        assert outcome.error.rank == victim
        assert outcome.error.pid == gang.pids[victim]
        print(f"rank {outcome.rank} knew after {1e3 * (outcome.ended_at - killed_at):.2f} ms")


def stay_behind(comm, count):
    x = np.ones(count)
    if comm.rank == comm.size - 1:
        report("late")
        time.sleep(1000)
    try:
        comm.all_reduce(x, timeout=0.15)
    except CollectiveTimeoutError:
        assert comm.is_broken
        with pytest.raises(CollectiveTimeoutError):  # for good
            comm.barrier()
        report("gave up")
        raise


@pytest.mark.sample(5)
@pytest.mark.parametrize(("count", "threads"), [(SMALL, 1), (LARGE, 1), (LARGE, 3)])
@pytest.mark.parametrize("n", GROUPS)
def test_a_late_rank_is_named_with_what_it_is_in(n, count, threads):
    gang = start_ranks(n, stay_behind, count, init=of(threads))
    gang.wait_for("late", [n - 1])
    gang.wait_for("gave up", range(n - 1))
    for outcome in gang.survivors_of(n - 1):
        assert type(outcome.error) is CollectiveTimeoutError, outcome
        assert isinstance(outcome.error, TimeoutError)
        assert n - 1 in outcome.error.late
        assert "in no call" in str(outcome.error)
        assert f"all_reduce(sum, float64 x {count})" in str(outcome.error)


def come_when_one_has_stopped(comm, stopped):
    x = np.ones(LARGE, np.float32)
    comm.all_reduce(x)
    if comm.rank == 0:
        until_waiting(comm, *range(1, comm.size))
        report("others wait")
        while not stopped.exists():
            time.sleep(0.001)
    try:
        comm.all_reduce(x, op="max", timeout=None if comm.rank else 0.3)
    except CollectiveTimeoutError:
        report("gave up")
        raise


@pytest.mark.parametrize(("n", "threads"), [(2, 1), (2, 3), (3, 2)])
def test_a_rank_that_is_stopped_in_the_middle_is_late_whichever_thread_notices(n, threads, tmp_path):
    stopped = tmp_path / "stopped"
    gang = start_ranks(n, come_when_one_has_stopped, stopped, init=of(threads))
    gang.wait_for("others wait", [0])
    gang.stop(1)
    while not harness.is_stopped(gang.pids[1]):
        time.sleep(0.001)
    stopped.touch()
    gang.wait_for("gave up", {*range(n)} - {1})
    for outcome in gang.survivors_of(1):
        assert type(outcome.error) is CollectiveTimeoutError, outcome
        assert 1 in outcome.error.late


def wait_for_a_message(comm, call):
    if comm.rank == 1:
        report("here")
        if call == "send":
            comm.send(np.zeros(1 << 20, np.uint8), 0, 5)
        else:
            getattr(comm, call)(*([np.zeros(3)] if call == "recv" else []), 0, 5)
    else:
        until_waiting(comm, 1)
        comm.all_reduce(np.ones(SMALL), timeout=0.2)


@pytest.mark.parametrize("call", ["send", "recv", "probe"])
def test_an_error_names_a_rank_that_waits_for_a_message(call):
    for outcome in start_ranks(2, wait_for_a_message, call, init={"pair_queue_nbytes": 4096}).outcomes():
        assert type(outcome.error) is CollectiveTimeoutError, outcome
        assert f"{call}({'dst' if call == 'send' else 'src'}=0, tag=5)" in str(outcome.error)


@pytest.mark.parametrize("threads", [1, 2, 4])
@on_ranks(3, init=of)
def test_an_abort_ends_the_calls_of_the_others_with_all_their_threads(comm, threads):
    x = np.ones(LARGE, np.float32)
    comm.all_reduce(x)
    with pytest.raises(AbortedError, match="enough"):
        for call in itertools.count():
            comm.all_reduce(x, op="max")
            if comm.rank == 0 and call == 20:
                comm.abort("enough")
    with pytest.raises(AbortedError, match="enough"):
        comm.all_reduce(x)
    assert len(helpers()) == threads - 1
    comm.close()
    until_helpers(0)


@on_ranks(*GROUPS)
def test_what_a_rank_sent_before_it_closed_still_arrives(comm):
    x = np.full(5000, 7.0) if comm.rank == 0 else np.zeros(5000)
    comm.broadcast(x)
    if comm.rank:
        assert (x == 7).all()
    comm.close()


def handle_signal_while_waiting(comm, handled):
    signal.signal(signal.SIGUSR2, lambda *_: handled.touch())
    if comm.rank == 1:
        until_waiting(comm, 0)
        report("rank 0 waits")
        while not handled.exists():
            time.sleep(0.001)
    comm.barrier()


def test_a_signal_handler_runs_while_waiting_and_the_wait_goes_on(tmp_path):
    gang = start_ranks(2, handle_signal_while_waiting, tmp_path / "handled")
    gang.wait_for("rank 0 waits", [1])
    gang.signal(0, signal.SIGUSR2)
    gang.results()


@on_ranks(2)
def test_other_threads_run_while_one_waits(comm, tmp_path):
    begin, end = tmp_path / "begin", tmp_path / "end"
    if comm.rank == 1:
        until_waiting(comm, 0)
        begin.touch()
        while not end.exists():
            time.sleep(0.001)
        comm.barrier()
        return

    def work():
        while not begin.exists():
            time.sleep(0.001)
        end.touch()

    with beside(work):
        comm.barrier()


@on_ranks(2)
def test_all_threads_that_wait_for_their_turn_learn_of_an_abort(comm):
    # Rank 1 makes no call, so one thread of rank 0 stays in a call and the others wait for their turn.
    if comm.rank == 1:
        until_waiting(comm, 0)
        comm.abort("enough")
        return

    def call():
        with pytest.raises(AbortedError):
            comm.barrier()

    at_once(*[call] * 4)


@on_ranks(1)
def test_threads_take_turns_though_signal_handlers_raise_anywhere(comm, seed):
    stop, interrupts = threading.Event(), Interrupts(seed, 1e-6, 300e-6)

    def call():
        comm.all_reduce(np.ones(20_000))
        comm.iprobe()

    def contend():
        while not stop.is_set():
            call()

    with beside(contend), beside(contend):
        for _ in range(1500):
            interrupts.during(call)
        stop.set()
    comm.barrier()


@pytest.mark.parametrize("threads", TEAMS)
@on_ranks(2, init=of)
def test_a_forked_child_can_neither_use_nor_harm_its_parents_communicator(comm, threads):
    x = np.ones(LARGE, np.float32)
    comm.all_reduce(x)

    def child():
        assert not helpers()
        for call in (comm.barrier, lambda: comm.all_reduce(x)):
            with pytest.raises(ClosedError, match="parent"):
                call()
        comm.close()  # waits for no thread: there are none here

    assert status_of(in_child(child)) == 0
    assert len(helpers()) == threads - 1
    comm.barrier()  # the child's end took nothing with it
    assert (comm.all_reduce(np.ones(LARGE, np.float32)) == comm.size).all()


@pytest.mark.parametrize("threads", [1, 4])
@on_ranks(3, init=of)
def test_a_waiting_rank_sleeps_with_its_threads(comm):
    x = np.ones(LARGE // 4, np.float32)
    pids = comm.all_gather_object(os.getpid())
    comm.all_reduce(x)
    if comm.rank == 0:
        until_waiting(comm, *range(1, comm.size))
        until_idle(*pids[1:])
    comm.all_reduce(x)


@pytest.mark.parametrize("memory", ["private", "shared", "pair queues"])
def test_killing_all_ranks_leaves_nothing(memory):
    gang = start_ranks(3, loop_for_ever, LARGE, memory)
    gang.wait_for("going")
    gang.survivors_of(0, 1, 2)
    assert harness.shared_names() == set()


def test_errors_pickle_with_their_attributes():
    import pickle

    for error in (
        PeerLostError("a", 3, 7),
        CollectiveTimeoutError("b", (1, 2)),
        MismatchError("c", (0, 1)),
        AbortedError("d", 4),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@on_processes(3)
def test_a_session_may_be_joined_again_and_again_and_twice_at_a_time(rank, seed):
    session = f"again{seed}"
    for number in range(20):
        with shmring.init(rank=rank, size=3, session=session) as comm:
            x = np.full(3000, float(number))
            comm.all_reduce(x)
            assert (x == 3 * number).all()
    pair = [shmring.init(rank=rank, size=3, session=session) for _ in range(2)]
    for comm in reversed(pair):
        comm.barrier()
        comm.close()


@on_processes(2)
def test_a_rank_that_gave_up_rendezvous_may_try_again(rank, seed, tmp_path):
    session, gave_up = f"late{seed}", tmp_path / "gave up"
    if rank == 1:
        with pytest.raises(RendezvousTimeoutError) as caught:
            shmring.init(rank=1, size=2, session=session, rendezvous_timeout=0.1)
        assert caught.value.missing == (0,)
        gave_up.touch()
    while not gave_up.exists():
        time.sleep(0.005)
    with shmring.init(rank=rank, size=2, session=session) as comm:
        comm.barrier()


@on_ranks(*GROUPS)
def test_a_rank_that_is_already_in_the_next_call_is_no_disagreement(comm):
    for count in (2000, 100_000):
        for root in range(comm.size):
            x = np.ones(count)
            comm.reduce(x.copy(), root=root)
            comm.broadcast(x, root=root)
            comm.gather(x, root=root)
            comm.scatter(np.ones((comm.size, count)) if comm.rank == root else None, np.empty(count), root=root)
            comm.all_reduce(x)
