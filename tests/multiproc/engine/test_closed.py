"""Calls on a closed communicator, on one that another thread is closing, and in a forked child."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from support.calls import arguments_of
from support.harness import PATIENCE, run_ranks
from support.interrupts import Interrupts
from support.on_ranks import on_ranks
from support.programs import run_program, run_python
from support.threads import beside

import shmring
from shmring.collectives.calls.mpi_names import HINTS
from shmring.collectives.engine.engine import Engine
from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.communicator import Communicator
from shmring.errors import AbortedError, BrokenError, ClosedError, MismatchError

X = np.ones(4)
BLOCKS = np.ones((2, 4))
# The arguments of each method; those that are not listed have none.
ARGUMENTS = {
    **{name: arguments_of(name, 2)[0] for name in COLLECTIVES},
    "abort": ("enough",), "all_gather_object": (1,), "all_gather_into": (X, BLOCKS), "all_to_all_object": ([1, 2],),
    "array": (X,), "broadcast_object": (1,), "empty": (5,),
    "explain": ("all_reduce", 1000), "gather_object": (1,), "iprobe": (),
    "irecv": (X, 1), "isend": (X, 1), "plan": ("all_reduce", X), "probe": (), "recv": (X, 1), "recv_object": (1,),
    "scatter_object": ([1, 2],), "send": (X, 1), "send_object": (1, 1), "sendrecv": (X, 1, np.ones(4), 1),
    "shared_result": (5,), "shared_view": (X, 0), "split": (0,), "subgroup": ([0, 1],),
    "trace": ("/dev/null/none",), "reduce_object": (1,), "all_reduce_object": (1,),
}  # fmt: skip
ANSWERS = {"close", "explain", "plan", "stats"}  # of private memory: answered as before
REFUSED_BY_VALUE = {"shared_view"}  # this array is in no shared array, closed or not


def methods_of(cls):
    return [name for name in dir(cls) if not name.startswith("_") and inspect.isroutine(getattr(cls, name))]


@on_ranks(2)
def test_every_method_of_a_closed_communicator_answers_or_raises_closed_error(comm):
    request, plan = comm.irecv(np.ones(4), 1 - comm.rank), comm.plan("all_reduce", X)
    work, shared = comm.all_reduce(np.ones(4), async_op=True), comm.empty(5)
    work.wait()
    comm.barrier()
    comm.close()
    for name in methods_of(Communicator):
        call = getattr(comm, name)
        for kwargs in [{}, {"async_op": True}] if "async_op" in str(call.__doc__) else [{}]:
            if name in ANSWERS:
                call(*ARGUMENTS.get(name, ()))
            else:
                expected = ValueError if name in REFUSED_BY_VALUE else ClosedError
                with pytest.raises(expected) as caught:
                    call(*ARGUMENTS.get(name, ()), **kwargs)
                assert name in REFUSED_BY_VALUE or "closed" in str(caught.value)
    for name in set(dir(Communicator)) - set(methods_of(Communicator)):
        if not name.startswith("_") and name not in HINTS:
            getattr(comm, name)
    assert comm.closed
    assert "closed" in repr(comm)
    assert shared.tolist() == [0] * 5
    assert work.wait() is not None
    for call in (plan, plan.start, request.wait):
        with pytest.raises(ClosedError):
            call()
    plan.describe(), repr(plan), repr(work), repr(request)
    with pytest.raises(ClosedError), comm:
        comm.barrier()


@on_ranks(2)
def test_every_method_of_a_closed_engine_answers_or_raises_closed_error(comm):
    engine = comm.dup()._engine
    engine.close()
    for call in (
        engine.gone_ranks,
        engine.left_ranks,
        engine.dead_pids,
        engine.rank_states,
        engine.check_usable,
        engine.refuse,
        lambda: engine.abort("enough"),
    ):
        with pytest.raises(ClosedError):
            call()
    assert engine.nonce
    assert not engine.is_broken
    engine.close()
    engine.leave_at_exit()
    engine.stats()
    comm.barrier()


# ---- other threads meanwhile -----------------------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "what",
    ["abort", "subgroup", "dup", "empty", "is_broken", "gone_ranks", "close", "receive", "barrier", "looks"],
)
@on_ranks(2)
def test_close_in_one_thread_while_others_call(comm, what):
    """Each round another thread calls while this one closes, now sooner, now later."""
    calls = {
        "abort": lambda group: group.abort("enough"),
        "subgroup": lambda group: group.subgroup([1 - group.rank, group.rank], rendezvous_timeout=5),
        "dup": lambda group: group.dup(rendezvous_timeout=5),
        "empty": lambda group: group.empty(100),
        "is_broken": lambda group: group.is_broken,
        "gone_ranks": lambda group: group._engine.gone_ranks(),
        "close": lambda group: group.close(),
        "receive": lambda group: group.recv(np.ones(3), 1 - group.rank),
        "barrier": lambda group: group.barrier(),
        "looks": lambda group: (group.stats(), repr(group), group._engine.totals(), group._engine.rank_states()),
    }
    for turn in range(6):
        group = comm.dup()
        stop = threading.Event()

        def call(group=group, stop=stop):
            while not stop.is_set():
                try:
                    calls[what](group)
                except (shmring.errors.ShmringError, ValueError):
                    if group.closed:
                        return

        with beside(call), beside(call):
            time.sleep(turn * 2e-4)
            group.close()
            stop.set()
    comm.barrier()


def fail_to(call, *args):
    with pytest.raises((BrokenError, ClosedError)):
        while True:
            call(*args)


@on_ranks(2)
def test_a_signal_handler_may_close_while_threads_receive(comm):
    group = comm.dup()
    if comm.rank == 1:
        while not group._engine.gone_ranks():
            time.sleep(0.001)
        return

    def close(*_):
        group.close()

    with beside(fail_to, group.recv, np.ones(3), 1, 7):
        signal.signal(signal.SIGALRM, close)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises((ClosedError, AbortedError)):
            group.recv(np.ones(3), 1)
    assert group.closed


# ---- a failing call and threads that wait for their turn -------------------------------------------------------------

WAITING_THREADS = """
    import os, sys, threading, time
    import shmring

    comm = shmring.init(rank={rank}, size=2, session={session!r}, timeout={timeout})
    if comm.rank == 1:
        sys.stdin.read()        # no call: rank 0 waits
        os._exit(0)
    raised = []

    def call():
        try:
            comm.barrier()
        except shmring.ShmringError as error:
            raised.append(type(error).__name__)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    {end}
    """


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("timeout", "end", "status"),
    [
        (0.3, "[thread.join() for thread in threads]; print(raised); assert len(raised) == 3", 0),
        (None, "time.sleep(0.2); comm.close(); [thread.join() for thread in threads]; assert len(raised) == 3", 0),
        (None, "time.sleep(0.2); sys.exit(5)", 5),
        (None, "time.sleep(0.2); raise KeyError", 1),
    ],
    ids=["timeout", "close", "exit", "exception"],
)
def test_threads_that_wait_for_their_turn_end_with_the_call_before_them(timeout, end, status):
    session = f"turns{os.getpid()}{os.urandom(4).hex()}"
    code = [
        textwrap.dedent(WAITING_THREADS).format(rank=r, session=session, timeout=timeout, end=end) for r in range(2)
    ]
    other = subprocess.Popen([sys.executable, "-c", code[1]], stdin=subprocess.PIPE)
    try:
        run_python("-c", code[0], status=status)
    finally:
        other.kill()  # which may wait for rank 0 yet
        other.communicate()


JOINED = """
import shmring
comm = shmring.init(rank={rank}, size=2, session={session!r})
"""


@pytest.mark.parametrize(
    ("options", "error"), [(["-i"], "PeerLostError"), (["-"], "AbortedError")], ids=["session", "script"]
)
def test_an_error_of_an_interactive_session_is_not_the_reason_of_its_end(options, error):
    # One that ends a program is: its standard input is a script there.
    session = f"interactive{os.getpid()}{os.urandom(4).hex()}"
    needy = JOINED + "try:\n    comm.barrier()\nexcept Exception as error:\n    print(type(error).__name__)\n"
    command = [sys.executable, "-c", needy.format(rank=1, session=session)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            command = [sys.executable, *options]
            text = JOINED.format(rank=0, session=session) + "1 / 0\n"
            limit = 60 * PATIENCE
            done = subprocess.run(command, input=text, timeout=limit, capture_output=True, text=True, check=False)
            assert "ZeroDivisionError" in done.stderr
            assert other.communicate(timeout=limit)[0].split() == [error]
        finally:
            other.kill()


@on_ranks(2)
def test_a_close_that_was_interrupted_may_be_called_again(comm, seed):
    """A handler raises anywhere in close(), which waits for other threads; the next close() ends."""
    interrupts = Interrupts(f"{seed}.{comm.rank}", 1e-5, 2e-3)
    for _ in range(20):
        group = comm.dup()
        with beside(fail_to, group.recv, np.ones(3), 1 - comm.rank), beside(fail_to, group.barrier):
            while not group.closed:
                interrupts.during(group.close)


# ---- forked children -------------------------------------------------------------------------------------------------


CHILD_EXITS = """
    import os, sys
    import shmring

    with shmring.init(rank=0, size=1, session={session!r}) as comm:
        pid = os.fork()
        if pid == 0:
            {end}
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        comm.barrier()
    sys.exit(status)
    """


@pytest.mark.parametrize(
    ("end", "status", "text"),
    [
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("raise KeyError('enough')", 1, "KeyError: 'enough'"),
        ("comm.barrier()", 1, "ClosedError"),
    ],
)
def test_a_child_that_was_forked_inside_a_with_block_ends_as_it_wants_to(end, status, text):
    code = textwrap.dedent(CHILD_EXITS).format(end=end, session=f"fork{os.getpid()}{os.urandom(4).hex()}")
    # CPython 3.12 and later warn when a process with threads forks, and a communicator has one.
    done = run_program(sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, status=status)
    assert text in done.stderr if text else done.stderr == ""
    assert "Exception ignored" not in done.stderr


# ---- two roots of the last call --------------------------------------------------------------------------------------


def both_are_roots(comm, call):
    for _ in range(3):
        comm.barrier()
    group = comm.dup()
    x = np.ones(4 if call == "eager" else 100_000)
    group.broadcast(x, root=comm.rank)  # waits for no rank
    comm.barrier()
    try:
        group.close()
    except MismatchError as error:
        return str(error)
    finally:
        assert group.closed


@pytest.mark.parametrize("call", ["eager", "planned"])
def test_close_reports_that_two_ranks_were_roots_of_the_last_call(call):
    raised = [text for text in run_ranks(2, both_are_roots, call) if text]
    assert raised
    assert all("broadcast(" in text and "root=0" in text and "root=1" in text for text in raised)


@on_ranks(3)
def test_ranks_that_agree_close_without_an_error(comm):
    """Ranks that agree close without an error, whatever the last calls were, and however far the others are."""
    for calls in range(1, 10):
        group = comm.dup()
        for number in range(calls):
            group.broadcast(np.ones(4), root=number % comm.size)
            group.all_to_all(np.ones((comm.size, 3)), counts=None) if number % 3 else group.all_gather(np.ones(0))
        if comm.rank == calls % comm.size:
            time.sleep(0.002)
        group.broadcast(np.ones(9000), root=0)
        group.close()
    comm.barrier()


# ---- half-made objects -----------------------------------------------------------------------------------------------


@on_ranks(2)
def test_communicators_and_engines_made_of_bad_arguments_raise(comm):
    engine = comm._engine
    for cls in (Communicator, type("Sub", (Communicator,), {"__init__": lambda *_: None})):
        for arguments in ((), (None,), (1,), (object(),), (None, None)):
            with pytest.raises(TypeError):
                cls(*arguments)
            with pytest.raises(TypeError):
                cls.__new__(cls, *arguments)
    again = type("Sub", (Communicator,), {"__init__": lambda *_: None})(engine)
    assert again.all_reduce(np.ones(2)) is not None
    config, segments = comm.config, engine.segments
    for arguments in (
        (),
        (None, 0, config, "a"),
        ([], 0, config, "a"),
        (segments, 2, config, "a"),
        (segments, -1, config, "a"),
        ([None, None], 0, config, "a"),
        (segments, 0, None, "a"),
        (segments, 0, config, None),
        (segments, 0, config.changed(slot_nbytes=1 << 22), "a"),
    ):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            Engine(*arguments)
    comm.barrier()
