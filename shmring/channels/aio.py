"""Ends of channels in an asyncio event loop: calls that do not wait, and between them the loop's own wait."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

# Descriptors for which a task waits.
_awaited: set[int] = set()


async def when_ready(end: Any, call: Callable[[int], Any]) -> Any:
    """``call(0)`` as soon as it finds something. Nothing is awaited after that, so a cancellation loses nothing."""
    while True:
        try:
            return call(0)
        except queue.Empty:
            await readable(end)


async def readable(end: Any) -> None:
    """Wait until the descriptor of an end is readable."""
    import asyncio  # here, because programs without an event loop should not pay for the import

    loop = asyncio.get_running_loop()
    descriptor = end.fileno()
    if descriptor in _awaited:
        raise RuntimeError("another task waits at this end: an end is for one task at a time")
    ready = loop.create_future()
    _awaited.add(descriptor)
    loop.add_reader(descriptor, _set, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
        _awaited.discard(descriptor)


def _set(ready: asyncio.Future) -> None:
    if not ready.done():
        ready.set_result(None)
