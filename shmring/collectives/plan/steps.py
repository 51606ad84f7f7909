"""The vocabulary of plans: what one rank does in one collective, as data.

A plan has size O(ranks), never O(bytes): repetition is a `Loop` of steps with `Affine` offsets and rounds. A plan
contains no addresses; the engine adds those of buffers and outboxes when it executes the plan.

Rounds are counted from the collective's first. Round ``r`` of a rank lies in the slot ``r % nslots`` of its outbox
(counted from the communicator's first round), so a plan is valid at any point in the life of a communicator.
At the end of a plan the engine publishes and releases all its rounds, so no plan needs to end with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias


class Space(IntEnum):
    """Where bytes are: the input buffer of a rank, its output buffer, or its outbox slot of some round."""

    IN = 0
    OUT = 1
    SLOT = 2


IN, OUT, SLOT = Space.IN, Space.OUT, Space.SLOT

# In `Await.ranks`: all other ranks.
ALL = None


class Affine(NamedTuple):
    """A number that depends on the iteration of the enclosing loop: ``start + i * step`` in iteration ``i``."""

    start: int
    step: int = 0

    def at(self, i: int) -> int:
        """Its value in iteration ``i``."""
        return self.start + i * self.step


ZERO = Affine(0)


class Operand(NamedTuple):
    """The place of some bytes: ``offset`` bytes into a space of a rank; for a SLOT, that of ``round``."""

    space: Space
    rank: int
    offset: Affine
    round: Affine = ZERO


class Touch(NamedTuple):
    """Bytes that a step loads or stores."""

    operand: Operand
    nbytes: int


class Copy(NamedTuple):
    """Copy ``nbytes``. ``dst`` and ``src`` may be the same address (in place), then nothing is done; they never overlap
    otherwise.
    """

    dst: Operand
    src: Operand
    nbytes: int

    @property
    def loads(self) -> list[Touch]:
        """The bytes that the step loads."""
        return [Touch(self.src, self.nbytes)]

    @property
    def stores(self) -> list[Touch]:
        """The bytes that the step stores."""
        return [Touch(self.dst, self.nbytes)]


class Reduce(NamedTuple):
    """Fold ``sources``, in the order given, in registers, and store the result in ``dst`` and in every one of ``also``.

    A destination is one of the sources or overlaps none. Unless ``closes`` is set, the result is a prefix of the fold;
    a later step without ``opens`` takes it as its first source and continues. An element of a prefix has ``wide`` times
    the bytes of an element of the operands, of which ``nbytes`` are folded: 16-bit floats accumulate in float32 and are
    rounded once, by the step that closes the fold.
    """

    dst: Operand
    also: tuple[Operand, ...]
    sources: tuple[Operand, ...]
    nbytes: int
    opens: bool = True
    closes: bool = True
    wide: int = 1

    @property
    def loads(self) -> list[Touch]:
        """The bytes that the step loads."""
        first, *others = self.sources
        nbytes = self.nbytes if self.opens else self.wide * self.nbytes
        return [Touch(first, nbytes), *(Touch(o, self.nbytes) for o in others)]

    @property
    def stores(self) -> list[Touch]:
        """The bytes that the step stores."""
        nbytes = self.nbytes if self.closes else self.wide * self.nbytes
        return [Touch(o, nbytes) for o in (self.dst, *self.also)]


class Claim(NamedTuple):
    """Wait until this rank may overwrite its slots of all rounds up to ``round``: every other rank has consumed the
    rounds that they held before, ``consumed >= round + 1 - nslots``.
    """

    round: Affine


class Publish(NamedTuple):
    """Make the rounds of this rank up to ``round`` visible to the others; rounds without data stay empty.

    Every published round was claimed before, with or without data.
    """

    round: Affine


class Await(NamedTuple):
    """Wait until each of ``ranks`` (`ALL`: all others) has published ``round``; each has a Publish step for it."""

    round: Affine
    ranks: tuple[int, ...] | None = ALL


class Release(NamedTuple):
    """Declare that this rank reads no more of the rounds up to ``round``, so that their slots can be reused.

    Never of the last round: the end of the plan releases it, so an unreleased last round shows that a rank is in the
    call.
    """

    round: Affine


class AwaitRelease(NamedTuple):
    """Wait until all other ranks have released ``round``, in which they replaced what this rank's slot held."""

    round: Affine


Step: TypeAlias = Copy | Reduce | Claim | Publish | Await | Release | AwaitRelease


class Loop(NamedTuple):
    """``steps`` repeated ``times`` times, with ``i = 0, 1, ...`` in their affine numbers."""

    times: int
    steps: tuple[Step, ...]


class Plan(NamedTuple):
    """The schedule of one collective on one rank.

    Attributes
    ----------
    kind, algorithm : str
        The collective, and the name of the algorithm.
    rank, size : int
        The rank that executes this schedule, and the number of ranks.
    rounds : int
        Number of rounds of the collective, the same on all ranks.
    used_nbytes : int
        Most bytes of a slot that any rank uses, the same on all ranks.
    loops : tuple of Loop
        Executed one after the other.
    in_place : int or None
        The address of IN minus the address of OUT when the caller works in place; None if there is no such form
        (for instance because only one of the two buffers exists on this rank).
    zero_copy : bool
        Whether the plan loads or stores buffers of other ranks (shared arrays), not only their slots.
    """

    kind: str
    algorithm: str
    rank: int
    size: int
    rounds: int
    used_nbytes: int
    loops: tuple[Loop, ...]
    in_place: int | None = 0
    zero_copy: bool = False

    def __str__(self) -> str:
        return describe(self)


def _number(a: Affine) -> str:
    if not a.step:
        return str(a.start)
    return f"{a.start}+{a.step if a.step != 1 else ''}i"


def _operand(o: Operand) -> str:
    if o.space is SLOT:
        return f"slot of {o.rank} in round {_number(o.round)} [{_number(o.offset)}]"
    return f"{o.space.name.lower()} of {o.rank} [{_number(o.offset)}]"


def _operands(operands: Sequence[Operand]) -> str:
    return ", ".join(map(_operand, operands))


def _step(s: Step) -> str:
    match s:
        case Copy():
            return f"copy    {s.nbytes} bytes: {_operand(s.dst)} <- {_operand(s.src)}"
        case Reduce():
            verb = "reduce" if s.closes and s.opens else "close" if s.closes else "open" if s.opens else "carry"
            return f"{verb:7} {s.nbytes} bytes: {_operands((s.dst, *s.also))} <- {_operands(s.sources)}"
        case Await():
            ranks = "all others" if s.ranks is ALL else ", ".join(map(str, s.ranks))
            return f"await   round {_number(s.round)} of {ranks}"
        case AwaitRelease():
            return f"await   release of round {_number(s.round)} by all others"
    return f"{type(s).__name__.lower():7} round {_number(s.round)}"


def describe(plan: Plan) -> str:
    """The plan as text; offsets are in brackets, ``i`` is the iteration."""
    lines = [f"{plan.kind}, {plan.algorithm}: rank {plan.rank} of {plan.size}, {plan.rounds} rounds"]
    for loop in plan.loops:
        lines.append("  once" if loop.times == 1 else f"  {loop.times} times, i = 0..{loop.times - 1}")
        lines += [f"    {_step(s)}" for s in loop.steps]
    return "\n".join(lines)
