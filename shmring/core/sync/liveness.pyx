"""Liveness: which processes are alive, as the kernel marks it.

Each process holds a *liveness* in the shared memory it creates. When it dies, by any cause and in any PID namespace,
the kernel marks that word, and every process that maps it sees the mark with one load. It need not be the parent, and
no process id is looked up. ``core/sync/keeper.h`` has the method, and what replaces it where there are no robust lists;
``docs/maintainers/memory-model.md`` has the sync points.

The environment variable ``SHMRING_LIVENESS=process-table``, read at import, forces the second method.
"""

import os

from libc.stdint cimport uint32_t

from shmring.core.c.atomics cimport load_relaxed_u32
from shmring.core.c.layout cimport shmring_liveness


cdef extern from "core/sync/keeper.h" nogil:
    """
    static void force_method_2(int yes) { keeper.is_forced_to_ask = yes; }
    static uint32_t keeper_generation(void) { return keeper.generation; }
    """
    int keeper_probe(shmring_liveness *liveness)
    int keeper_hold(shmring_liveness *liveness)
    void keeper_drop(shmring_liveness *liveness)
    void keeper_end_all(const void *base, size_t nbytes)
    void keeper_await_last_stores()
    const uint32_t ASKS_TABLE
    void force_method_2(int yes)
    uint32_t keeper_generation()


cdef int hold_liveness(shmring_liveness *liveness) noexcept nogil:
    return keeper_hold(liveness)


cdef void drop_liveness(shmring_liveness *liveness) noexcept nogil:
    keeper_drop(liveness)


cdef void end_liveness(const void *base, size_t nbytes) noexcept nogil:
    keeper_end_all(base, nbytes)


cdef int liveness_state(shmring_liveness *liveness) noexcept nogil:
    return keeper_probe(liveness)


cdef bint is_marked_by_kernel(const shmring_liveness *liveness) noexcept nogil:
    return load_relaxed_u32(&liveness.word) & ASKS_TABLE == 0


cdef void await_last_stores() noexcept nogil:
    keeper_await_last_stores()


cdef uint32_t fork_generation() noexcept nogil:
    return keeper_generation()


force_method_2(os.environ.get("SHMRING_LIVENESS") == "process-table")
