"""A look at the outbox of a rank from outside, while the rank is at work: a copy of two pages, of which nothing is
trusted. The counters in it were copied one after the other, so between them the rank may have moved on.
"""

from typing import NamedTuple

from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from shmring.core.c.layout cimport (SHMRING_HEADER_NBYTES, SHMRING_NSLOTS_MAX, SHMRING_PLACE_NBYTES, shmring_abort,
                                shmring_header, shmring_outbox)
from shmring.collectives.engine.engine cimport record_of
from shmring.collectives.engine.outbox cimport control_nbytes
from shmring.collectives.engine.signature cimport kept_signature, root_of, short_signature
from shmring.core.sync.abort cimport WRITTEN
from shmring.core.sync.group cimport CONSUMED
from shmring.core.sync.liveness cimport DEAD, liveness_state
from shmring.core.sync.wait_graph cimport awaited_counter, awaited_number, awaited_rank

from shmring.collectives.engine.abort_errors import Record
from shmring.collectives.engine.kinds import explain
from shmring.core.memory.header import OUTBOX, unpack

LOOK_NBYTES = control_nbytes()


class Wait(NamedTuple):
    """A wait for a counter of one rank, or of every rank if ``rank`` is -1."""

    counter: str
    rank: int
    need: int


class OutboxLook(NamedTuple):
    """A rank as it was found. Times are nanoseconds of CLOCK_MONOTONIC, signatures are texts.

    Attributes
    ----------
    header : Header
    attached : int
        The fingerprint of its group, or what else the rendezvous has stored (collectives/bootstrap/rendezvous.py).
    is_dead, has_left : bool
    published, consumed : int
        Its counters of rounds.
    current : str
        The collective it is in; empty outside.
    calls, nbytes : int
        Collectives begun, and bytes of the arrays in them.
    wait : Wait or None
        Its last long wait, which may be over: see `shmring.collectives.observe.account`.
    waiting_since : int
    is_asleep : bool
        Whether a thread of the rank sleeps now.
    waited_ns : int
        Sum of its waits that are over.
    message : str
        The message call that sleeps; empty if none does.
    message_peer : int
        The rank on the other side of it; -1: any.
    message_since : int
    place, message_place : str
        The lines of Python that made those calls; empty before they have waited for a tick.
    last_calls : tuple of str
        The last collectives that it has published rounds of, the newest first.
    barrier_us : float
        Time of a barrier right after the rendezvous, measured by this rank; 0 where ranks take turns on processors.
    failure : Record or None
        The abort record (without a pid); only that of rank 0 counts.
    """

    header: object
    attached: int
    is_dead: bool
    has_left: bool
    published: int
    consumed: int
    current: str
    calls: int
    nbytes: int
    wait: Wait | None
    waiting_since: int
    is_asleep: bool
    waited_ns: int
    message: str
    message_peer: int
    message_since: int
    place: str
    message_place: str
    last_calls: tuple
    barrier_us: float
    failure: Record | None


cdef str text_of(const char *text, Py_ssize_t nbytes):
    """A text that another process stored, without the characters that a terminal takes for commands."""
    found = text[:nbytes].partition(b"\0")[0].decode("utf-8", "replace")
    return "".join([c if c.isprintable() else "?" for c in found])


cdef tuple last_calls_of(shmring_outbox *box, uint64_t nslots):
    """The calls with signatures that the control area still has; each once, as all its rounds have the same history."""
    cdef uint64_t round = box.published, looks = 0, slot, signature, last = 0
    cdef list found = []
    if nslots == 0 or nslots > SHMRING_NSLOTS_MAX or nslots & (nslots - 1):
        return ()
    while round > 0 and looks < nslots:
        round -= 1
        looks += 1
        slot = round & (nslots - 1)
        signature = box.full_signature[slot]
        if kept_signature(box, <int> slot) != short_signature(signature ^ box.history[slot], round):
            continue      # published without having been written: a root's turn
        if not found or box.history[slot] != last:
            found.append(explain(signature))
        last = box.history[slot]
    return tuple(found)


def look(bytes pages not None):
    """Look at a copy of the first two pages of a segment.

    Parameters
    ----------
    pages : bytes
        `LOOK_NBYTES` of them.

    Returns
    -------
    OutboxLook or None
        None if this is no announced outbox of this layout version.
    """
    cdef shmring_header header
    cdef shmring_outbox box
    cdef object facts = unpack(pages) if len(pages) >= LOOK_NBYTES else None
    if facts is None or facts.kind != OUTBOX or not 0 <= facts.rank < facts.size:
        return None
    memcpy(&header, <const char *> pages, sizeof(header))
    memcpy(&box, <const char *> pages + SHMRING_HEADER_NBYTES, sizeof(box))
    return OutboxLook(
        facts, header.attached, liveness_state(&header.liveness) == DEAD, box.left != 0, box.published, box.consumed,
        explain(box.current) if box.current else "", box.calls, box.nbytes,
        wait_of(box.last_wait),
        box.waiting_since, box.asleep != 0 or box.pair_queues_asleep != 0, box.waited_ns,
        explain(box.awaiting) if box.awaiting else "", root_of(box.awaiting), box.awaiting_since,
        text_of(box.place.text, SHMRING_PLACE_NBYTES) if box.current and box.place.number == box.calls else "",
        (text_of(box.message_place.text, SHMRING_PLACE_NBYTES)
         if box.awaiting and box.message_place.number == box.awaiting_since else ""),
        last_calls_of(&box, facts.params[0]), box.barrier_ns / 1e3,
        failure_of(&box.abort) if box.abort.state == WRITTEN else None,
    )


cdef object failure_of(shmring_abort *r):
    record = record_of(r, 0)
    reason = "".join([c if c.isprintable() else "?" for c in record.reason])
    return record._replace(reason=reason)


cdef object wait_of(uint64_t word):
    if word == 0:
        return None
    return Wait("consumed" if awaited_counter(word) == CONSUMED else "published", awaited_rank(word),
                awaited_number(word))
