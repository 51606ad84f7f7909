"""How ranks become one group: rendezvous, engine, calibration, threads. Used by `init` and by groups of groups."""

from __future__ import annotations

import os
from collections.abc import Callable

from shmring.collectives.bootstrap.calibrate import form_team
from shmring.collectives.bootstrap.dump_signal import install as install_dump_signal
from shmring.collectives.bootstrap.rendezvous import rendezvous
from shmring.collectives.bootstrap.tuning import calibrate
from shmring.collectives.engine.engine import Engine
from shmring.collectives.engine.kinds import check_size
from shmring.collectives.engine.outbox import outbox_nbytes, prepare_outbox, sparse_nbytes
from shmring.collectives.engine.recording import TRACED_CALLS, Trace
from shmring.collectives.observe.account import account_of_copies
from shmring.config import Config
from shmring.core.base.timeouts import timeout_ns
from shmring.core.memory.segment import OUTBOX
from shmring.core.placement.locality import own_seat
from shmring.core.placement.numa_policy import place_by
from shmring.core.placement.topology import second_level_nbytes, shmem_huge_pages
from shmring.errors import BrokenError, RendezvousError


def connect(
    session: str,
    rank: int,
    size: int,
    config: Config,
    rendezvous_timeout: float | None,
    *,
    name: str | None = None,
    check: Callable[[list[int]], None] | None = None,
) -> Engine:
    """Connect the ranks of ``session`` and return the engine of this rank.

    ``name`` is the group's name in error messages, ``session`` by default; ``check`` is that of
    `shmring.collectives.bootstrap.rendezvous.rendezvous`. Raises what that and
    `shmring.collectives.bootstrap.tuning.calibrate` raise, and a ``ValueError`` for too many ranks, or for a placement
    that does not exist.
    """
    check_size(size)
    timeout_ns(rendezvous_timeout, "rendezvous_timeout")
    install_dump_signal()
    seat = own_seat()
    place = place_by(config.placement)
    config = config.settled(second_level_nbytes())
    segments = rendezvous(
        session=session,
        rank=rank,
        size=size,
        kind=OUTBOX,
        nbytes=outbox_nbytes(config, size),
        sparse_nbytes=sparse_nbytes(config, size),
        place=place,
        huge=config.wants_huge_pages(shmem_huge_pages()),
        params=(config.nslots, config.slot_nbytes, config.eager_limit(size)),
        timeout=rendezvous_timeout,
        prepare=lambda segment: prepare_outbox(segment.mapping),
        check=check,
    )
    engine = Engine(segments, rank, config, session if name is None else name, account_of_copies)
    try:
        engine.apply_tuning(calibrate(engine, config, rendezvous_timeout, seat))
        form_team(engine, rendezvous_timeout)
        if directory := os.environ.get("SHMRING_TRACE"):
            engine.record_in(_trace_in(directory, engine))
    except BaseException as error:
        # An abort for errors of this rank only; all ranks find disagreements and deaths by themselves.
        if not isinstance(error, (BrokenError, RendezvousError)) and not engine.is_broken:
            engine.abort(f"{type(error).__name__} right after the rendezvous")
        engine.close()
        raise
    return engine


def _trace_in(directory: str, engine: Engine) -> Trace:
    try:
        return Trace(directory, engine.facts(), TRACED_CALLS)
    except OSError as error:
        text = f"SHMRING_TRACE={directory!r}: timelines cannot be recorded there: {error.strerror}"
        raise type(error)(error.errno, text) from None
