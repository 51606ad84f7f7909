"""The outbox segment: where its parts lie, how large it is, and how a rank prepares its own."""

import functools
import os

from shmring.core.c.atomics cimport store_release_u32
from shmring.core.c.layout cimport (SHMRING_HEADER_NBYTES, SHMRING_HELPER_SLOT_NBYTES, SHMRING_PAGE_NBYTES,
                                SHMRING_PAIR_QUEUE_NCELLS, SHMRING_THREADS_MAX, sem_t, shmring_cell, shmring_header,
                                shmring_pair_queue_end)
from shmring.core.memory.mapping cimport Mapping
from shmring.core.sync.liveness cimport drop_liveness, hold_liveness

from shmring.errors import SegmentError


cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t *sem, int pshared, unsigned value)


cdef inline size_t whole_pages(size_t nbytes) noexcept:
    return (nbytes + SHMRING_PAGE_NBYTES - 1) // SHMRING_PAGE_NBYTES * SHMRING_PAGE_NBYTES


cdef shmring_outbox *control_area(char *base) noexcept:
    return <shmring_outbox *> (base + SHMRING_HEADER_NBYTES)


cdef size_t control_nbytes() noexcept:
    """Of the header and the control area, which begin the segment."""
    return SHMRING_HEADER_NBYTES + SHMRING_PAGE_NBYTES


cdef shmring_eager_line *eager_slots(char *base) noexcept:
    return <shmring_eager_line *> (base + control_nbytes())


cdef char *first_slot(char *base, int nslots) noexcept:
    return base + slots_offset(nslots)


cdef size_t slots_offset(int nslots) noexcept:
    return control_nbytes() + whole_pages(nslots * sizeof(shmring_eager_line))


cdef size_t pair_queue_ends_offset(config) except? 0:
    """Of the pair queue ends, one a peer."""
    return slots_offset(config.nslots) + config.nslots * config.slot_nbytes


cdef size_t pair_queue_offset(config, int size, int peer) except? 0:
    """Of the pair queue to ``peer``."""
    return (pair_queue_ends_offset(config) + whole_pages(size * sizeof(shmring_pair_queue_end))
            + peer * pair_queue_nbytes(config, size))


cdef size_t pair_queue_nbytes(config, int size) except? 0:
    return SHMRING_PAIR_QUEUE_NCELLS * sizeof(shmring_cell) + config.pair_queue_limit(size)


cdef size_t helper_areas_offset(config, int size) except? 0:
    """Of the areas of the helper threads, each with a control area and slots of its own."""
    return pair_queue_offset(config, size, size)


cdef size_t helper_area_nbytes(config) except? 0:
    return SHMRING_PAGE_NBYTES + config.nslots * helper_slot_nbytes(config)


cdef size_t helper_slot_nbytes(config) except? 0:
    return min(<size_t> config.slot_nbytes, <size_t> SHMRING_HELPER_SLOT_NBYTES)


def outbox_nbytes(config, int size):
    """Bytes of the segment that holds one rank's outbox among ``size`` ranks."""
    return helper_areas_offset(config, size) + (SHMRING_THREADS_MAX - 1) * helper_area_nbytes(config)


def sparse_nbytes(config, int size):
    """How many of them, at the end, have no memory before they are used: pair queues and areas of helper threads."""
    return outbox_nbytes(config, size) - pair_queue_offset(config, size, 0)


def prepare_outbox(Mapping mapping not None):
    """Initialise the semaphores of this rank's own, zeroed outbox, and hold its liveness word.

    Returns what undoes it, to be called before the memory is unmapped.
    """
    cdef shmring_outbox *box = control_area(mapping.address)
    cdef int error
    if mapping.nbytes < SHMRING_HEADER_NBYTES + SHMRING_PAGE_NBYTES:      # 0 if closed
        raise ValueError(f"{mapping!r} does not hold an outbox")
    if sem_init(&box.wake, 1, 0) != 0 or sem_init(&box.pair_queues_wake, 1, 0) != 0:
        raise SegmentError("this system has no process-shared POSIX semaphores (sem_init failed)")
    error = hold_liveness(&(<shmring_header *> mapping.address).liveness)
    if error:
        raise SegmentError(f"cannot hold the liveness of this process: {os.strerror(error)}")
    return functools.partial(_abandon_outbox, mapping)


def _abandon_outbox(Mapping mapping not None):
    if mapping.address == NULL:
        return
    # A peer may have seen the rendezvous complete just before this rank gave it up.
    store_release_u32(&control_area(mapping.address).left, 1)
    drop_liveness(&(<shmring_header *> mapping.address).liveness)
