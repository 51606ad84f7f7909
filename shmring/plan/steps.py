"""The vocabulary of plans: what one rank does in one collective, as data.

A plan is of size O(ranks), never O(bytes): what repeats is a `Loop` whose steps move by `Affine` numbers. It names no
address; the engine adds those of the buffers and outboxes when it runs the plan, and the simulator those of its own.

Rounds are counted from the collective's first. Round ``r`` of a rank lies in the slot ``r % nslots`` of its outbox
(counted from the communicator's first round), so a plan is right wherever in the life of a communicator it runs.
At the end of a plan the engine publishes and releases all its rounds, so no plan needs to end with that.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias


class Space(IntEnum):
    """Where bytes are: a rank's input buffer, its output buffer, or its outbox slot of some round."""

    IN = 0
    OUT = 1
    SLOT = 2


IN, OUT, SLOT = Space.IN, Space.OUT, Space.SLOT

# In `Await.ranks`: every rank but this one.
ALL = None


class Affine(NamedTuple):
    """A number that moves with the loop around it: ``start + i * step`` in iteration ``i``."""

    start: int
    step: int = 0

    def at(self, i: int) -> int:
        """Its value in iteration ``i``."""
        return self.start + i * self.step


ZERO = Affine(0)


class Operand(NamedTuple):
    """Where some bytes begin: ``offset`` bytes into a space of a rank; ``round`` says which slot, if it is a SLOT."""

    space: Space
    rank: int
    offset: Affine
    round: Affine = ZERO


class Touch(NamedTuple):
    """Bytes that a step loads or stores."""

    operand: Operand
    nbytes: int


class Copy(NamedTuple):
    """Move ``nbytes``. Where ``dst`` and ``src`` turn out to be the same address (in place) there is nothing to do;
    they never overlap otherwise.
    """

    dst: Operand
    src: Operand
    nbytes: int

    @property
    def loads(self) -> list[Touch]:
        """What is loaded."""
        return [Touch(self.src, self.nbytes)]

    @property
    def stores(self) -> list[Touch]:
        """What is stored."""
        return [Touch(self.dst, self.nbytes)]


class Reduce(NamedTuple):
    """Fold ``sources``, in the order given, in registers, and store the result in ``dst`` and in every one of ``also``.

    A destination is one of the sources or overlaps none. Unless ``closes``, the result is a prefix of the fold, which a
    step that does not ``opens`` continues with it as its first source. An element of a prefix has ``wide`` times the
    bytes of one of the operands, of which ``nbytes`` are folded: 16-bit floats accumulate in float32 and are rounded
    once, at the close.
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
        """What is loaded."""
        first, *others = self.sources
        nbytes = self.nbytes if self.opens else self.wide * self.nbytes
        return [Touch(first, nbytes), *(Touch(o, self.nbytes) for o in others)]

    @property
    def stores(self) -> list[Touch]:
        """What is stored."""
        nbytes = self.nbytes if self.closes else self.wide * self.nbytes
        return [Touch(o, nbytes) for o in (self.dst, *self.also)]


class Claim(NamedTuple):
    """Wait until the own slots of all rounds up to ``round`` may be overwritten: every other rank has consumed the
    rounds that lay in them before, ``consumed >= round + 1 - nslots``.
    """

    round: Affine


class Publish(NamedTuple):
    """Say that all this rank says in the rounds up to ``round`` lies in its slots; the skipped ones stay empty.

    Only a claimed round is published, be it one without data.
    """

    round: Affine


class Await(NamedTuple):
    """Wait until each of ``ranks`` (`ALL`: all others) has published ``round``; each of them says something in it."""

    round: Affine
    ranks: tuple[int, ...] | None = ALL


class Release(NamedTuple):
    """Say that this rank reads nothing more of the rounds up to ``round``.

    Never of the last round: the end of the plan releases that, so a rank that has not yet is known to be in the call.
    """

    round: Affine


Step: TypeAlias = Copy | Reduce | Claim | Publish | Await | Release


class Loop(NamedTuple):
    """``steps`` done ``times`` times, with ``i = 0, 1, ...`` in their affine numbers."""

    times: int
    steps: tuple[Step, ...]


class Plan(NamedTuple):
    """The schedule of one collective on one rank.

    Attributes
    ----------
    kind, algorithm : str
        What is computed, and by which of the ways to do so.
    rank, size : int
        Whose schedule this is, among how many.
    rounds : int
        How many rounds the collective takes, the same on all ranks.
    used_nbytes : int
        How much of a slot the ranks use at most, the same on all ranks.
    loops : tuple of Loop
        Run one after the other.
    in_place : int or None
        The address of IN minus the address of OUT when the caller works in place; None if there is no such form
        (for instance because only one of the two buffers exists on this rank).
    zero_copy : bool
        Whether the plan addresses buffers of other ranks (shared arrays), not only their slots.
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
            who = "all others" if s.ranks is ALL else ", ".join(map(str, s.ranks))
            return f"await   round {_number(s.round)} of {who}"
    return f"{type(s).__name__.lower():7} round {_number(s.round)}"


def describe(plan: Plan) -> str:
    """The plan in readable lines; offsets stand in brackets, ``i`` is the iteration."""
    lines = [f"{plan.kind}, {plan.algorithm}: rank {plan.rank} of {plan.size}, {plan.rounds} rounds"]
    for loop in plan.loops:
        lines.append("  once" if loop.times == 1 else f"  {loop.times} times, i = 0..{loop.times - 1}")
        lines += [f"    {_step(s)}" for s in loop.steps]
    return "\n".join(lines)
