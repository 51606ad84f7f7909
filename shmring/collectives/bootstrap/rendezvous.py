"""The rendezvous of a group: each rank creates its segment, attaches all others, and unlinks the names.

Every rank passes the same steps, and waits for no rank before its own step 2:

1. create the own segment, prepare it, announce it;
2. look for the others until all are attached, then store the *fingerprint* of all segments that this rank has mapped in
   ``attached``. It is a hash of their nonces, so ranks with equal fingerprints have mapped the very same segments, not
   merely as many (a rank may die here and be restarted under the same name);
3. wait until all fingerprints are equal: the rendezvous is complete, all mappings exist;
4. unlink all names, the own one first. From here on any death, of all ranks at once too, leaves nothing behind.

A rank that gives up before step 3 is complete stores the reason in ``attached``, for the ranks that have it mapped. A
rank that cannot make its segment, mostly for lack of memory, creates a segment of a header alone instead, the *failure
notice* (kind `FAILURE_NOTICE`), and stays until all others have attached it; likewise a rank that cannot map the
others' segments. From then on it maps only headers. So no rank waits for it until the timeout.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from shmring.collectives.observe.account import ranks_text
from shmring.core.base.pace import TICK_S, Pace
from shmring.core.base.timeouts import deadline_after
from shmring.core.memory.header import FAILURE_NOTICE, HEADER_NBYTES, KIND_NAMES, may_be_dead
from shmring.core.memory.reserve import free_nbytes
from shmring.core.memory.segment import OUTBOX, Segment, create, segment_name, try_attach
from shmring.core.placement.numa_policy import Place
from shmring.core.sync.long_waits import WaitNotes
from shmring.errors import (
    OutOfSharedMemoryError,
    PeerLostError,
    RendezvousError,
    RendezvousTimeoutError,
    SegmentError,
    ShmringError,
)

__all__ = ["rendezvous"]

# Values of ``attached`` besides fingerprints, which lie between.
ABSENT = 0  # has not attached all ranks yet
TIMED_OUT = 2**64 - 1  # left: timeout
LEFT = 2**64 - 2  # left: any other error
OUT_OF_MEMORY = 2**64 - 3  # left: lack of memory, of this rank or of another one
GONE = (TIMED_OUT, LEFT, OUT_OF_MEMORY)

# How long ranks that disagree, or have created a failure notice, stay attachable while ranks are missing.
LINGER_S = 5.0

# How long to retry for the one page of a failure notice: ranks that fail at the same time release what they reserved.
NOTICE_RETRY_S = 1.0

# Pauses between looks: short at first, since ranks mostly start together, then about 1 ms. With very many ranks longer,
# so that looking (some system calls per rank) takes at most a twentieth of a processor, but at most 20 ms.
FIRST_PAUSE_S, USUAL_PAUSE_S, LOOKING_SHARE = 50e-6, 1e-3, 1 / 20

# Largest group size taken from a peer's header; used only to find further ranks that should see a disagreement.
MOST_BELIEVED = 4096


def rendezvous(
    *,
    session: str,
    rank: int,
    size: int,
    nbytes: int,
    sparse_nbytes: int = 0,
    huge: bool = False,
    place: Place | None = None,
    kind: int = OUTBOX,
    params: Sequence[int] = (),
    timeout: float | None = 60.0,
    prepare: Callable[[Segment], Callable[[], object] | None] | None = None,
    check: Callable[[list[int]], None] | None = None,
) -> list[Segment]:
    """Meet the other ranks; every rank of the session calls this once, in any order and at any time.

    ``session`` is the key of the group: equal on its ranks, different from all other groups of this user. The arguments
    of the segment that this rank creates are those of `shmring.core.memory.segment.create`; all but ``huge`` and
    ``place`` are equal on all ranks. ``timeout``: seconds to wait for all ranks; 0 looks once, None or infinity has no
    limit. ``prepare`` is called with this rank's segment before any rank can attach it; what it returns, if not None,
    is called before the segment is unmapped should the rendezvous fail. ``check`` is called at each look with the ranks
    not found so far; what it raises ends the rendezvous for this rank. It is for callers that know from an older
    communicator that a missing rank is dead.

    Returns the segments by rank. None of them has a name any more; all are the caller's to close. Blocks, sleeping.
    After any error, Ctrl-C included, this rank leaves nothing behind and `rendezvous` may be called again:

    - `RendezvousTimeoutError`: ranks did not join in time; ``missing`` lists them.
    - `RendezvousError`: ranks disagree about size, kind, nbytes or params (all of them get this error, with each rank's
      values), or a rank left with an error of its own, or could not make its segment.
    - `PeerLostError`: a rank died after this one had found it.
    - `SegmentError`: a live process has the name of this rank, or the file under a rank's name fails a check.
    - `OutOfSharedMemoryError`: no room, for this rank's segment or for another's; the message names the rank.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} is not in 0..size-1 for size={size}")
    deadline = deadline_after(timeout, "rendezvous_timeout")
    own: Segment | None = None
    ranks: _Rendezvous | None = None
    undo = None
    try:  # from before there is a name: a signal handler may raise anywhere
        try:
            own = create(
                segment_name(session, f"r{rank}"),
                nbytes,
                sparse_nbytes=sparse_nbytes,
                huge=huge,
                place=place,
                kind=kind,
                rank=rank,
                size=size,
                params=params,
            )
        except (OutOfSharedMemoryError, SegmentError) as error:
            _announce_failure(session, rank, size, sparse_nbytes, deadline, error)
            raise
        ranks = _Rendezvous(session, own, sparse_nbytes, deadline, check)
        undo = prepare(own) if prepare is not None else None
        own.announce()
        ranks.run()
        return [ranks.present[r] for r in range(size)]
    except BaseException as error:
        if ranks is not None:
            _leave(ranks, error, undo)
        elif own is not None:
            own.close()
        raise


