"""Teamwork: how ranks agree to make large collectives with several threads each.

Before an outbox is announced it says what its rank could bring. So once the ranks have met they all read the same table
and conclude the same number of threads (teamsize.py), and where that is 1 nothing else happens. Else each rank gives
its strands their memory and starts its helpers, either of which the system may refuse, and all talk once: the least
that any of them has got is what all use. What can fail has failed before anybody counts on it.
"""

import warnings

from libc.stdint cimport int32_t, int64_t, uint64_t

from shmring.agreement cimport exchange
from shmring.blocks cimport allocate
from shmring.engine cimport Engine, outbox_in, strand_nbytes, strand_slot_nbytes, strands_offset
from shmring.layout cimport (SHMRING_MASK_NWORDS, SHMRING_THREADS_MAX, sem_t, shmring_means, shmring_outbox)
from shmring.mapping cimport Mapping
from shmring.signature cimport KIND_ALL_GATHER, NO_OP, NO_ROOT, OPAQUE, pack_signature
from shmring.team cimport Team

from shmring.errors import OutOfSharedMemoryError, SegmentError
from shmring.plan.limits import Limits
from shmring.plan.shares import split_limit
from shmring.teamsize import Means, processors_each, team_size
from shmring.topology import allowed_processors, processor_quota


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)


def declare_means(Mapping mapping, config):
    """Write into an own outbox, before it is announced, what this rank could bring to a team."""
    cdef shmring_means *means = &outbox_in(mapping.address).means
    cdef int number
    means.threads = config.threads
    means.split_nbytes = config.split_nbytes
    means.quota = processor_quota() or 0.0
    for number in allowed_processors():
        if number < <int> (64 * SHMRING_MASK_NWORDS):
            means.processors[number // 64] |= (<uint64_t> 1) << number % 64


cdef object read_means(shmring_means *means):
    cdef int number
    return Means(
        means.threads,
        frozenset([number for number in range(64 * SHMRING_MASK_NWORDS)
                   if means.processors[number // 64] >> number % 64 & 1]),
        means.quota,
    )


def form_team(Engine e, timeout):
    """Give the engine its team, if the ranks conclude that they should have one.

    Parameters
    ----------
    e : Engine
        Whose ranks have just met.
    timeout : float or None
        Seconds to wait for the other ranks; None for ever.

    Raises
    ------
    PeerLostError, CollectiveTimeoutError, AbortedError
        Another rank died, did not come, or gave up. The engine is broken.

    Notes
    -----
    Collective. A rank that gets fewer threads than the ranks agreed on warns of it (RuntimeWarning), and all ranks have
    as few.
    """
    cdef int rank = e.c.circle.rank, size = e.c.circle.size, j, agreed
    cdef Team team
    ranks = [read_means(&e.c.circle.outbox[j].means) for j in range(size)]
    wanted = team_size(ranks, SHMRING_THREADS_MAX)
    if wanted < 2:
        return
    limits = Limits(nslots=e.config.nslots, slot_nbytes=strand_slot_nbytes(e.config),
                    one_shot_nbytes=e.limits.one_shot_nbytes)
    spin_ns = e.config.spin_ns(wanted, processors_each(ranks)[rank])
    team = Team(reserve_strands(e, wanted), spin_ns, limits, split_nbytes(e, wanted))
    if team.nthreads() < wanted:
        warnings.warn(f"{e.name}: rank {rank} got {team.nthreads()} of {wanted} threads (see RLIMIT_NPROC, the control "
                      f"group's pids.max and the room in /dev/shm); all ranks use as few", RuntimeWarning, stacklevel=2)
    agreed = least_of_all(e, team.nthreads(), -1 if timeout is None else <int64_t> (min(timeout, 9e9) * 1e9))
    team.keep(agreed)
    if agreed > 1:
        settle(e, team)
        e.team = team


cdef double split_nbytes(Engine e, int threads) except -1:
    """The size from which messages are split: the largest that any rank asks for."""
    cdef int64_t asked
    cdef double most = 0
    cdef int j
    for j in range(e.c.circle.size):
        asked = e.c.circle.outbox[j].means.split_nbytes
        most = max(most, split_limit(threads) if asked < 0 else asked)
    return most


cdef int reserve_strands(Engine e, int threads) except -1:
    """Memory for the strands of so many threads; for how many there was room."""
    cdef size_t offset = strands_offset(e.config, e.c.circle.size), nbytes = strand_nbytes(e.config)
    cdef shmring_outbox *own
    cdef int t
    segment = e.segments[e.c.circle.rank]
    for t in range(1, threads):
        try:
            segment.reserve(offset + (t - 1) * nbytes, nbytes)
        except OutOfSharedMemoryError:
            return t
        own = <shmring_outbox *> ((<Mapping> segment.mapping).address + offset + (t - 1) * nbytes)
        if sem_init(&own.wake, 1, 0) != 0:
            raise SegmentError("this system has no process-shared POSIX semaphores (sem_init failed)")
    return threads


cdef int least_of_all(Engine e, int threads, int64_t timeout_ns) except -1:
    """Tell all ranks how many threads there are here, and hear of all; the least."""
    cdef list blocks = []
    cdef int32_t mine = threads
    cdef int32_t *heard = <int32_t *> allocate(blocks, e.c.circle.size, sizeof(int32_t))
    cdef int j
    e.enter()
    try:
        exchange(e, pack_signature(KIND_ALL_GATHER, NO_OP, OPAQUE, NO_ROOT, sizeof(mine)), -1, &mine, sizeof(mine),
                 <char *> heard, timeout_ns)
    finally:
        e.leave()
    for j in range(e.c.circle.size):
        threads = min(threads, heard[j])
    return max(threads, 1)


cdef int settle(Engine e, Team team) except -1:
    """Show the team its strands in all outboxes: after the talk all of them have their memory."""
    cdef list blocks = []
    cdef char **areas = <char **> allocate(blocks, e.c.circle.size, sizeof(char *))
    cdef size_t offset = strands_offset(e.config, e.c.circle.size), nbytes = strand_nbytes(e.config)
    cdef Mapping mapping
    cdef int j
    for j in range(e.c.circle.size):
        mapping = e.segments[j].mapping
        areas[j] = mapping.address + offset
        if j != e.c.circle.rank:
            mapping.prefault(offset, (team.nthreads() - 1) * nbytes, write=False)
    return team.settle(&e.c, areas, nbytes, strand_slot_nbytes(e.config))
