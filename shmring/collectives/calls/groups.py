"""Communicators of some of a communicator's ranks: by colour, by list, of all ranks again, of the surviving ranks.

A group is made like the first communicator: by a rendezvous of its ranks under a name in shared memory. The name is a
hash of values that only the ranks of this parent know (the nonces of its segments) and of the list of members. So it
needs no agreement and no counter: groups that are made at the same time, by different threads, or in different orders
have different names.
"""

from __future__ import annotations

import hashlib
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shmring.collectives.bootstrap.connect import connect
from shmring.core.base.pace import Pace
from shmring.core.base.timeouts import timeout_ns
from shmring.core.memory.sweep import DEATH_GRACE_S, sweep_after
from shmring.errors import BrokenError, PeerLostError, RendezvousError, RendezvousTimeoutError

if TYPE_CHECKING:
    from shmring.config import Config


def split(comm: Any, color, key, rendezvous_timeout: float | None, settings: dict[str, Any]) -> Any:
    """See `Communicator.split`."""
    config, limit_s = _checked(comm, rendezvous_timeout, settings)
    found = split_members(comm, color, key)
    return None if found is None else _make_group(comm, f"split.{found[0]}", found[1], config, limit_s)


def subgroup(comm: Any, ranks, rendezvous_timeout: float | None, settings: dict[str, Any]) -> Any:
    """See `Communicator.subgroup`."""
    config, limit_s = _checked(comm, rendezvous_timeout, settings)
    return _make_group(comm, "subgroup", checked_members(comm, ranks), config, limit_s)


def checked_members(comm: Any, ranks) -> list[int]:
    """The ranks of a new group, as this one of them gives them; raises if they are not."""
    members = [operator.index(r) for r in ranks]
    wrong = [r for r in members if not 0 <= r < comm.size]
    if wrong:
        raise ValueError(f"ranks={members}: {wrong[0]} is not a rank, from 0 to {comm.size - 1}")
    if len(set(members)) < len(members):
        raise ValueError(f"ranks={members}: a rank may be listed only once")
    if comm.rank not in members:
        raise ValueError(f"ranks={members}: this rank, {comm.rank}, is not among them; only the listed ranks call")
    return members


def dup(comm: Any, rendezvous_timeout: float | None, settings: dict[str, Any]) -> Any:
    """See `Communicator.dup`."""
    return _make_group(comm, "dup", range(comm.size), *_checked(comm, rendezvous_timeout, settings))


def shrink(comm: Any, rendezvous_timeout: float | None, settings: dict[str, Any]) -> Any:
    """See `Communicator.shrink`."""
    config, limit_s = _checked(comm, rendezvous_timeout, settings)
    deadline = None if limit_s is None else time.monotonic() + limit_s
    survivors = _survivors(comm)
    while True:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            group = _make_confirmed(comm, survivors, config, left_s)
            if len(survivors) < comm.size:
                _remove_names(comm)
            return group
        except (BrokenError, RendezvousError) as error:
            before, survivors = survivors, _survivors_after(comm, survivors, error)
            if survivors == before:
                raise


# ---- what the calls share -------------------------------------------------------------------------------------------


def _checked(comm: Any, rendezvous_timeout: float | None, settings: dict[str, Any]) -> tuple[Config, float | None]:
    """The settings of a new group, and its timeout in seconds, None for no limit; nothing is sent yet."""
    limit_ns = timeout_ns(rendezvous_timeout, "rendezvous_timeout")
    return comm.config.changed(**settings), None if limit_ns < 0 else 1e-9 * limit_ns