def _leave(ranks: _Rendezvous, error: BaseException, undo: Callable[[], object] | None) -> None:
    """Leave with an error, for the others to see; unlink the own name and unmap everything."""
    if not ranks.is_complete():  # else it must stay complete for all: others see it so
        ranks.store_reason(_reason_to_leave(error))
    try:
        if undo is not None:
            undo()
        if isinstance(error, OutOfSharedMemoryError):
            ranks.stay_attachable()
    finally:
        ranks.leave()


def _announce_failure(
    session: str, rank: int, size: int, sparse_nbytes: int, deadline: float | None, error: ShmringError
) -> None:
    """Join a rendezvous with a failure notice, so that the others raise why this rank cannot take part."""
    if size == 1 or (isinstance(error, SegmentError) and error.errno in (errno.EEXIST, errno.EBUSY)):
        return  # no other rank, or a live process has the name and joins
    latest = time.monotonic() + LINGER_S
    with suppress(ShmringError):  # no room even for that; or all have seen it, or failed themselves
        with _failure_notice(segment_name(session, f"r{rank}"), rank, size, error) as note:
            note.announce()
            _Rendezvous(session, note, sparse_nbytes, latest if deadline is None else min(latest, deadline), None).run()


def _failure_notice(name: str, rank: int, size: int, error: ShmringError) -> Segment:
    """Create a failure notice: a segment of a header alone, whose params have the bytes needed and free."""
    params = (error.needed, max(error.available, 0)) if isinstance(error, OutOfSharedMemoryError) else (0, 0)
    retry_until, pace = time.monotonic() + NOTICE_RETRY_S, Pace()
    while True:
        try:
            return create(name, HEADER_NBYTES, kind=FAILURE_NOTICE, rank=rank, size=size, params=params)
        except OutOfSharedMemoryError:
            if time.monotonic() >= retry_until:
                raise
        pace.pause()


def _reason_to_leave(error: BaseException) -> int:
    """The value of ``attached`` for a rank that leaves with this error."""
    if isinstance(error, RendezvousTimeoutError):
        return TIMED_OUT
    return OUT_OF_MEMORY if isinstance(error, OutOfSharedMemoryError) else LEFT


