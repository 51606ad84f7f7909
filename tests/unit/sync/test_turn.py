"""Turns: one thread at a time, in order, and free again whatever a signal handler raises."""

import os
import signal
import threading
import time

import pytest
from support.children import in_child, status_of
from support.interrupts import Interrupts, collector_off

from shmring.core.sync.turn import Turn


def test_one_thread_at_a_time_runs_a_function():
    turn, running, most, done = Turn("test"), [], [], []

    def work(number):
        running.append(number)
        time.sleep(0.001)
        most.append(len(running))
        running.remove(number)
        return number

    threads = [threading.Thread(target=lambda n=n: done.append(turn.run(work, n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(8))
    assert most == [1] * 8


def test_a_call_inside_a_call_is_an_error_unless_it_is_reentrant():
    turn = Turn("test")
    with pytest.raises(RuntimeError, match=r"test: .* inside a call of its own thread"):
        turn.run(turn.run, list)
    assert turn.run(list) == []
    again = Turn("test", is_reentrant=True)
    assert again.run(again.run, again.run, list) == []
    thread = threading.Thread(target=again.run, args=(list,))
    thread.start()
    thread.join()


def test_what_a_function_raises_comes_out_and_the_turn_is_free():
    turn = Turn("test")
    with pytest.raises(ZeroDivisionError):
        turn.run(divmod, 1, 0)
    turn.give()  # not taken: no effect
    assert turn.run(max, 1, 2) == 2


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_no_exception_of_a_signal_handler_leaves_it_taken(is_reentrant, seed, restored_handler):
    turn, stop, interrupts = Turn("test", is_reentrant=is_reentrant), threading.Event(), Interrupts(seed, 2e-6, 3e-4)

    def work():
        return sum(range(20))

    def contend():
        while not stop.is_set():
            turn.run(work)

    thread = threading.Thread(target=contend)
    thread.start()
    for _ in range(200):
        assert interrupts.during(contend)
    stop.set()
    thread.join()
    assert turn.run(work) == 190


@pytest.fixture
def restored_handler():
    before = signal.getsignal(signal.SIGALRM)
    with collector_off():
        yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_it_is_renewed_in_a_forked_child():
    turn, taken, leave = Turn("test", is_reentrant=True), threading.Event(), threading.Event()

    def hold():
        taken.set()
        leave.wait()

    thread = threading.Thread(target=turn.run, args=(hold,))
    thread.start()
    taken.wait()

    def child():
        turn.renew()
        assert turn.run(os.getpid) == os.getpid()

    status = status_of(in_child(child))
    leave.set()
    thread.join()
    assert status == 0


def test_bad_arguments():
    for arguments in ((), (None,), (1,)):
        with pytest.raises(TypeError):
            Turn(*arguments)
