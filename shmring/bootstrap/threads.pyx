"""The threads with which a rank shares large collectives: how many there should be, and how the ranks get them.

All ranks compute the same number from what they exchanged after the rendezvous (bootstrap/tuning.py). If it is 1,
nothing is done here. Otherwise each rank reserves the memory of its helper areas and starts its helpers, either of
which the system may refuse. Then the ranks exchange how many threads each has, and all use the least of these numbers.
"""

import warnings
from collections import Counter
from dataclasses import replace

from shmring._c.layout cimport SHMRING_THREADS_MAX, sem_t, shmring_outbox
from shmring.base.heap cimport Heap
from shmring.engine.engine cimport Engine
from shmring.engine.outbox cimport helper_area_nbytes, helper_areas_offset, helper_slot_nbytes
from shmring.engine.thread_team cimport Team
from shmring.memory.mapping cimport Mapping

from shmring.bootstrap.calibrate import exchange, patient_ns
from shmring.bootstrap.exchange_errors import as_rendezvous_errors
from shmring.errors import OutOfSharedMemoryError, SegmentError


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)


# ---- how many ----

# With fewer processors per rank, helpers only compete with the application's own threads.
LEAST_PROCESSORS = 4
# More do not pay: a few cores of a socket use all of its memory bandwidth.
MOST_BY_DEFAULT = 8


def processors_each(ranks):
    """The processors of each rank: a processor in the masks of several ranks is divided, and so is a quota.

    ``ranks`` has the `shmring.bootstrap.tuning.RankInfo` of each.
    """
    holders = Counter([number for rank in ranks for number in rank.processors])
    # Rounded, so that thirds of processors add up to whole ones.
    shares = [round(sum([1 / holders[number] for number in rank.processors]), 6) for rank in ranks]
    return [min(s, r.quota / len(ranks)) for s, r in zip(shares, ranks, strict=True)]


def team_size(ranks, int most=SHMRING_THREADS_MAX):
    """The threads of every rank: the least that any rank asks for, at most ``most``.

    A rank that leaves it open asks for half of its processors, from 2 to `MOST_BY_DEFAULT`, and for 1 thread if it has
    fewer than `LEAST_PROCESSORS`. A rank without peers has 1.
    """
    if len(ranks) < 2:
        return 1
    wanted = [
        rank.threads if rank.threads > 0 else min(int(n) // 2, MOST_BY_DEFAULT) if n >= LEAST_PROCESSORS else 1
        for rank, n in zip(ranks, processors_each(ranks), strict=True)
    ]
    return min(*wanted, most)


# ---- getting them ----

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