def _make_group(
    comm: Any,
    what: str,
    members: Sequence[int],
    config: Config,
    rendezvous_timeout: float | None,
    check: Callable[[Iterable[int]], None] | None = None,
) -> Any:
    """Meet the other members and make the group. ``check`` is called with the members that have not come yet."""
    if comm.nodes is not None:
        comm._engine.check_usable()
        return comm.make_group(members, config, rendezvous_timeout)
    if check is None:
        comm._engine.check_usable()
        check = partial(_check_awaited, comm)
    try:
        engine = connect(
            f"{comm.name.partition('/')[0]}/{_key(comm)}.{what}.{_listed(members)}",
            members.index(comm.rank),
            len(members),
            config,
            rendezvous_timeout,
            name=f"{comm.name}/{what}",
            check=lambda missing: check([members[r] for r in missing if r < len(members)]),
        )
    except RendezvousTimeoutError as error:
        missing = tuple(members[r] for r in error.missing if r < len(members))
        raise RendezvousTimeoutError(
            f"{comm.name}: {list(missing)} of the ranks {list(members)} of a new group did not come. "
            f"All of them must call, with the same ranks in the same order. ({error})",
            missing,
        ) from None
    except PeerLostError as error:
        _remove_names(comm)
        if isinstance(error, _MemberLostError):
            raise
        # From the rendezvous, which knows only the numbers in the group.
        raise _lost(comm.name, members[error.rank], error.pid) from None
    return type(comm)(engine, tuple(members))


def _check_awaited(comm: Any, missing: Iterable[int]) -> None:
    """Raise if a missing member is gone, or the parent is broken. The rendezvous checks those that have come."""
    gone = comm._engine.gone_ranks()  # read first: a rank that aborts and then closes must be reported as aborting
    try:
        comm._engine.check_usable()
    except PeerLostError as error:
        raise _MemberLostError(str(error), error.rank, error.pid) from None
    for r in missing:
        if r in gone:
            raise _lost(comm.name, r)


def _make_confirmed(comm: Any, survivors: list[int], config: Config, rendezvous_timeout: float | None) -> Any:
    """Make a group of exactly these ranks, on all of them or on none."""

    def check(missing: Iterable[int]) -> None:
        for r in comm._engine.gone_ranks():
            if r in survivors:
                raise _lost(comm.name, r)

    group = _make_group(comm, "shrink", survivors, config, rendezvous_timeout, check)
    try:
        # A rank may have left the rendezvous because of a death just as others found it complete. That rank does
        # not call the barrier. If one rank returns from the barrier, all have called it, so all return from it.
        group.barrier(timeout=rendezvous_timeout)
        return group
    except BaseException:
        group.close()
        raise


def _remove_names(comm: Any) -> None:
    """Unlink the names of ranks that died during the rendezvous of any group: no other code does."""
    sweep_after(comm.name.partition("/")[0], comm._engine.dead_pids())


def _key(comm: Any) -> str:
    """A text that only this communicator's ranks know: equal on all of them, different for every communicator."""
    return hashlib.blake2b(comm._engine.nonces, digest_size=12).hexdigest()


def _survivors(comm: Any) -> list[int]:
    gone = comm._engine.gone_ranks()
    return [r for r in range(comm.size) if r not in gone]


def _survivors_after(comm: Any, before: list[int], error: Exception) -> list[int]:
    """The survivors after a failed attempt; ``before`` if no rank died."""
    pace = Pace()
    grace_until = time.monotonic() + (DEATH_GRACE_S if isinstance(error, PeerLostError) else 0.0)
    while True:
        survivors = _survivors(comm)
        if survivors != before or time.monotonic() >= grace_until:
            return survivors
        pace.pause()


def split_members(comm: Any, color: int | None, key: int | None) -> tuple[int, list[int]] | None:
    """The colour and its ranks, by key and rank; None without a colour. Collective: exchanges both."""
    numbers = [0 if number is None else operator.index(number) for number in (color, key)]
    if not all(-(2**63) <= number < 2**63 for number in numbers):
        raise ValueError(f"color={color}, key={key}: must fit in 64 bits")
    own = np.array([color is not None, *numbers], np.int64)
    colors = comm.all_gather(own)
    if color is None:
        return None
    members = [r for r in range(comm.size) if colors[r, 0] and colors[r, 1] == own[1]]
    return int(own[1]), sorted(members, key=lambda r: (colors[r, 2], r))


class _MemberLostError(PeerLostError):
    """A `PeerLostError` with the rank's number in the parent."""

    def __reduce__(self) -> tuple:
        return PeerLostError, (str(self), self.rank, self.pid)


def _lost(name: str, rank: int, pid: int = 0) -> PeerLostError:
    return _MemberLostError(f"{name}: rank {rank} died or closed before a new group was made", rank, pid)


def _listed(ranks: Sequence[int]) -> str:
    """A list of ranks as a short text, different for each list."""
    text = ".".join(map(str, ranks))
    return text if len(text) <= 32 else hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
