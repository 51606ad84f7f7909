"""The steps of a plan: what one rank does in a collective over several nodes, as data.

A step names memory by `Span`: elements of a buffer. ``X`` is the input and ``OUT`` the output, which may be the same
memory; all other buffers belong to the plan. Sends and receives only begin; `Await` waits for what was received, and
`Settle` until everything sent may be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

X, OUT = "x", "out"


class Span(NamedTuple):
    """Elements ``start`` to ``stop`` of a buffer."""

    buffer: str
    start: int
    stop: int

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements."""
        return self.stop - self.start

    def part(self, start: int, count: int) -> Span:
        """``count`` elements from the ``start``-th of this span on."""
        return Span(self.buffer, self.start + start, self.start + start + count)

    def split(self, counts: list[int]) -> list[Span]:
        """Consecutive parts of these lengths."""
        parts, start = [], 0
        for count in counts:
            parts.append(self.part(start, count))
            start += count
        return parts

    def pieces(self, count: int) -> Iterator[Span]:
        """Consecutive parts of ``count`` elements, the last one shorter; one of length 0 if there are none."""
        for start in range(0, self.count, count) if self.count else (0,):
            yield self.part(start, min(count, self.count - start))


class Send(NamedTuple):
    """Begin to send to a rank of another node. Messages of one stream arrive in order."""

    span: Span
    peer: int
    stream: int = 0


class Recv(NamedTuple):
    """Begin to receive from a rank of another node."""

    span: Span
    peer: int
    stream: int = 0


class Await(NamedTuple):
    """Wait for the first `Recv` from this peer and of this stream that has not been awaited."""

    peer: int
    stream: int = 0


class Settle(NamedTuple):
    """Wait until what was sent so far may be overwritten, or as much of it as the next ``nmessages``."""

    nmessages: int = 0


class Fold(NamedTuple):
    """Reduce ``sources`` in their order into ``out``, after the partial result ``before``.

    ``total`` is the number of operands of the whole result if this ends it, 0 if ``out`` is a partial result.
    """

    out: Span
    sources: tuple[Span, ...]
    before: Span | None = None
    total: int = 0


class Copy(NamedTuple):
    """Copy elements within the rank."""

    out: Span
    source: Span


class Local(NamedTuple):
    """A collective of the node's ranks in shared memory, by its name in `shmring.Communicator`.

    ``counts`` are elements of each local rank's block, of an all-to-all what each sends to each, [sender * n +
    receiver]; empty: as many for every one. ``is_after``: a rank of the node may be waiting for another node before it.
    """

    call: str
    source: Span | None = None
    out: Span | None = None
    counts: tuple[int, ...] = ()
    root: int = 0
    is_after: bool = False


Step = Send | Recv | Await | Settle | Fold | Copy | Local


class Plan(NamedTuple):
    """The steps of one rank in one collective."""

    algorithm: str
    steps: tuple[Step, ...]
    temps: dict[str, int]
    """Elements of each buffer beside X and OUT."""
    partials: frozenset[str]
    """The buffers that hold partial results, which may have larger elements."""
