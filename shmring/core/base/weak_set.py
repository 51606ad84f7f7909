"""A set that does not keep its objects alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakSet(Generic[T]):
    """As `weakref.WeakSet`, but safe where other threads, signal handlers and finalizers are.

    A loop goes over a copy that is made in one step, so anything may be added meanwhile. An object that dies leaves
    without any Python code, in which the exception of a signal handler (Ctrl-C) would be lost.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def add(self, thing: T) -> None:
        self._references.add(weakref.ref(thing, self._references.discard))

    def discard(self, thing: T) -> None:
        self._references.discard(weakref.ref(thing))

    def __iter__(self) -> Iterator[T]:
        return iter([thing for thing in [reference() for reference in list(self._references)] if thing is not None])
