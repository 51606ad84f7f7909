"""Accesses to private arrays of other ranks, where all ranks are threads of one process.

An array in a segment stays mapped as long as the call of any rank needs it. A private array does not: its owner may
free it once its own call has ended. A call that succeeds ends after the last access to the rank's arrays. One that
fails first waits until no rank accesses them any more: for a copy or a reduction at most, as waits of other ranks end
with the failure. Ranks that come to the call later find the abort record before they access anything.
"""

from libc.stdint cimport uint32_t

from shmring._c.atomics cimport full_fence, load_acquire_u32, store_relaxed_u32, store_release_u32
from shmring.sync.abort cimport in_trouble

cdef extern from "<unistd.h>" nogil:
    int usleep(uint32_t us)


cdef int begin_access(Engine e) except -1:
    """Call before this rank accesses arrays of others, and `end_access` in any case after it. Raises, without that, if
    the call has failed on some rank."""
    store_relaxed_u32(&e.c.own.accesses, 1)
    # SYNC accesses (meets: await_accesses). Its caller sees this word, or the abort record is visible here.
    full_fence()
    if in_trouble(&e.c.group):
        end_access(e)
        e.break_down()
    return 0


cdef void end_access(Engine e) noexcept nogil:
    store_release_u32(&e.c.own.accesses, 0)      # SYNC accesses over (meets: await_accesses)


cdef int await_accesses(Engine e, object error) except -1:
    """After a failure of this rank in a call: return when no rank accesses its arrays, and none will any more."""
    cdef int j
    if not in_trouble(&e.c.group):
        e.report_abort(f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    with nogil:
        full_fence()      # SYNC accesses (meets: begin_access)
        for j in range(e.c.group.size):
            # SYNC accesses over (meets: end_access)
            while load_acquire_u32(&e.c.group.outbox[j].accesses):
                usleep(20)
    return 0