class _Rendezvous:
    """One rank's view of one rendezvous: the segments that it has attached."""

    def __init__(
        self,
        session: str,
        own: Segment,
        sparse_nbytes: int,
        deadline: float | None,
        check: Callable[[list[int]], None] | None,
    ) -> None:
        self.session = session
        self.own = own
        self.sparse_nbytes = sparse_nbytes
        self.size = own.header.size
        self.deadline = deadline
        self.check = check
        self.header_only = own.header.kind == FAILURE_NOTICE
        self.present = {own.rank: own}
        self.disagreed_at: float | None = None
        self.notes = WaitNotes()

    def run(self) -> None:
        """Look until all ranks have attached all others, then unlink the names."""
        pause_s = FIRST_PAUSE_S
        while True:
            started = time.thread_time()
            self.look_for_missing()
            if self.is_complete():
                break
            self.look_after_others()
            self.check_clock(time.monotonic())
            if self.notes.seconds_to_next() <= 0:
                self.notes.look(f"rank {self.own.rank} is in the rendezvous of {self.session!r}: {self.lateness()[1]}")
            looking_s = time.thread_time() - started
            time.sleep(max(pause_s, min(looking_s / LOOKING_SHARE, TICK_S)))
            pause_s = min(2 * pause_s, USUAL_PAUSE_S)
        self.check_agreement()
        # Starting with the own one, so that ranks that unlink at the same time do not wait for the same name's lock.
        for offset in range(self.size):
            self.present[(self.own.rank + offset) % self.size].unlink()

    def missing(self) -> list[int]:
        """Ranks not found yet, up to the largest size in any header, so that all see a disagreement about it."""
        most = max(segment.header.size for segment in self.present.values())
        return [r for r in range(max(self.size, min(most, MOST_BELIEVED))) if r not in self.present]

    def look_for_missing(self) -> None:
        """Attach the ranks that have announced themselves; store the fingerprint when none is missing."""
        for r in self.missing():
            segment = try_attach(segment_name(self.session, f"r{r}"), rank=r, header_only=self.header_only)
            if segment is not None:
                # Not the sparse end: even a read would allocate its pages, or raise SIGBUS.
                segment.mapping.prefault(0, max(segment.nbytes - self.sparse_nbytes, 0), write=False)
                self.present[r] = segment
                if self.disagreed_at is None and self.disagreements():
                    self.disagreed_at = time.monotonic()
        if self.own.attached == ABSENT and not self.missing():
            self.own.attached = self.fingerprint()

    def fingerprint(self) -> int:
        """A number for the set of segments present, between `ABSENT` and `OUT_OF_MEMORY`."""
        nonces = b"".join(self.present[r].header.nonce for r in sorted(self.present))
        return int.from_bytes(hashlib.blake2b(nonces, digest_size=8).digest(), "little") >> 1 or 1

    def is_complete(self) -> bool:
        """Whether all have attached the same segments."""
        own = self.own.attached
        return own != ABSENT and all(segment.attached == own for segment in self.present.values())

    def look_after_others(self) -> None:
        """Raise if a rank found before has died or left, which none may before all have met, or if `check` does."""
        # Loaded first: if a rank left because of a death, this rank finds that death below, and raises the same error.
        left = [r for r, segment in self.present.items() if segment.attached in GONE]
        if self.check is not None:
            self.check(self.missing())
        for r, segment in self.present.items():
            if segment is self.own or segment.attached in GONE or segment.is_live():
                continue
            # Loaded after the name was tested: a rank that completes the rendezvous unlinks names at once, and a rank
            # that gives up stores the reason before it unlinks its own.
            if self.is_complete():
                return
            # That its name is gone is no proof: another process may have unlinked it. Or it completed the rendezvous,
            # and then another rank left with an error, which the next look finds.
            if segment.attached not in GONE and may_be_dead(segment.mapping):
                segment.unlink()  # perhaps no other rank will
                self.check_agreement()
                pid = segment.header.pid
                raise PeerLostError(f"rank {r} (pid {pid}) died during the rendezvous of {self.session!r}", r, pid)
        for r in left:
            segment = self.present[r]
            self.check_agreement()
            if segment.attached == TIMED_OUT:
                raise self.timeout_error(f"rank {r} reached its timeout")
            if segment.attached == OUT_OF_MEMORY:  # the failing rank left before this one saw its failure notice
                raise self.lack_of_memory(r)
            missing = f"; not found so far: {ranks_text(self.missing())}" if self.missing() else ""
            raise RendezvousError(
                f"rank {r} (pid {segment.header.pid}) left {self.session!r} with an error of its own{missing}"
            )

    def check_clock(self, now: float) -> None:
        """Raise at the deadline, and when a disagreement has been visible for `LINGER_S`."""
        if self.disagreed_at is not None and now >= self.disagreed_at + LINGER_S:
            self.check_agreement()
        if self.deadline is not None and now >= self.deadline:
            self.check_agreement()
            raise self.timeout_error("the timeout is over")

    def timeout_error(self, occasion: str) -> RendezvousTimeoutError:
        """The error that names the ranks that are late."""
        late, text = self.lateness()
        return RendezvousTimeoutError(f"of {self.size} ranks of {self.session!r}, {text} ({occasion})", tuple(late))

    def lateness(self) -> tuple[list[int], str]:
        """The ranks that are late, and what they have not done."""
        late, what = self.missing(), "never came"
        if not late:
            late = [r for r, segment in self.present.items() if segment.attached != self.own.attached]
            what = "did not find all ranks"
        return late, f"{ranks_text(late)} {what}"

    def disagreements(self) -> list[str]:
        """The fields in which the headers present differ, with the ranks of each value."""
        found = []
        for field in ("size", "kind", "nbytes", "params"):
            values: dict[object, list[int]] = {}
            for r in sorted(self.present):
                value = getattr(self.present[r].header, field)
                values.setdefault(KIND_NAMES[value] if field == "kind" else value, []).append(r)
            if len(values) > 1:
                found.append(f"{field} is " + ", ".join(f"{value} on {ranks_text(on)}" for value, on in values.items()))
        return found

    def check_agreement(self) -> None:
        """Raise if the ranks present disagree, or one of them has created a failure notice."""
        if self.disagreed_at is not None:
            self.check_failure_notices()
            raise RendezvousError(f"the ranks of {self.session!r} disagree: {'; '.join(self.disagreements())}")

    def check_failure_notices(self) -> None:
        """Raise if a rank could not make its segment."""
        for r, segment in sorted(self.present.items()):
            if segment.header.kind != FAILURE_NOTICE:
                continue
            needed, available, *_ = segment.header.params
            if not needed:
                raise RendezvousError(
                    f"rank {r} could not make its segment of {self.session!r}; see the error that it raised itself"
                )
            raise OutOfSharedMemoryError(
                f"the ranks of {self.session!r} cannot meet: rank {r} cannot reserve {needed} bytes of shared memory; "
                f"it has {available} bytes free",
                needed,
                available,
            )

    def lack_of_memory(self, r: int) -> OutOfSharedMemoryError:
        """Why rank ``r`` left, as an error."""
        needed, available = self.own.nbytes - self.sparse_nbytes, free_nbytes()
        return OutOfSharedMemoryError(
            f"the ranks of {self.session!r} cannot meet: rank {r} left for lack of memory; each rank needs {needed} "
            f"bytes of shared memory, which has {max(available, 0)} free now",
            needed,
            available,
        )

    def store_reason(self, word: int) -> None:
        """Store a reason for the ranks that have this segment mapped; before its name is unlinked."""
        self.own.attached = word

    def stay_attachable(self) -> None:
        """After the reason is stored, stay until all ranks have attached, or one has created a failure notice."""
        self.header_only = True
        self.own.announce()
        latest, pace = time.monotonic() + LINGER_S, Pace()
        with suppress(ShmringError):
            while self.disagreed_at is None and time.monotonic() < latest:
                self.look_for_missing()
                if not self.missing() and all(s.attached != ABSENT or not s.is_live() for s in self.present.values()):
                    return
                pace.pause()

    def leave(self) -> None:
        """Unlink the own name and unmap everything."""
        for segment in self.present.values():
            with suppress(BufferError):  # the caller still has views of the memory; the last one unmaps it
                segment.close()
