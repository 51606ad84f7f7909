"""Ends of channels in an event loop of asyncio: calls that do not wait, and between them the loop's own wait."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Generator
from typing import Any

# Descriptors for which a task waits just now.
_awaited: set[int] = set()


async def when_ready(end: Any, call: Callable[[int], Any]) -> Any:
    """``call(0)`` as soon as it finds something. Nothing is awaited once it has, so no cancellation can lose it."""
    while True:
        try:
            return call(0)
        except queue.Empty:
            await readable(end)


async def by_and_by(end: Any, steps: Generator[int, None, None]) -> None:
    """Run ``steps`` to the end, each when there is room. Cancelled, it closes them, which takes back what is half
    done."""
    end.fileno()  # before its first step, in the middle of which it is for nobody else
    try:
        for _ in steps:
            await readable(end)
    finally:
        steps.close()


async def readable(end: Any) -> None:
    """Until the end's descriptor is readable."""
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
