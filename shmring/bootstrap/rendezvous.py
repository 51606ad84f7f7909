"""How the ranks of a group find each other: each creates its segment, attaches all others, and the names go.

Every rank passes the same stations, and nobody waits for a rank to pass one before itself:

1. create the own segment, prepare it, announce it;
2. look for the others until all are attached, then say so: ``attached`` becomes the *fingerprint* of all segments this
   rank has mapped. It is a hash of their nonces, so ranks with equal fingerprints have mapped the very same segments,
   not merely as many (a rank may die here and be started anew under the same name);
3. wait until everybody's fingerprint is one's own: the rendezvous is complete, all mappings stand;
4. take all names away, one's own first. From here on any death, of all ranks at once too, leaves nothing.

A rank that gives up before the third says so in the same word, for those who have it mapped already. One that cannot
make its segment, for want of memory above all, comes with a header alone, its *regrets*, and stays until all have seen
them; likewise one that cannot map the others' segments. It maps no more than headers then. So nobody waits for it in
vain.
"""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from shmring.errors import (
    RendezvousError,
    RendezvousTimeoutError,
    OutOfSharedMemoryError,
    PeerLostError,
    SegmentError,
    ShmringError,
)
from shmring.memory.header import HEADER_NBYTES, KIND_NAMES, REGRETS
from shmring.memory.reserve import free_nbytes
from shmring.memory.segment import OUTBOX, Segment, create, segment_name, try_attach
from shmring.placement.numa_policy import Place

__all__ = ["meet"]

# Values of ``attached`` besides fingerprints, which lie between.
ABSENT = 0  # has not attached everybody yet
TIRED = 2**64 - 1  # left: ran out of time
LEFT = 2**64 - 2  # left: any other error
CRAMPED = 2**64 - 3  # left: lack of memory, as this rank found or was told
GONE = (TIRED, LEFT, CRAMPED)

# How long ranks that disagree, or send regrets, stay for others to see it, before they raise: as long as it takes if
# nobody is missing.
LINGER_S = 5.0

# How long to try for the one page of regrets: ranks that fail at the same time give back what they could reserve.
REGRETS_PATIENCE_S = 1.0

# Pauses between looks: short at first, since ranks mostly start together, then about 1 ms. With very many ranks longer,
# so that looking (some system calls per rank) takes a twentieth of a processor at most, but never sluggish.
FIRST_PAUSE_S, USUAL_PAUSE_S, LONGEST_PAUSE_S, LOOKING_SHARE = 50e-6, 1e-3, 20e-3, 1 / 20

# A header's word for its group's size is believed up to here, and only to know whom else to tell of a disagreement.
MOST_BELIEVED = 4096


