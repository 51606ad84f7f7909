"""The survey: ranks that have just met measure how far apart they are, and tell each other.

The system does not say how long a word takes from one processor to another, and a hypervisor may hide even what the
system knows. So they try: some barriers, as many as there are slots before any counts, since the first in each slot
finds it cold. Single ones tell little, as the last rank to come finds all others there; so rows of them are timed, and
the quickest row counts: what is longer was disturbed. All ranks conclude from the same table.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

from shmring.engine.engine cimport Engine
from shmring._c.layout cimport SHMRING_EAGER_NBYTES
from shmring.engine.signature cimport KIND_ALL_GATHER, KIND_BARRIER, NO_OP, NO_ROOT, OPAQUE, pack_signature
from shmring.engine.eager cimport eager_t
from shmring.sync.backoff cimport now_ns

from shmring.placement.latency_clusters import partner, stages


cdef enum:
    NROWS = 3
    NBARRIERS = 8      # in a row


cdef void open_survey(eager_t *t, Engine e, int kind, size_t nbytes) noexcept:
    memset(t, 0, sizeof(eager_t))
    t.signature = pack_signature(kind, NO_OP, OPAQUE, NO_ROOT, nbytes)
    t.words = b""
    t.nbytes = t.part_nbytes = t.stride = nbytes
    t.last = e.c.group.size


def barrier_ns(Engine e, int64_t timeout_ns):
    """Nanoseconds of a barrier, as this rank saw it. Collective; raises what a barrier raises."""
    cdef int64_t least
    e.enter()
    try:
        row_of_barriers_ns(e, e.c.nslots, timeout_ns)
        least = row_of_barriers_ns(e, NBARRIERS, timeout_ns)
        for _ in range(NROWS - 1):
            least = min(least, row_of_barriers_ns(e, NBARRIERS, timeout_ns))
    finally:
        e.leave()
    return least / <double> NBARRIERS


cdef int64_t row_of_barriers_ns(Engine e, int n, int64_t timeout_ns) except -1:
    cdef eager_t t
    cdef int64_t started = now_ns()
    open_survey(&t, e, KIND_BARRIER, 0)
    for _ in range(n):
        e.exchange_eager(&t, timeout_ns)
    return now_ns() - started


def partners_ns(Engine e, int64_t timeout_ns):
    """Nanoseconds that a word takes between this rank and each other, by rank; 0 for itself.

    Collective; raises what a barrier raises. Pairs exchange words at the same time as other pairs, a stage after the
    other (`shmring.placement.latency_clusters.partner`); of each pair the quickest row counts. No row has more rounds than there are
    slots after a barrier, so nobody but the partner is waited for.
    """
    cdef int size = e.c.group.size
    cdef int64_t least
    found = [0.0] * size
    e.enter()
    try:
        for stage in range(stages(size)):
            other = partner(e.c.group.rank, stage, size)
            least = -1
            for _ in range(NROWS):
                row_of_barriers_ns(e, 1, timeout_ns)
                took = row_of_pairs_ns(e, -1 if other is None else other, e.c.nslots - 2, timeout_ns)
                least = took if least < 0 else min(least, took)
            if other is not None:
                found[other] = least / <double> (e.c.nslots - 2)
    finally:
        e.leave()
    return found


cdef int64_t row_of_pairs_ns(Engine e, int other, int n, int64_t timeout_ns) except -1:
    """``n`` words to and fro, after one that finds both there; -1: with nobody."""
    cdef eager_t t
    cdef int64_t started = 0
    open_survey(&t, e, KIND_BARRIER, 0)
    t.first = max(other, 0)
    t.last = other + 1
    for i in range(n + 1):
        e.exchange_eager(&t, timeout_ns)
        if i == 0:
            started = now_ns()
    return now_ns() - started


def exchange(Engine e, bytes words, int64_t timeout_ns):
    """What each rank says, by rank; all say equally many bytes. Collective; raises what an all-gather raises."""
    cdef eager_t t
    cdef Py_ssize_t nbytes = len(words)
    if nbytes > SHMRING_EAGER_NBYTES:
        raise ValueError(f"{nbytes} bytes do not fit in an eager of {SHMRING_EAGER_NBYTES}")
    heard = bytearray(max(1, nbytes * e.c.group.size))
    open_survey(&t, e, KIND_ALL_GATHER, nbytes)
    t.words = words
    t.out = heard
    e.enter()
    try:
        e.exchange_eager(&t, timeout_ns)
    finally:
        e.leave()
    return [bytes(heard[rank * nbytes:(rank + 1) * nbytes]) for rank in range(e.c.group.size)]
