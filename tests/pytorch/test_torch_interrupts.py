"""Signal handlers that raise anywhere in the calls of the torch room: other threads can make the same calls."""

import random
import signal
import threading
from _thread import start_new_thread
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from support.harness import PATIENCE, start_processes

from shmring.nodes.calls import Arguments, NodesCall
from shmring.nodes.messages import NodesMessages
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

    name, layout, rank, size = "group", None, 0, 1
    _programs = SimpleNamespace(find=lambda *_: None)

    def __init__(self):
        self._turn = Turn(self.name)
        self.messages = NodesMessages(self, SimpleNamespace(inbox=deque(), poll=self.check_usable, listen=id))

    def check_usable(self):
        pass

    check_node = check_usable

    def _checked_rank(self, *_):
        pass

    def _execute(self, *_):
        for _ in range(10):
            pass

    def call(self):
        arguments = Arguments("nothing", print, (), None, None, None, None)
        NodesCall(self, "nothing", lambda: arguments, None)()

    def message(self):
        self.messages.send(np.ones(1), 0, 0, -1)
        self.messages.recv(np.zeros(1), 0, 0, -1)

    def messages_of_threads(self):
        # Thread.start() waits in Python code, with a lock
        start_new_thread(self.messages.send, (np.ones(1), 0, 0, -1))
        self.messages.recv(np.zeros(1), 0, 0, -1)


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
    may_raise = False

    def interrupt(*_):
        nonlocal may_raise
        if may_raise:  # a signal that another thread took can reach this one after the calls
            may_raise = False
            raise EnoughError

    call, moment, interrupts = CALLS[name](), random.Random(seed), 0
    call()
    signal.signal(signal.SIGALRM, interrupt)
    for _ in range(NCALLS):
        try:
            may_raise = True
            signal.setitimer(signal.ITIMER_REAL, moment.uniform(1e-6, 50e-6))
            call()
            call()
            may_raise = False
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
