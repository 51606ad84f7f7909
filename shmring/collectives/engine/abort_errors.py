"""The abort record, which all ranks share, as the error that each of them raises."""

from __future__ import annotations

from typing import NamedTuple

from shmring.collectives.engine.kinds import explain
from shmring.errors import AbortedError, BrokenError, CollectiveTimeoutError, MismatchError, PeerLostError

_CAUSES = ("aborted", "lost", "left", "late", "mismatch", "aborted")


def cause_of(number: int) -> str:
    """The cause of a record, by the number in it (enum shmring_cause in core/c/layout.h), which is not trusted."""
    return _CAUSES[number if number < len(_CAUSES) else 0]


class Record(NamedTuple):
    """The abort record of ``core/c/layout.h``, and the pid of the rank that it is about."""

    cause: str
    by: int
    about: int
    pid: int
    round: int
    mine: int
    theirs: int
    reason: str
    late: tuple[int, ...] = ()
    account: str = ""


def error_of(record: Record, rank: int, name: str) -> BrokenError:
    """The error that rank ``rank`` of communicator ``name`` raises because of ``record``."""
    where = f"{name}: "
    seen = "" if record.by == rank else f" (noticed by rank {record.by})"
    doing = f" in {explain(record.mine)}" if record.mine else ""
    if record.cause == "lost":
        text = f"{where}rank {record.about} (pid {record.pid}) died{doing}{seen}"
        return PeerLostError(text, record.about, record.pid)
    if record.cause == "left":
        text = f"{where}rank {record.about} (pid {record.pid}) closed its communicator; it was needed{doing}{seen}"
        return PeerLostError(text, record.about, record.pid)
    if record.cause == "late":
        busy = f", which is in {explain(record.theirs)}" if record.theirs else ", which is in no call"
        ranks = ", ".join(map(str, record.late))
        text = f"{where}timed out{doing} waiting for rank{'s' if len(record.late) > 1 else ''} {ranks}"
        more = f"\n{record.account}" if record.account else ""
        return CollectiveTimeoutError(f"{text} (rank {record.about}{busy}){seen}{more}", record.late, record.account)
    if record.cause == "mismatch":
        theirs = explain(record.theirs) if record.theirs else "another call"
        text = (
            f"{where}ranks disagree: rank {record.by} called {explain(record.mine)}, "
            f"rank {record.about} called {theirs} (round {record.round})"
        )
        if record.reason:
            text = f"{where}ranks disagree in {explain(record.mine)}: {record.reason}"
        return MismatchError(text, (record.by, record.about))
    text = f"{where}rank {record.by} aborted" + (f": {record.reason}" if record.reason else "")
    return AbortedError(text, record.by)
