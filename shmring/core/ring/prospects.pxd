# Which processes may still take an end that none has taken yet (core/ring/prospects.pyx).
from libc.stdint cimport int32_t, int64_t

cdef extern from "core/ring/prospects.h" nogil:
    ctypedef struct prospects_t "shmring_prospects":
        int file
        const int32_t *own

    bint set_prospect(int file, int64_t end, bint is_prospect)
    int reopen(int descriptor)
    bint is_held_elsewhere(int file, int64_t end)


cdef class Prospects:
    cdef prospects_t known
    cdef int32_t *own
    cdef int count                 # of ends
    cdef int descriptor            # of the memory
    cdef int heir                  # the open file for a child that is being forked
    cdef list travelling           # open files for processes that multiprocessing starts; each with the Popen, its
    # attributes, which have a pid once the process has started, and what to call if it never will
    cdef bint is_unknown           # a lock could not be set: nothing is concluded any longer
    cdef int kept                  # the open file that this process had before that
    cdef void *next                # of all of this process
    cdef void *previous

    cdef void add(self, int64_t end) noexcept
    cdef void remove(self, int64_t end) noexcept
    cdef int locked(self) noexcept
    cdef void post(self) noexcept
    cdef void give_up(self) noexcept
    cdef bint has_own(self) noexcept
    cdef int passed_file(self, object ends) noexcept
    cdef object pass_on(self, object ends, object come_back)
    cdef int forget_arrived(self) except -1
    cdef int adopt(self, object passed) except -1


cdef class Passage:
    cdef Prospects prospects


cdef int arrive(Prospects prospects, object passed) except -1
cdef Prospects prospects_of(object segment, int count)
cdef bint can_be_taken(const prospects_t *known, int64_t end, bint waits_for_ever) noexcept nogil
