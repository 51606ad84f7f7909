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
from typing import TYPE_CHECKING, Any

import numpy as np

from shmring.base.timeouts import timeout_ns
from shmring.bootstrap.connect import connect
from shmring.collective.mixin import CommunicatorMixin
from shmring.errors import BrokenError, PeerLostError, RendezvousError, RendezvousTimeoutError
from shmring.memory.sweep import DEATH_GRACE_S, sweep_after

if TYPE_CHECKING:
    from shmring.config import Config


class GroupCalls(CommunicatorMixin):
    """The calls of `shmring.Communicator` that make new communicators."""

    parent_ranks: tuple[int, ...] | None = None
    """The number of each rank in the communicator from which this one was made; None if it was made by `init`."""

    def split(self, color, key=None, *, rendezvous_timeout=300.0, **settings):
        """Make one communicator of each set of ranks that give the same colour.

        Parameters
        ----------
        color : int or None
            Any integer of 64 bits. None: this rank takes part in the split but belongs to no group.
        key : int, optional
            Ranks are numbered in the order of (key, rank in this communicator); by default all keys are equal.
        rendezvous_timeout : float, optional
            Seconds to wait for the group's other ranks to make their segments, 0 or more; None: no limit.
        **settings
            Fields of `shmring.config.Config`, by default those of this communicator. A group takes ``nslots *
            slot_nbytes`` of shared memory per rank, 2 MiB by default; use less for many groups at a time.

        Returns
        -------
        Communicator or None
            None where ``color`` is None.

        Raises
        ------
        TypeError, ValueError
            A bad argument. Nothing was sent; this communicator stays usable.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            As in `all_reduce`, from the collective that exchanges colours: this communicator is broken.
        PeerLostError, RendezvousTimeoutError, RendezvousError, OutOfSharedMemoryError, SegmentError
            The group was not made, and nothing of it is left. This communicator is as usable as it was. ``rank`` and
            ``missing`` are ranks of this communicator.

        Notes
        -----
        Collective. One `all_gather` of 24 bytes, then some milliseconds for memory and rendezvous. From then on the
        group is independent of this communicator: either may be closed first.
        """
        config, limit_s = self._checked(rendezvous_timeout, settings)
        found = split_members(self, color, key)
        return None if found is None else self._make_group(f"split.{found[0]}", found[1], config, limit_s)

    def subgroup(self, ranks, *, rendezvous_timeout=300.0, **settings):
        """Make a communicator of some ranks. Only they call.

        Parameters
        ----------
        ranks : iterable of int
            Ranks of this communicator, each once, including this one. All members give the same ranks in the same
            order; the position becomes the rank in the group. Groups may overlap.
        rendezvous_timeout, **settings
            As in `split`.

        Returns
        -------
        Communicator

        Raises
        ------
        TypeError, ValueError
            A bad argument. This communicator stays usable.
        BrokenError
            This communicator was broken before.
        PeerLostError, RendezvousTimeoutError, RendezvousError, OutOfSharedMemoryError, SegmentError
            As in `split`: the group was not made and this communicator is as usable as it was.

        Notes
        -----
        Sends nothing in this communicator, so other threads may use it meanwhile. One thread at a time for the same
        ranks. Blocks until the other members have called. For a group of all ranks in their order, see `dup`.
        """
        config, limit_s = self._checked(rendezvous_timeout, settings)
        members = [operator.index(r) for r in ranks]
        wrong = [r for r in members if not 0 <= r < self.size]
        if wrong:
            raise ValueError(f"ranks={members}: {wrong[0]} is not a rank, from 0 to {self.size - 1}")
        if len(set(members)) < len(members):
            raise ValueError(f"ranks={members}: a rank may be listed only once")
        if self.rank not in members:
            raise ValueError(f"ranks={members}: this rank, {self.rank}, is not among them; only the listed ranks call")
        return self._make_group("subgroup", members, config, limit_s)

    def dup(self, *, rendezvous_timeout=300.0, **settings):
        """Make a communicator of the same ranks with memory of its own: for a library, or one for each thread.

        Parameters
        ----------
        rendezvous_timeout, **settings
            As in `split`.

        Returns
        -------
        Communicator

        Notes
        -----
        Collective: all ranks call, one thread of each at a time. Raises as `subgroup`.
        """
        return self._make_group("dup", range(self.size), *self._checked(rendezvous_timeout, settings))

    def shrink(self, *, rendezvous_timeout=300.0, **settings):
        """Make a communicator of the surviving ranks, in their old order, to continue after a `BrokenError`.

        Parameters
        ----------
        rendezvous_timeout, **settings
            As in `split`.

        Returns
        -------
        Communicator
            Its ``parent_ranks`` are the old numbers of its ranks.

        Raises
        ------
        TypeError, ValueError
            A bad argument.
        ClosedError
            This communicator was closed here.
        RendezvousTimeoutError
            Ranks that are alive and have not closed this communicator did not call; they are in ``missing``.
        RendezvousError, OutOfSharedMemoryError, SegmentError
            A live rank gave up, or there is no memory. May be called again.

        Notes
        -----
        Called by all ranks that are alive and have not closed this communicator, broken or not. Ranks that die
        meanwhile are left out, too. Survivors are determined from the liveness words in this communicator's segments,
        which are the same for all ranks, and in which a dead rank stays dead. So the ranks need no vote: they meet
        under the name of the set that they see, start again when it gets smaller, and are done when a barrier has shown
        that all of them have met. This communicator stays as it is; close it.
        """
        config, limit_s = self._checked(rendezvous_timeout, settings)
        deadline = None if limit_s is None else time.monotonic() + limit_s
        survivors = self._survivors()
        while True:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                group = self._make_confirmed(survivors, config, left_s)
                if len(survivors) < self.size:
                    self._remove_names()
                return group
            except (BrokenError, RendezvousError) as error:
                before, survivors = survivors, self._survivors_after(survivors, error)
                if survivors == before:
                    raise

    # ---- what the calls share ----

    def _checked(self, rendezvous_timeout: float | None, settings: dict[str, Any]) -> tuple[Config, float | None]:
        """The settings of a new group, and its timeout in seconds, None for no limit; nothing is sent yet."""
        limit_ns = timeout_ns(rendezvous_timeout, "rendezvous_timeout")
        return self.config.changed(**settings), None if limit_ns < 0 else 1e-9 * limit_ns

    def _make_group(
        self,
        what: str,
        members: Sequence[int],
        config: Config,
        rendezvous_timeout: float | None,
        check: Callable[[Iterable[int]], None] | None = None,
    ) -> Any:
        """Meet the other members and make the group. ``check`` is called with the members that have not come yet."""
        if check is None:
            self.engine.check_usable()
            check = self._check_awaited
        try:
            engine = connect(
                f"{self.name.partition('/')[0]}/{self._key()}.{what}.{_listed(members)}",
                members.index(self.rank),
                len(members),
                config,
                rendezvous_timeout,
                name=f"{self.name}/{what}",
                started_as=self.engine.started_as,
                check=lambda missing: check([members[r] for r in missing if r < len(members)]),
            )
        except RendezvousTimeoutError as error:
            missing = tuple(members[r] for r in error.missing if r < len(members))
            raise RendezvousTimeoutError(
                f"{self.name}: {list(missing)} of the ranks {list(members)} of a new group did not come. "
                f"All of them must call, with the same ranks in the same order. ({error})",
                missing,
            ) from None
        except PeerLostError as error:
            self._remove_names()
            if isinstance(error, _MemberLostError):
                raise
            # From the rendezvous, which knows only the numbers in the group.
            raise _lost(self.name, members[error.rank], error.pid) from None
        group: Any = type(self)(engine)
        group.parent_ranks = tuple(members)
        return group

    def _check_awaited(self, missing: Iterable[int]) -> None:
        """Raise if a missing member is gone, or the parent is broken. The rendezvous checks those that have come."""
        gone = self.engine.gone_ranks()  # read first: a rank that aborts and then closes must be reported as aborting
        try:
            self.engine.check_usable()
        except PeerLostError as error:
            raise _MemberLostError(str(error), error.rank, error.pid) from None
        for r in missing:
            if r in gone:
                raise _lost(self.name, r)

    def _make_confirmed(self, survivors: list[int], config: Config, rendezvous_timeout: float | None) -> Any:
        """Make a group of exactly these ranks, on all of them or on none."""

        def check(missing: Iterable[int]) -> None:
            for r in self.engine.gone_ranks():
                if r in survivors:
                    raise _lost(self.name, r)

        group = self._make_group("shrink", survivors, config, rendezvous_timeout, check)
        try:
            # A rank may have left the rendezvous because of a death just as others found it complete. That rank does
            # not call the barrier. If one rank returns from the barrier, all have called it, so all return from it.
            group.barrier(timeout=rendezvous_timeout)
            return group
        except BaseException:
            group.close()
            raise

    def _remove_names(self) -> None:
        """Unlink the names of ranks that died during the rendezvous of any group: no other code does."""
        sweep_after(self.name.partition("/")[0], self.engine.dead_pids())

    def _key(self) -> str:
        """A text that only this communicator's ranks know: equal on all of them, different for every communicator."""
        return hashlib.blake2b(self.engine.nonces, digest_size=12).hexdigest()

    def _survivors(self) -> list[int]:
        gone = self.engine.gone_ranks()
        return [r for r in range(self.size) if r not in gone]

    def _survivors_after(self, before: list[int], error: Exception) -> list[int]:
        """The survivors after a failed attempt; ``before`` if no rank died."""
        grace_until = time.monotonic() + (DEATH_GRACE_S if isinstance(error, PeerLostError) else 0.0)
        while True:
            survivors = self._survivors()
            if survivors != before or time.monotonic() >= grace_until:
                return survivors
            time.sleep(0.001)


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
    """A `PeerLostError` whose rank is one of the parent's."""

    def __reduce__(self) -> tuple:
        return PeerLostError, (str(self), self.rank, self.pid)


def _lost(name: str, rank: int, pid: int = 0) -> PeerLostError:
    return _MemberLostError(f"{name}: rank {rank} died or closed before a new group was made", rank, pid)


def _listed(ranks: Sequence[int]) -> str:
    """A list of ranks as a short text, different for each list."""
    text = ".".join(map(str, ranks))
    return text if len(text) <= 32 else hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
