"""Calibration: right after the rendezvous the ranks measure the latency between them, and exchange the results.

The system does not know the latency between two processors, and a hypervisor may hide even what it knows. So ranks time
barriers. The first ones, one for each slot, are not timed, as their memory is cold. A single barrier is biased by the
order of arrival, so runs of barriers are timed and the fastest run is used: the others were disturbed. All ranks derive
their settings from the same table.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

from shmring.base.timeouts cimport timeout_to_ns
from shmring.engine.engine cimport Engine
from shmring._c.layout cimport SHMRING_EAGER_NBYTES
from shmring.engine.kinds cimport KIND_ALL_GATHER, KIND_BARRIER
from shmring.engine.signature cimport NO_OP, NO_ROOT, OPAQUE, pack_signature
from shmring.engine.eager cimport eager_t
from shmring.sync.backoff cimport now_ns

from shmring.placement.latency_clusters import partner, stages


cdef enum:
    NRUNS = 3
    NBARRIERS = 8      # in a run


# How long the ranks wait, at least, for one that does not answer right after the rendezvous.
PATIENCE_S = 1.0


def patient_ns(timeout):
    """The timeout of exchanges right after the rendezvous: that of the rendezvous, but at least `PATIENCE_S`."""
    return timeout_to_ns(None if timeout is None else max(timeout, PATIENCE_S))


cdef void open_exchange(eager_t *t, Engine e, int kind, size_t nbytes) noexcept:
    memset(t, 0, sizeof(eager_t))
    t.signature = pack_signature(kind, NO_OP, OPAQUE, NO_ROOT, nbytes)
    t.payload = b""
    t.nbytes = t.part_nbytes = nbytes
    t.last = e.c.group.size


def barrier_ns(Engine e not None, int64_t timeout_ns):
    """Nanoseconds of a barrier, measured by this rank. Collective; raises what a barrier raises."""
    cdef int64_t least
    e.enter()
    try:
        run_of_barriers_ns(e, e.c.nslots, timeout_ns)
        least = run_of_barriers_ns(e, NBARRIERS, timeout_ns)
        for _ in range(NRUNS - 1):
            least = min(least, run_of_barriers_ns(e, NBARRIERS, timeout_ns))
    finally:
        e.leave()
    return least / <double> NBARRIERS


cdef int64_t run_of_barriers_ns(Engine e, int n, int64_t timeout_ns) except -1:
    cdef eager_t t
    cdef int64_t started = now_ns()
    open_exchange(&t, e, KIND_BARRIER, 0)
    for _ in range(n):
        e.exchange_eager(&t, timeout_ns)
    return now_ns() - started


def partners_ns(Engine e not None, int64_t timeout_ns):
    """Nanoseconds of a round trip between this rank and each other, by rank; 0 for itself.

    Collective; raises what a barrier raises. In each stage all pairs measure at the same time
    (`shmring.placement.latency_clusters.partner`); the fastest run of each pair counts. A run has fewer rounds than
    there are slots after a barrier, so a rank waits for its partner only.
    """
    cdef int size = e.c.group.size
    cdef int64_t least
    found = [0.0] * size
    e.enter()
    try:
        for stage in range(stages(size)):
            other = partner(e.c.group.rank, stage, size)
            least = -1
            for _ in range(NRUNS):
                run_of_barriers_ns(e, 1, timeout_ns)
                took = run_of_pairs_ns(e, -1 if other is None else other, e.c.nslots - 2, timeout_ns)
                least = took if least < 0 else min(least, took)
            if other is not None:
                found[other] = least / <double> (e.c.nslots - 2)
    finally:
        e.leave()
    return found


cdef int64_t run_of_pairs_ns(Engine e, int other, int n, int64_t timeout_ns) except -1:
    """``n`` exchanges with ``other``, after one that synchronises the two; -1: no partner in this stage."""
    cdef eager_t t
    cdef int64_t started = 0
    open_exchange(&t, e, KIND_BARRIER, 0)
    t.first = max(other, 0)
    t.last = other + 1
    for i in range(n + 1):
        e.exchange_eager(&t, timeout_ns)
        if i == 0:
            started = now_ns()
    return now_ns() - started


def exchange(Engine e not None, bytes payload not None, int64_t timeout_ns):
    """The payload of each rank, by rank, all of the same size. Collective; raises what an all-gather raises."""
    cdef eager_t t
    cdef Py_ssize_t nbytes = len(payload)
    if nbytes > SHMRING_EAGER_NBYTES:
        raise ValueError(f"{nbytes} bytes do not fit in an eager message of {SHMRING_EAGER_NBYTES}")
    gathered = bytearray(max(1, nbytes * e.c.group.size))
    open_exchange(&t, e, KIND_ALL_GATHER, nbytes)
    t.payload = payload
    t.out = gathered
    e.enter()
    try:
        e.exchange_eager(&t, timeout_ns)
    finally:
        e.leave()
    return [bytes(gathered[rank * nbytes:(rank + 1) * nbytes]) for rank in range(e.c.group.size)]
