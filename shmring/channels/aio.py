"""Ends of channels in an asyncio event loop: calls that do not wait, and between them the loop's own wait."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shmring.core.base.pace import TICK_S
from shmring.core.memory.descriptor import above_standard
from shmring.errors import EndOfStreamError

if TYPE_CHECKING:
    import asyncio

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


async def pause() -> None:
    """Let other tasks run for a tick: for a wait that no descriptor ends."""
    import asyncio

    await asyncio.sleep(TICK_S)


async def put(item: Any) -> None:
    """Put an item into a queue, in a thread if that must wait.

    After a cancellation the thread ends within a tick, and the task waits for that: if the thread has put the item
    meanwhile, the task ends as if it was not cancelled.
    """
    if item.put_now():
        return
    import asyncio

    thread = asyncio.get_running_loop().run_in_executor(None, item.put)
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        has_begun = item.give_up()
        while has_begun and not thread.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([thread])
        if not has_begun or not thread.result():
            raise
    finally:
        item.give_up()  # also if the coroutine is closed


async def readable(end: Any, *, is_shared: bool = False) -> None:
    """Wait until the descriptor of an end is readable, or the end is closed. Any number of tasks may wait for a shared
    one, a queue's."""
    import asyncio  # here: its import takes time, and programs without an event loop do not need it

    loop = asyncio.get_running_loop()
    if id(end) in _awaited:
        raise RuntimeError("another task waits at this end: an end is for one task at a time")
    # A duplicate stays open when the end closes its own, which it makes readable before; and the loop has one reader
    # for each number.
    descriptor = above_standard(os.dup(end.fileno()))
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
