"""The calls right after the rendezvous: the ranks measure the latency between them, exchange results, form their teams.

The system does not know the latency between two processors, and a hypervisor may hide even what it knows. So ranks time
barriers. The first ones, one for each slot, are not timed, as their memory is cold. A single barrier is biased by the
order of arrival, so runs of barriers are timed and the fastest run is used: the others were disturbed. So are copies
through a slot, by each kind of stores. All ranks derive their settings from the same tables
(collectives/bootstrap/tuning.py).

If tuning has decided on more than one thread, each rank then reserves the memory of its helper areas and starts its
helpers, either of which the system may refuse. The ranks exchange how many threads each has, and all use the least of
these numbers.
"""

import warnings
from contextlib import contextmanager
from dataclasses import replace

from libc.stdint cimport int64_t
from libc.string cimport memset

from shmring.core.arrays.array_view cimport OPAQUE
from shmring.core.c.layout cimport SHMRING_EAGER_NBYTES, SHMRING_THREADS_MAX, sem_t, shmring_outbox
from shmring.core.c.peer_memory cimport read_peer_memory
from shmring.core.base.heap cimport Heap
from shmring.core.base.timeouts cimport timeout_to_ns
from shmring.collectives.engine.eager cimport eager_t
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.kinds cimport KIND_ALL_GATHER, KIND_BARRIER
from shmring.collectives.engine.outbox cimport helper_area_nbytes, helper_areas_offset, helper_slot_nbytes
from shmring.collectives.engine.signature cimport NO_OP, NO_ROOT, pack_signature
from shmring.collectives.engine.thread_team cimport Team
from shmring.core.kernel.reduce cimport copy_bytes
from shmring.core.memory.mapping cimport Mapping
from shmring.core.ring.laps cimport stores_of_reader
from shmring.core.sync.backoff cimport now_ns

from shmring.errors import (AbortedError, CollectiveTimeoutError, MismatchError, OutOfSharedMemoryError,
                            RendezvousError, RendezvousTimeoutError, SegmentError)
from shmring.core.placement.latency_clusters import partner, stages


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)


cdef enum:
    NRUNS = 3
    NBARRIERS = 8      # in a run
    NCOPIES = 5        # by each kind of stores; the first one finds its lines as another kind left them
    COPIED_NBYTES = 65536


MOST_THREADS = SHMRING_THREADS_MAX

# How long the ranks wait, at least, for one that does not answer right after the rendezvous.
PATIENCE_S = 1.0


def patient_ns(timeout):
    """The timeout of exchanges right after the rendezvous: that of the rendezvous, but at least `PATIENCE_S`."""
    return timeout_to_ns(None if timeout is None else max(timeout, PATIENCE_S))


@contextmanager
def as_rendezvous_errors():
    """Turn the errors of exchanges into those of a rendezvous: to the caller of `init` they are one."""
    try:
        yield
    except CollectiveTimeoutError as error:
        raise RendezvousTimeoutError(f"{error} (right after the rendezvous)", error.late) from None
    except (AbortedError, MismatchError) as error:
        raise RendezvousError(f"{error} (right after the rendezvous)") from None


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
        e.run(&t, NULL, NULL, timeout_ns)
    return now_ns() - started


