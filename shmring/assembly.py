"""How ranks become one group: they meet, and each gets its engine. What `init` and groups of groups share."""

from __future__ import annotations

from collections.abc import Callable

from shmring.config import Config
from shmring.engine import Engine, outbox_nbytes, prepare_outbox, sparse_nbytes
from shmring.meeting import meet
from shmring.segment import OUTBOX, Segment
from shmring.teamwork import declare_means, form_team


def assemble(
    session: str,
    rank: int,
    size: int,
    config: Config,
    meeting_timeout: float | None,
    *,
    name: str | None = None,
    check: Callable[[list[int]], None] | None = None,
) -> Engine:
    """Meet under ``session`` and return the engine of this rank.

    ``name`` is what messages call the group, ``session`` by default; ``check`` and all errors are those of
    `shmring.meeting.meet`, and a `BrokenError` of ranks that then form a team of threads (`shmring.teamwork`).
    """

    def prepare(own: Segment) -> Callable[[], object]:
        declare_means(own.mapping, config)
        return prepare_outbox(own.mapping)

    segments = meet(
        session=session,
        rank=rank,
        size=size,
        kind=OUTBOX,
        nbytes=outbox_nbytes(config, size),
        sparse_nbytes=sparse_nbytes(config, size),
        params=(config.nslots, config.slot_nbytes, config.whisper_limit(size), config.one_shot_nbytes & 2**64 - 1),
        timeout=meeting_timeout,
        prepare=prepare,
        check=check,
    )
    engine = Engine(segments, rank, config, session if name is None else name)
    try:
        form_team(engine, meeting_timeout)
    except BaseException:
        engine.close()
        raise
    return engine
