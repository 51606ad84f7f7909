"""Arrays are shared and made private while other threads of the process use them, and while it forks."""

import os
import signal
import sys
import threading

import numpy as np
import pytest
from support.children import in_child, status_of
from support.on_ranks import on_ranks
from support.programs import run_program
from support.threads import at_once
from support.waits import until_waiting

from shmring.errors import SegmentError

COUNT = 1 << 18
NCALLS = 15


def share_often(comm, x):
    for _ in range(NCALLS):
        comm.share(x).close()


@on_ranks(2)
def test_messages_that_arrive_meanwhile_are_not_lost(comm):
    x = np.zeros(COUNT)

    def exchange():
        for i in range(NCALLS):
            if comm.rank == 0:
                comm.send(np.full(COUNT, i + 1.0), 1)
            else:
                comm.recv(x, 0)
                assert (x == i + 1).all(), i

    with comm.dup() as other:
        at_once(exchange, lambda: share_often(other, x))


@pytest.mark.parametrize("is_async", [False, True])
@on_ranks(2, 3)
def test_collectives_of_another_communicator_store_all_they_have(comm, is_async):
    x, source = np.zeros(COUNT), np.empty(COUNT)

    def reduce():
        for i in range(NCALLS):
            source[:] = i + comm.rank
            work = group.all_reduce(source, x, async_op=is_async)
            if is_async:
                work.wait()
            assert (x == sum(range(i, i + comm.size))).all(), i

    with comm.dup() as group:
        at_once(reduce, lambda: share_often(comm, x))


@on_ranks(2)
def test_what_is_copied_back_to_a_view_is_not_lost(comm):
    x, source = np.zeros((COUNT, 2)), np.empty(COUNT)

    def reduce():
        for i in range(NCALLS):
            source[:] = i
            group.all_reduce(source, x[:, 1], op="max")
            assert (x[:, 1] == i).all(), i

    with comm.dup() as group:
        at_once(reduce, lambda: share_often(comm, x))


@on_ranks(2)
def test_one_array_is_shared_by_one_communicator_at_a_time(comm):
    x = np.empty(COUNT)

    def share(group):
        refusals = []
        try:
            return group.share(x)
        except ValueError as error:
            refusals.append(str(error))
        assert "shared already" in refusals[0]
        return None

    with comm.dup() as other:
        for i in range(NCALLS):
            handles = [handle for handle in at_once(lambda: share(comm), lambda: share(other)) if handle is not None]
            assert len(handles) <= 1
            x[:] = i
            comm.all_reduce(x)
            assert (x == i * comm.size).all()
            for handle in handles:
                handle.close()
            assert (x == i * comm.size).all()


@on_ranks(2)
def test_threads_may_close_one_handle_at_once(comm):
    x = np.zeros(COUNT)

    def close_and_store(handle, i, thread):
        handle.close()
        assert handle.closed
        x[thread] = i + 1

    sys.setswitchinterval(1e-5)
    for i in range(NCALLS):
        handle = comm.share(x)
        x[:] = i
        at_once(*[lambda i=i, thread=thread, handle=handle: close_and_store(handle, i, thread) for thread in range(3)])
        assert x[:4].tolist() == [i + 1, i + 1, i + 1, i]
        assert (x[3:] == i).all()


@on_ranks(2)
def test_a_child_forked_meanwhile_has_its_own_memory(comm):
    x = np.zeros(COUNT)

    def store():
        x[:] = 9

    def fork_often():
        for _ in range(10):
            assert status_of(in_child(store)) == 0
            assert not x.any()

    at_once(fork_often, lambda: share_often(comm, x))


@on_ranks(2)
def test_a_call_of_another_thread_on_other_memory_is_not_waited_for(comm):
    x = np.ones(COUNT)
    with comm.dup() as group:
        shared = comm.share(x)
        if comm.rank == 0:
            comm.recv(np.empty(1), 1)
            group.broadcast(np.ones(COUNT), root=0)
        else:
            waiting = threading.Thread(target=group.broadcast, args=(np.empty(COUNT),), kwargs={"root": 0})
            waiting.start()
            until_waiting(group, 1)
            shared.close()
            comm.send(np.ones(1), 0)
            waiting.join()
        shared.close()


@on_ranks(2)
def test_a_signal_handler_inside_a_call_on_the_memory_cannot_close(comm):
    x = np.ones(COUNT)
    pids = comm.all_gather(np.array([os.getpid()]))
    with comm.dup() as other, comm.share(x) as shared:
        if comm.rank == 0:
            refused = []

            def close(*_):
                try:
                    shared.close()
                except RuntimeError as error:
                    refused.append(str(error))
                other.send(np.ones(1), 1)

            previous = signal.signal(signal.SIGUSR1, close)
            comm.all_reduce(x)
            signal.signal(signal.SIGUSR1, previous)
            assert len(refused) == 1
            assert "inside a call on it of the same thread" in refused[0]
        else:
            until_waiting(comm, 0)
            os.kill(int(pids[0, 0]), signal.SIGUSR1)
            other.recv(np.empty(1), 0)
            comm.all_reduce(x)
        assert not shared.closed
        assert (x == comm.size).all()


@on_ranks(2)
def test_an_array_that_has_got_other_memory_of_the_heap_is_an_error(comm):
    x = np.ones(10_000, np.uint32)  # small enough for a heap, which keeps what is freed mapped
    shared = comm.share(x)
    address = x.ctypes.data
    behind = np.ones(10_000, np.uint32)  # so that there is no room to grow
    x.resize(200_000, refcheck=False)
    if x.ctypes.data == address:
        pytest.skip("resized in place")
    with pytest.raises(SegmentError, match="resized or freed"):
        shared.close()
    assert shared.closed
    assert (behind == 1).all()
    assert (x[:10_000] == 1).all()


CYCLE = """
import sys
import numpy as np
import shmring

def left_open(comm):
    cycle = [comm.share(np.ones(100_000))]
    cycle.append(cycle)
    sys.kept = cycle

if __name__ == "__main__":
    shmring.spawn(left_open, 2)
"""


def test_a_handle_in_a_cycle_ends_with_the_interpreter(tmp_path):
    program = tmp_path / "cycle.py"
    program.write_text(CYCLE)
    assert not run_program(sys.executable, str(program)).stderr
