"""Ends of channels in an asyncio event loop: calls that do not wait, and between them the loop's own wait."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmring.errors import ClosedError, EndOfStreamError

if TYPE_CHECKING:
    import asyncio

_TICK_S = 0.05  # of the threads that put into a queue

# Ends of channels for which a task waits, by their id.
_awaited: set[int] = set()


async def when_ready(end: Any, call: Callable[[int], Any], *, is_shared: bool = False) -> Any:
    """Return ``call(0)`` once it does not raise ``queue.Empty``. No wait follows, so a cancellation loses nothing."""
    while True:
        try:
            return call(0)
        except queue.Empty:
            await readable(end, is_shared=is_shared)


async def next_of(end: Any) -> Any:
    """The next message of an asynchronous iteration over a receiver."""
    try:
        return await when_ready(end, end.recv)
    except EndOfStreamError:
        raise StopAsyncIteration from None


async def put(target: Any, item: Any) -> None:
    """Put an item into a queue, in a thread if that must wait. Each attempt may take twice as long: a long item goes in
    pieces."""
    try:
        return target.put(item, False)
    except queue.Full:
        pass
    except ClosedError:
        raise
    except ValueError:
        pass  # longer than half of the capacity: only a call that may wait puts it
    patience_s = _TICK_S
    while True:
        try:
            return await _in_thread(target.put, item, True, patience_s)
        except queue.Full:
            patience_s *= 2


async def _in_thread(call: Callable[..., Any], *args: Any) -> Any:
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, call, *args)


async def readable(end: Any, *, is_shared: bool = False) -> None:
    """Wait until the descriptor of an end is readable, or the end is closed. Any number of tasks may wait for a shared
    one, a queue's."""
    import asyncio  # here: its import takes time, and programs without an event loop do not need it

    loop = asyncio.get_running_loop()
    if id(end) in _awaited:
        raise RuntimeError("another task waits at this end: an end is for one task at a time")
    # A duplicate stays open when the end closes its own, which it makes readable before; and the loop has one reader
    # for each number.
    descriptor = os.dup(end.fileno())
    ready = loop.create_future()
    if not is_shared:
        _awaited.add(id(end))
    try:
        loop.add_reader(descriptor, _set, ready)
        await ready
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        _awaited.discard(id(end))


def _set(ready: asyncio.Future) -> None:
    if not ready.done():
        ready.set_result(None)
