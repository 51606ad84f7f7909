"""Signal handlers that raise anywhere in the calls of the torch room: other threads can make the same calls."""

import random
import signal
import threading
from _thread import start_new_thread
from types import SimpleNamespace

import pytest
from support.harness import PATIENCE, start_processes

from shmring.nodes.calls import Arguments, NodesCall
from shmring.nodes.requests import NetworkRequest
from shmring.sync.turn import Turn
from shmring.torch.messages import MessageProgress

NCALLS = 3000


class EnoughError(Exception):
    pass


class Request:
    """One that is done at once."""

    def done(self):
        return True


class Group:
    """What a communicator of several nodes has of calls and requests."""

    name, layout, rank, ticks_s = "group", None, 0, None
    _programs = SimpleNamespace(find=lambda *_: None)

    def __init__(self):
        self.turn, self._turn = Turn(self.name, is_reentrant=True), Turn(self.name)

    def poll(self):
        pass

    def _execute(self, *_):
        for _ in range(10):
            pass

    def call(self):
        arguments = Arguments("nothing", print, (), None, None, None, None)
        NodesCall(self, "nothing", lambda: arguments, None)()

    def message(self):
        request, ended = NetworkRequest(self), []
        request.add_done_callback(ended.append)
        request.end()
        request.wait(1)
        assert ended == [request]

    def messages_of_threads(self):
        request = NetworkRequest(self)
        start_new_thread(request.end, ())  # Thread.start() waits in Python code, with a lock
        request.wait()


def progress():
    config = SimpleNamespace(pair_queue_limit=lambda size: 1 << 20)
    made = MessageProgress(SimpleNamespace(name="group", size=2, config=config))
    return lambda: made.add(Request())


CALLS = {
    "collective": lambda: Group().call,
    "message": lambda: Group().message,
    "messages_of_threads": lambda: Group().messages_of_threads,
    "progress": progress,
}


def interrupt_calls(_rank, name, seed):
    def interrupt(*_):
        raise EnoughError

    call, moment, interrupts = CALLS[name](), random.Random(seed), 0
    call()
    signal.signal(signal.SIGALRM, interrupt)
    for _ in range(NCALLS):
        try:
            signal.setitimer(signal.ITIMER_REAL, moment.uniform(1e-6, 50e-6))
            call()
            call()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except EnoughError:
            interrupts += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20 * PATIENCE)
    assert not thread.is_alive(), f"{name}: after {interrupts} interrupts another thread waits for a lock for ever"
    assert interrupts


@pytest.mark.parametrize("name", CALLS)
def test_a_signal_handler_that_raises_leaves_no_lock(name, seed):
    start_processes(1, interrupt_calls, name, seed).results()
