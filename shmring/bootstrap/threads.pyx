"""Teamwork: how ranks that should make large collectives with several threads each come to do so.

How many they should have all ranks conclude alike from what they told each other when they met (bootstrap/tuning.py, by the
rule in bootstrap/teamsize.py), and where that is 1 nothing happens here. Else each rank gives its strands their memory and starts
its helpers, either of which the system may refuse, and all talk once: the least that any of them has got is what all
use. What can fail has failed before anybody counts on it.
"""

import warnings
from dataclasses import replace

from shmring._runtime cimport allocate
from shmring.engine.engine cimport Engine
from shmring.engine.outbox cimport helper_area_nbytes, helper_areas_offset, helper_slot_nbytes
from shmring._c.layout cimport sem_t, shmring_outbox
from shmring.memory.mapping cimport Mapping
from shmring.engine.thread_team cimport Team

from shmring.errors import OutOfSharedMemoryError, SegmentError
from shmring.bootstrap.calibrate import exchange
from shmring.bootstrap.tuning import PATIENCE_S, right_after_rendezvous


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)


def form_team(Engine e, timeout):
    """Give the engine its team, if the ranks have concluded that they should have one.

    Parameters
    ----------
    e : Engine
        It goes by what the survey has found.
    timeout : float or None
        Seconds to wait for the other ranks; None for ever.

    Raises
    ------
    PeerLostError, RendezvousTimeoutError, RendezvousError
        Another rank died, stood still, or gave up.

    Notes
    -----
    Collective. A rank that gets fewer threads than it should have warns of it (RuntimeWarning), and all ranks have as
    few.
    """
    cdef int wanted = e.thresholds.threads
    cdef Team team
    if wanted < 2:
        return
    limits = replace(e.limits, slot_nbytes=helper_slot_nbytes(e.config))
    spin_ns = e.config.spin_ns(wanted, e.thresholds.own_processors)
    team = Team(reserve_strands(e, wanted), spin_ns, limits, e.thresholds.split_nbytes)
    if team.nthreads() < wanted:
        warnings.warn(f"{e.name}: rank {e.c.group.rank} got {team.nthreads()} of {wanted} threads (see RLIMIT_NPROC, "
                      "the control group's pids.max and the room in /dev/shm); all ranks use as few", RuntimeWarning,
                      stacklevel=2)
    with right_after_rendezvous():
        said = exchange(e, bytes([team.nthreads()]), -1 if timeout is None else int(max(timeout, PATIENCE_S) * 1e9))
    team.keep(max(1, min([words[0] for words in said])))
    if team.nthreads() > 1:
        settle(e, team)
        e.team = team


cdef int reserve_strands(Engine e, int threads) except -1:
    """Memory for the strands of so many threads; for how many there was room."""
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
    """Show the team its strands in all outboxes: after the talk all of them have their memory."""
    cdef list blocks = []
    cdef char **areas = <char **> allocate(blocks, e.c.group.size, sizeof(char *))
    cdef size_t offset = helper_areas_offset(e.config, e.c.group.size), nbytes = helper_area_nbytes(e.config)
    cdef Mapping mapping
    cdef int j
    for j in range(e.c.group.size):
        mapping = e.segments[j].mapping
        areas[j] = mapping.address + offset
        if j != e.c.group.rank:
            mapping.prefault(offset, (team.nthreads() - 1) * nbytes, write=False)
    return team.settle(&e.c, areas, nbytes, helper_slot_nbytes(e.config))