def partners_ns(Engine e not None, int64_t timeout_ns):
    """Nanoseconds of a round trip between this rank and each other, by rank; 0 for itself.

    Collective; raises what a barrier raises. In each stage all pairs measure at the same time
    (`shmring.core.placement.latency_clusters.partner`); the fastest run of each pair counts. A run has fewer rounds
    than there are slots after a barrier, so a rank waits for its partner only.
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
        e.run(&t, NULL, NULL, timeout_ns)
        if i == 0:
            started = now_ns()
    return now_ns() - started


def copies_ns(Engine e not None, tuple kinds not None, int64_t timeout_ns):
    """Nanoseconds in which this rank copies some bytes into its slot and as many out of the next rank's, for each kind.

    Parameters
    ----------
    e : Engine
    kinds : tuple of int
        Kinds of stores, enum shmring_stores.
    timeout_ns : int

    Notes
    -----
    Collective; raises what a barrier raises. The fastest of a few copies counts. All ranks copy at the same time, as in
    calls. It takes a quarter of a millisecond.
    """
    cdef size_t nbytes = min(<size_t> COPIED_NBYTES, e.c.slot_nbytes)
    cdef char *own = e.c.slots[e.c.group.rank]
    cdef const char *other = e.c.slots[(e.c.group.rank + 1) % e.c.group.size]
    cdef Heap heap = Heap()
    cdef char *private = <char *> heap.allocate(nbytes, 1)
    cdef int64_t started, took
    cdef int kind
    memset(private, 0, nbytes)
    found = []
    e.enter()
    try:
        for kind in kinds:
            least = None
            for n in range(NCOPIES):
                run_of_barriers_ns(e, 1, timeout_ns)
                started = now_ns()
                copy_bytes(own, private, nbytes, kind)
                took = now_ns() - started
                run_of_barriers_ns(e, 1, timeout_ns)
                started = now_ns()
                copy_bytes(private, other, nbytes, stores_of_reader(kind))
                took += now_ns() - started
                if n:
                    least = took if least is None else min(least, took)
            found.append(float(least))
    finally:
        e.leave()
    return found


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
        e.run(&t, NULL, NULL, timeout_ns)
    finally:
        e.leave()
    return [bytes(gathered[rank * nbytes:(rank + 1) * nbytes]) for rank in range(e.c.group.size)]


# ---- the memory of other processes ----

def address_of(bytes content not None):
    """Where the bytes are in the memory of this process."""
    return <size_t> <const char *> content


def read_process(int pid, size_t address, size_t nbytes):
    """The bytes at an address of a process; None if the kernel does not let this one read them."""
    content = bytearray(nbytes)
    return bytes(content) if read_peer_memory(pid, <char *> content, <const void *> address, nbytes) else None


# ---- helper threads ----

def form_team(Engine e not None, timeout):
    """Start the threads that tuning has decided on, if there are any, and give them to the engine.

    Parameters
    ----------
    e : Engine
        With the thresholds that calibration has led to.
    timeout : float or None
        Seconds to wait for the other ranks; None: no limit.

    Raises
    ------
    PeerLostError, RendezvousTimeoutError, RendezvousError
        Another rank died, did not answer in time, or failed.

    Notes
    -----
    Collective. If a rank gets fewer threads than decided, it issues a RuntimeWarning, and all ranks use that number.
    """
    cdef int wanted = e.thresholds.threads
    cdef Team team
    if wanted < 2:
        return
    limits = replace(e.limits, slot_nbytes=helper_slot_nbytes(e.config))
    spin_ns = e.config.spin_ns(wanted, e.thresholds.own_processors)
    team = Team(reserve_helper_areas(e, wanted), spin_ns, limits, e.thresholds.split_nbytes)
    if team.nthreads() < wanted:
        warnings.warn(f"{e.name}: rank {e.c.group.rank} got {team.nthreads()} of {wanted} threads (see RLIMIT_NPROC, "
                      "the control group's pids.max and the room in /dev/shm); all ranks use that number",
                      RuntimeWarning, stacklevel=2)
    with as_rendezvous_errors():
        numbers = exchange(e, bytes([team.nthreads()]), patient_ns(timeout))
    team.keep(max(1, min([number[0] for number in numbers])))
    if team.nthreads() > 1:
        settle(e, team)
        e.team = team


cdef int reserve_helper_areas(Engine e, int threads) except -1:
    """Reserve the helper areas of so many threads; return for how many there was room."""
    cdef size_t offset = helper_areas_offset(e.config, e.c.group.size), nbytes = helper_area_nbytes(e.config)
    cdef shmring_outbox *own
    cdef int t
    segment = e.segments[e.c.group.rank]
    for t in range(1, threads):
        try:
            segment.reserve(offset + (t - 1) * nbytes, nbytes)
        except OutOfSharedMemoryError:
            return t
        own = <shmring_outbox *> ((<Mapping> segment.mapping).address + offset + (t - 1) * nbytes)
        if sem_init(&own.wake, 1, 0) != 0:
            raise SegmentError("this system has no process-shared POSIX semaphores (sem_init failed)")
    return threads


cdef int settle(Engine e, Team team) except -1:
    """Give the team its areas in all outboxes; all of them have memory since the exchange."""
    cdef Heap heap = Heap()
    cdef char **areas = <char **> heap.allocate(e.c.group.size, sizeof(char *))
    cdef size_t offset = helper_areas_offset(e.config, e.c.group.size), nbytes = helper_area_nbytes(e.config)
    cdef Mapping mapping
    cdef int j
    for j in range(e.c.group.size):
        mapping = e.segments[j].mapping
        areas[j] = mapping.address + offset
        if j != e.c.group.rank:
            mapping.prefault(offset, (team.nthreads() - 1) * nbytes, write=False)
    return team.settle(&e.c, areas, nbytes, helper_slot_nbytes(e.config))