def meet(
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

    Parameters
    ----------
    session : str
        What the ranks of one group share and nobody else has.
    rank, size : int
        Who this is, and of how many.
    nbytes, sparse_nbytes, kind, params
        Of the segment this rank creates, see `shmring.memory.segment.create`; equal on all ranks.
    huge, place
        The same, but each rank's own affair.
    timeout : float, optional
        Seconds to wait for everybody; 0 looks once, None waits for ever.
    prepare : callable, optional
        Called with this rank's segment before anybody can attach it. What it returns, if not None, is called before
        the segment is unmapped should the rendezvous fail.
    check : callable, optional
        Called at each look with the ranks not found so far; what it raises ends the rendezvous for this rank. For those
        who know better than to wait: that a rank which never came is dead, only somebody who knew it before can tell.

    Returns
    -------
    list of Segment
        Index is rank. None of them has a name any more; all are the caller's to close.

    Raises
    ------
    RendezvousTimeoutError
        Ranks never came; ``missing`` has them.
    RendezvousError
        Ranks disagree about size, kind, nbytes or params (all of them get this error and see who said what), or a
        rank left with an error of its own, or could not make its segment.
    PeerLostError
        A rank died after this one had found it.
    SegmentError
        The name of this rank is taken by a live process, or what stands under a rank's name is not to be trusted.
    OutOfSharedMemoryError
        No room, for this rank's segment or for another's; the message says whose, or who left for it.

    Notes
    -----
    After any error, Ctrl-C included, nothing of this rank is left and `meet` may be called again. Blocks, sleeping.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank={rank} is not in 0..size-1 for size={size}")
    deadline = None if timeout is None else time.monotonic() + timeout
    name = segment_name(session, f"r{rank}")
    try:
        own = create(
            name,
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
        _send_regrets(session, rank, size, sparse_nbytes, deadline, error)
        raise
    rendezvous = _Rendezvous(session, own, sparse_nbytes, deadline, check)
    undo = None
    try:
        undo = prepare(own) if prepare is not None else None
        own.announce()
        rendezvous.run()
        return [rendezvous.present[r] for r in range(size)]
    except BaseException as error:
        if not rendezvous.is_complete():  # else others may have seen it so, and all must: they find this rank gone
            rendezvous.say(_farewell(error))
        try:
            if undo is not None:
                undo()
            if isinstance(error, OutOfSharedMemoryError):
                rendezvous.be_seen()
        finally:
            rendezvous.leave()
        raise


def _send_regrets(
    session: str, rank: int, size: int, sparse_nbytes: int, deadline: float | None, error: ShmringError
) -> None:
    """Come to a rendezvous only to tell the others why this rank cannot come."""
    if size == 1 or (isinstance(error, SegmentError) and error.errno in (errno.EEXIST, errno.EBUSY)):
        return  # nobody to tell, or a living process has the name, and comes
    latest = time.monotonic() + LINGER_S
    with suppress(ShmringError):  # not even room for that; or the others have heard it, or trouble of their own
        with _regrets(segment_name(session, f"r{rank}"), rank, size, error) as note:
            note.announce()
            _Rendezvous(session, note, sparse_nbytes, min(latest, deadline or latest), None).run()


def _regrets(name: str, rank: int, size: int, error: ShmringError) -> Segment:
    """A header alone, that says why there is no more."""
    params = (error.needed, max(error.available, 0)) if isinstance(error, OutOfSharedMemoryError) else (0, 0)
    patience_until = time.monotonic() + REGRETS_PATIENCE_S
    while True:
        try:
            return create(name, HEADER_NBYTES, kind=REGRETS, rank=rank, size=size, params=params)
        except OutOfSharedMemoryError:
            if time.monotonic() >= patience_until:
                raise
        time.sleep(0.01)


def _farewell(error: BaseException) -> int:
    """What a rank that leaves with this error tells those who have its segment."""
    if isinstance(error, RendezvousTimeoutError):
        return TIRED
    return CRAMPED if isinstance(error, OutOfSharedMemoryError) else LEFT


class _Rendezvous:
    """One rank's view of one rendezvous: whom it has found."""

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
        self.header_only = own.header.kind == REGRETS
        self.present = {own.rank: own}
        self.disagreed_at: float | None = None

    def run(self) -> None:
        """Look until everybody is there and has everybody, then take the names away."""
        pause_s = FIRST_PAUSE_S
        while True:
            started = time.thread_time()
            self.look_for_missing()
            if self.is_complete():
                break
            if self.check is not None:  # before looking who has left: it may know the reason
                self.check(self.missing())
            self.look_after_present()
            self.check_clock(time.monotonic())
            looking_s = time.thread_time() - started
            time.sleep(max(pause_s, min(looking_s / LOOKING_SHARE, LONGEST_PAUSE_S)))
            pause_s = min(2 * pause_s, USUAL_PAUSE_S)
        self.check_agreement()
        # From the own one on: ranks that do this at the same time do not queue for the same name.
        for offset in range(self.size):
            self.present[(self.own.rank + offset) % self.size].unlink()

    def missing(self) -> list[int]:
        """Ranks not found yet; of the largest group anybody speaks of, so that all see a disagreement about size."""
        most = max(segment.header.size for segment in self.present.values())
        return [r for r in range(max(self.size, min(most, MOST_BELIEVED))) if r not in self.present]

    def look_for_missing(self) -> None:
        """Attach whoever has come; say so when nobody is missing."""
        for r in self.missing():
            segment = try_attach(segment_name(self.session, f"r{r}"), rank=r, header_only=self.header_only)
            if segment is not None:
                # Not beyond: even a read would give sparse pages their memory, or be a SIGBUS.
                segment.mapping.prefault(0, max(segment.nbytes - self.sparse_nbytes, 0), write=False)
                self.present[r] = segment
                if self.disagreed_at is None and self.disagreements():
                    self.disagreed_at = time.monotonic()
        if self.own.attached == ABSENT and not self.missing():
            self.own.attached = self.fingerprint()

    def fingerprint(self) -> int:
        """A number for the set of segments present, between `ABSENT` and `CRAMPED`."""
        nonces = b"".join(self.present[r].header.nonce for r in sorted(self.present))
        return int.from_bytes(hashlib.blake2b(nonces, digest_size=8).digest(), "little") >> 1 or 1

    def is_complete(self) -> bool:
        """Whether all have attached the same segments."""
        said = self.own.attached
        return said != ABSENT and all(segment.attached == said for segment in self.present.values())

    def look_after_present(self) -> None:
        """Raise if somebody found before is gone: until the rendezvous is complete, nobody may go."""
        for r, segment in self.present.items():
            if segment is self.own or segment.attached in GONE or segment.is_live():
                continue
            # Looked at after the name: whoever completes the rendezvous takes names away at once, and who gives up says
            # so before his own goes.
            if self.is_complete():
                return
            if segment.attached not in GONE:
                segment.unlink()  # nobody else may come by to do it
                self.check_agreement()
                pid = segment.header.pid
                raise PeerLostError(f"rank {r} (pid {pid}) died while {self.session!r} was rendezvous", r, pid)
        for r, segment in self.present.items():
            if segment.attached in GONE:
                self.check_agreement()
                if segment.attached == TIRED:
                    raise self.timeout_error(f"rank {r} has run out of time")
                if segment.attached == CRAMPED:  # the rank that could not come has left before this one saw its regrets
                    raise self.lack_of_memory(r)
                missing = f"; not found so far: {_ranks(self.missing())}" if self.missing() else ""
                raise RendezvousError(
                    f"rank {r} (pid {segment.header.pid}) left {self.session!r} with an error of its own{missing}"
                )

    def check_clock(self, now: float) -> None:
        """Raise if there is nothing left to wait for."""
        if self.disagreed_at is not None and now >= self.disagreed_at + LINGER_S:
            self.check_agreement()
        if self.deadline is not None and now >= self.deadline:
            self.check_agreement()
            raise self.timeout_error("the timeout is over")

    def timeout_error(self, occasion: str) -> RendezvousTimeoutError:
        """Who is late, as an error."""
        late, what = self.missing(), "never came"
        if not late:
            late = [r for r, segment in self.present.items() if segment.attached != self.own.attached]
            what = "did not find everybody"
        return RendezvousTimeoutError(
            f"of {self.size} ranks of {self.session!r}, {_ranks(late)} {what} ({occasion})", tuple(late)
        )

    def disagreements(self) -> list[str]:
        """What the ranks present do not agree about, and who says what."""
        found = []
        for field in ("size", "kind", "nbytes", "params"):
            said: dict[object, list[int]] = {}
            for r in sorted(self.present):
                value = getattr(self.present[r].header, field)
                said.setdefault(KIND_NAMES[value] if field == "kind" else value, []).append(r)
            if len(said) > 1:
                found.append(f"{field} is " + ", ".join(f"{value} on {_ranks(who)}" for value, who in said.items()))
        return found

    def check_agreement(self) -> None:
        """Raise if the ranks present disagree, or one of them cannot come."""
        if self.disagreed_at is not None:
            self.check_regrets()
            raise RendezvousError(f"the ranks of {self.session!r} disagree: {'; '.join(self.disagreements())}")

    def check_regrets(self) -> None:
        """Raise if a rank could not make its segment."""
        for r, segment in sorted(self.present.items()):
            if segment.header.kind != REGRETS:
                continue
            needed, available, *_ = segment.header.params
            if not needed:
                raise RendezvousError(f"rank {r} could not make its segment of {self.session!r}; its own error says why")
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

    def say(self, word: int) -> None:
        """Tell those who have this rank's segment mapped; before the name goes, see `look_after_present`."""
        self.own.attached = word

    def be_seen(self) -> None:
        """After `say`, stay until all who come have seen it, unless all know that somebody cannot come."""
        self.header_only = True
        self.own.announce()
        latest = time.monotonic() + LINGER_S
        with suppress(ShmringError):
            while self.disagreed_at is None and time.monotonic() < latest:
                self.look_for_missing()
                if not self.missing() and all(s.attached != ABSENT or not s.is_live() for s in self.present.values()):
                    return
                time.sleep(USUAL_PAUSE_S)

    def leave(self) -> None:
        """Take the own name away and unmap everything."""
        for segment in self.present.values():
            with suppress(BufferError):  # the caller looks at the memory still; it goes with his last view
                segment.close()


def _ranks(ranks: Sequence[int]) -> str:
    """``rank 2`` or ``ranks 0-3, 7``."""
    spans: list[list[int]] = []
    for r in sorted(ranks):
        if spans and spans[-1][1] == r - 1:
            spans[-1][1] = r
        else:
            spans.append([r, r])
    text = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'' if len(ranks) == 1 else 's'} {text}"
