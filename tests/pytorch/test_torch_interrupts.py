"""Signal handlers that raise anywhere in the calls of the torch room: other threads can make the same calls."""

import threading
from types import SimpleNamespace

import pytest
from support.harness import PATIENCE, start_processes
from support.interrupts import Interrupts

from shmring.torch.messages import MessageProgress

NCALLS = 3000


class Request:
    """One that is done at once."""

    def done(self):
        return True


def progress():
    config = SimpleNamespace(pair_queue_limit=lambda size: 1 << 20)
    made = MessageProgress(SimpleNamespace(name="group", size=2, config=config))
    return lambda: made.add(Request())


CALLS = {
    "progress": progress,
}


def interrupt_calls(_rank, name, seed):
    call, interrupts = CALLS[name](), Interrupts(seed, 1e-6, 50e-6)

    def twice():
        call()
        call()

    call()
    for _ in range(NCALLS):
        interrupts.during(twice)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20 * PATIENCE)
    assert not thread.is_alive(), f"{name}: after {interrupts.count} interrupts a lock is taken for ever"
    assert interrupts.count


@pytest.mark.parametrize("name", CALLS)
def test_a_signal_handler_that_raises_leaves_no_lock(name, seed):
    start_processes(1, interrupt_calls, name, seed).results()
