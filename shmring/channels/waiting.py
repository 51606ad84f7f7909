"""One wait for several ends of different channels: `wait`."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Iterable
from typing import Any

from shmring.base.timeouts import deadline_after
from shmring.channels.fan_in import FanInReceiver
from shmring.channels.queue import Queue
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver
from shmring.channels.word_sleep import WordSleep, can_sleep_on_words
from shmring.sync.long_waits import WaitNotes

LONGEST_SLEEP_S = 86400.0  # of one poll, which counts milliseconds in 32 bits

_ENDS = (FanInReceiver, Queue, Receiver, RecordReceiver)


def wait(ends: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Wait until one or more of several ends have a message to receive.

    Parameters
    ----------
    ends : iterable
        At least one. Receivers of channels, fan-ins and broadcasts, queues; and the arguments of
        `multiprocessing.connection.wait`: connections, sockets, descriptors, sentinels of processes.
    timeout : float, optional
        Seconds to wait; None for ever, 0 not at all.

    Returns
    -------
    list
        The ends that are ready, in the order of ``ends``; empty after ``timeout``. A receiver is ready if its `poll` is
        True, so also at the end of its stream. Another process may take the item that made a queue ready.

    Raises
    ------
    ValueError
        There are no ends, so that the wait could never end; or the timeout is negative.
    TypeError
        An end cannot be waited for, a sender for example.
    ClosedError
        An end is closed.
    RuntimeError
        Another thread is in a call of an end, or waits for it: an end is for one thread at a time.

    Notes
    -----
    The calling thread sleeps once for all ends. For one end the call is its `poll`. It sleeps on the rings themselves
    if all ends are receivers of channels, fan-ins and broadcasts, of at most 128 rings together (a fan-in has one for
    each sender), and the kernel has ``futex_waitv`` (Linux 5.16). Else it sleeps on the descriptors of the ends, and
    behind that of each receiver stands a thread without the GIL (`Receiver.fileno`), which a queue or connection does
    not need. A wait of 30 seconds writes a note on standard error (``SHMRING_WAIT_NOTES``).
    """
    ends = list(ends)
    if not ends:
        raise ValueError("ends is empty: there is nothing to wait for")
    deadline = deadline_after(timeout)
    if len(ends) == 1 and isinstance(ends[0], _ENDS):
        return ends if ends[0].poll(timeout) else []
    if can_sleep_on_words(ends):
        return _wait_on_words(ends, deadline)
    return _wait_on_descriptors(ends, deadline)


def _wait_on_words(ends: list[Any], deadline: float | None) -> list[Any]:
    each = list({id(end): end for end in ends}.values())
    while True:
        ready = {id(end) for end in each if end.poll(0)}
        left = _seconds_to(deadline)
        if ready or left == 0:
            return [end for end in ends if id(end) in ready]
        WordSleep(each).sleep(left)


def _wait_on_descriptors(ends: list[Any], deadline: float | None) -> list[Any]:
    own = [end for end in ends if isinstance(end, _ENDS)]
    notes = WaitNotes()
    with selectors.PollSelector() as selector:
        for end in ends:
            _register(selector, end)
        while True:
            ready = {id(end) for end in own if end.poll(0)}
            left = _seconds_to(deadline)
            for key, _ in selector.select(0 if ready else min(left, notes.seconds_to_next(), LONGEST_SLEEP_S)):
                ready.update(id(end) for end in key.data if not isinstance(end, _ENDS) or end.poll(0))
            if ready or left == 0:
                return [end for end in ends if id(end) in ready]
            notes.look(f"shmring.wait for one of {len(ends)} ends waits")


def _seconds_to(deadline: float | None) -> float:
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())


def _register(selector: selectors.BaseSelector, end: Any) -> None:
    if not isinstance(end, (*_ENDS, int)) and (hasattr(end, "try_send") or not hasattr(end, "fileno")):
        raise TypeError(f"cannot wait for {end!r}: it is neither a receiver nor a queue, and has no descriptor to read")
    descriptor = end if isinstance(end, int) else end.fileno()
    if descriptor in selector.get_map():  # the same object twice
        selector.get_key(descriptor).data.append(end)
    else:
        selector.register(descriptor, selectors.EVENT_READ, [end])
