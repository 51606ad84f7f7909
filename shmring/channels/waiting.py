"""One wait for several ends of different channels: `wait`."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Iterable
from typing import Any, TypeVar

from shmring.channels.latest import Latest
from shmring.channels.queue import Queue
from shmring.channels.receiver import Receiver
from shmring.channels.records import RecordReceiver
from shmring.channels.word_sleep import WordSleep, can_sleep_on_words
from shmring.core.base.timeouts import at_least_0, deadline_after
from shmring.core.sync.long_waits import WaitNotes

T = TypeVar("T")

LONGEST_SLEEP_S = 86400.0  # of one poll, which counts milliseconds in 32 bits

_ENDS = (Latest, Queue, Receiver, RecordReceiver)
_MOST_DESCRIPTOR = (1 << 31) - 1  # an int of C


def wait(ends: Iterable[T], timeout: float | None = None) -> list[T]:
    """Wait until one or more of several ends have a message to receive.

    Parameters
    ----------
    ends : iterable
        At least one. Receivers of channels, fan-ins and broadcasts, queues, latest values; and the arguments of
        `multiprocessing.connection.wait`: connections, sockets, descriptors, sentinels of processes.
    timeout : float, optional
        Seconds to wait; None for ever, 0 or less not at all.

    Returns
    -------
    list
        The ends that are ready, in the order of ``ends``; empty after ``timeout``. A receiver is ready if its `poll` is
        True, so also at the end of its stream. Another process may take the item that made a queue ready.

    Raises
    ------
    ValueError
        There are no ends, so that the wait could never end; a number is no descriptor; or the timeout is no number.
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
    each sender), and the kernel has ``futex_waitv`` (Linux 5.16). Else it sleeps on the descriptors of the ends; one
    thread of this process writes to those of receivers (`Receiver.fileno`). A wait of 30 seconds writes a note on
    standard error (``SHMRING_WAIT_NOTES``).
    """
    given: list[Any] = list(ends)
    if not given:
        raise ValueError("ends is empty: there is nothing to wait for")
    timeout = at_least_0(timeout)
    deadline = deadline_after(timeout)
    if len(given) == 1 and _is_own(given[0]):
        return given if given[0].poll(timeout) else []
    if can_sleep_on_words(_parts_of(given)):
        return _wait_on_words(given, deadline)
    return _wait_on_descriptors(given, deadline)


def _wait_on_words(ends: list[Any], deadline: float | None) -> list[Any]:
    each = list({id(end): end for end in ends}.values())
    while True:
        ready = {id(end) for end in each if end.poll(0)}
        left = _seconds_to(deadline)
        if ready or left == 0:
            return [end for end in ends if id(end) in ready]
        WordSleep(_parts_of(each)).sleep(left)


def _wait_on_descriptors(ends: list[Any], deadline: float | None) -> list[Any]:
    own = [end for end in ends if _is_own(end)]
    notes = WaitNotes()
    with selectors.PollSelector() as selector:
        for end in ends:
            _register(selector, end)
        while True:
            ready = {id(end) for end in own if end.poll(0)}
            left = _seconds_to(deadline)
            for key, _ in selector.select(0 if ready else min(left, notes.seconds_to_next(), LONGEST_SLEEP_S)):
                ready.update(id(end) for end in key.data if not _is_own(end) or end.poll(0))
            if ready or left == 0:
                return [end for end in ends if id(end) in ready]
            notes.look(f"shmring.wait for one of {len(ends)} ends waits")


def _seconds_to(deadline: float | None) -> float:
    return math.inf if deadline is None else max(0.0, deadline - time.monotonic())


def _is_own(end: Any) -> bool:
    return isinstance(end, _ENDS) or hasattr(end, "awaited")


def _parts_of(ends: Iterable[Any]) -> list[Any]:
    """The receivers to wait for: of a fan-in several."""
    return [part for end in ends for part in getattr(end, "awaited", (end,))]


def _register(selector: selectors.BaseSelector, end: Any) -> None:
    is_known = _is_own(end) or isinstance(end, int)
    if not is_known and (hasattr(end, "try_send") or not hasattr(end, "fileno")):
        raise TypeError(f"cannot wait for {end!r}: it is neither a receiver nor a queue, and has no descriptor to read")
    if isinstance(end, int) and not 0 <= end <= _MOST_DESCRIPTOR:
        raise ValueError(f"cannot wait for {end}: a descriptor is a number from 0 to {_MOST_DESCRIPTOR}")
    for part in _parts_of([end]):
        descriptor = part if isinstance(part, int) else part.fileno()
        if descriptor in selector.get_map():  # the same object twice
            selector.get_key(descriptor).data.append(end)
        else:
            selector.register(descriptor, selectors.EVENT_READ, [end])
