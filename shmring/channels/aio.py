"""Ends of channels in an asyncio event loop: calls that do not wait, and between them the loop's own wait."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

# Ends for which a task waits, by their id.
_awaited: set[int] = set()


async def when_ready(end: Any, call: Callable[[int], Any]) -> Any:
    """``call(0)`` as soon as it finds something. Nothing is awaited after that, so a cancellation loses nothing."""
    while True:
        try:
            return call(0)
        except queue.Empty:
            await readable(end)


async def readable(end: Any) -> None:
    """Wait until the descriptor of an end is readable, or the end is closed."""
    import asyncio  # here, because programs without an event loop should not pay for the import

    loop = asyncio.get_running_loop()
    if id(end) in _awaited:
        raise RuntimeError("another task waits at this end: an end is for one task at a time")
    # A duplicate: it stays what it is when the end closes its own, which the end has made readable before.
    descriptor = os.dup(end.fileno())
    ready = loop.create_future()
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
