"""Private pages of this process that become pages of a segment at the same address, and private again.

The kernel replaces what is mapped at an address in one step (``mremap`` with ``MREMAP_FIXED``), so a thread that reads
the pages meanwhile finds their content before and after. Everything that can fail is done first: the new mapping
exists, has the content, and is locked if the old pages were.
"""

import os

from libc.errno cimport EAGAIN, ENOMEM, errno
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MS_ASYNC, PROT_READ, PROT_WRITE, madvise, mlock, msync, munmap

from shmring._c.faults cimport fault_point
from shmring.memory.mapping cimport PAGE_NBYTES, Mapping, map_private_like, populate, touch_pages

from shmring.errors import ClosedError, OutOfSharedMemoryError, SegmentError
from shmring.memory.mapping import address_space_limit


cdef extern from "<sys/mman.h>" nogil:
    const int MREMAP_MAYMOVE
    const int MREMAP_FIXED
    void *mremap(void *address, size_t old_nbytes, size_t nbytes, int flags, ...)

cdef extern from "Python.h" nogil:
    void Py_FatalError(const char *message)

cdef extern from "placement/numa_calls.h" nogil:
    const int SHMRING_MPOL_DEFAULT
    int set_policy(void *address, size_t nbytes, int mode, const shmring_nodes *nodes)
    int get_policy(const void *address, int *mode, shmring_nodes *nodes)


cdef class MovedPages:
    """Whole private pages, and the pages of a segment that take their place from `move` to `restore`.

    Nothing has changed when this raises. An object that is freed while `is_moved` leaves the pages as they are.

    Parameters
    ----------
    mapping : Mapping
        Of the segment; kept mapped.
    offset : int
        Where the pages are in the mapping: a multiple of the page size.
    address, nbytes : int
        The pages: `shmring.shared.movable` has found them to be private memory.
    is_locked : bool
        Whether they are locked in memory (``mlock``); they will be, in either place.
    advice : tuple of int
        What ``madvise`` was called with for them; repeated in `restore`.

    Raises
    ------
    OutOfSharedMemoryError, SegmentError
        The kernel refuses another mapping, or to lock it.
    """

    def __cinit__(self, Mapping mapping not None, size_t offset, size_t address, size_t nbytes, bint is_locked,
                  tuple advice not None):
        cdef void *ready
        cdef int error = 0
        if mapping.address == NULL:
            raise ClosedError("the mapping is closed")
        if ((offset | address | nbytes) % PAGE_NBYTES or offset > mapping.nbytes
                or not 0 < nbytes <= mapping.nbytes - offset):
            raise ValueError(f"{offset}, {address:#x}, {nbytes} (offset, address, nbytes): must be whole pages in it")
        self.mapping = mapping
        self.mapped = mapping.address + offset
        self.nbytes = nbytes
        self.is_locked = is_locked
        self.advice = advice
        get_policy(<void *> address, &self.policy, &self.nodes)
        # From a length of 0 the kernel makes a second mapping of the same shared pages.
        ready = mremap(self.mapped, 0, nbytes, MREMAP_MAYMOVE)
        if ready == MAP_FAILED:
            raise self.refusal("map", errno)
        self.ready = <char *> ready
        with nogil:
            if populate(self.ready, nbytes, True):
                touch_pages(self.ready, nbytes, True)
            if is_locked and mlock(self.ready, nbytes):
                error = errno
        if error:
            raise self.refusal("lock (ulimit -l)", error)
        self.address = <char *> address

    def __dealloc__(self):
        if self.ready != NULL:
            munmap(self.ready, self.nbytes)

    cdef object refusal(self, str what, int error):
        text = f"cannot {what} {self.nbytes} bytes of pages: {os.strerror(error)} ({address_space_limit()})"
        if error == ENOMEM or error == EAGAIN:
            return OutOfSharedMemoryError(text, self.nbytes)
        return SegmentError(error, text)

    def move(self):
        """Copy the content into the segment, and map that at the address. The segment keeps what others stored.

        Keeps the GIL, so no other thread of Python runs meanwhile; no thread may store into the pages.

        Raises
        ------
        OutOfSharedMemoryError
            The process has as many mappings as it may have (vm.max_map_count); nothing has changed.
        """
        cdef void *found
        if self.ready == NULL:
            raise ClosedError("these pages have been moved before")
        fault_point("move")
        memcpy(self.ready, self.address, self.nbytes)
        found = mremap(self.ready, self.nbytes, self.nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, self.address)
        if found == MAP_FAILED:
            raise self.refusal("move", errno)
        self.ready = NULL
        self.is_moved = True
        fault_point("moved")

    def restore(self):
        """Map private memory with the present content at the address; no effect if the pages are private.

        Keeps the GIL, as `move`.

        The caller has found that the pages of the segment are still mapped there (`mapped_files`).

        Raises
        ------
        OutOfSharedMemoryError
            The kernel refuses; the pages are still those of the segment, and another call may succeed.
        """
        cdef char *private
        cdef int advice
        cdef int error = 0
        if not self.is_moved:
            return
        private = map_private_like(self.nbytes, <size_t> self.address, PROT_READ | PROT_WRITE, 0)
        if private == MAP_FAILED:
            raise self.refusal("map", errno)
        if self.policy != SHMRING_MPOL_DEFAULT:
            set_policy(private, self.nbytes, self.policy, &self.nodes)
        for advice in self.advice:
            madvise(private, self.nbytes, advice)
        fault_point("restore")
        memcpy(private, self.mapped, self.nbytes)
        if self.is_locked and mlock(private, self.nbytes):
            error = errno
        elif mremap(private, self.nbytes, self.nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, self.address) == MAP_FAILED:
            error = errno
            # Older kernels may have unmapped what was there. No program could go on without its memory.
            if (msync(self.address, self.nbytes, MS_ASYNC)
                    and mremap(self.mapped, 0, self.nbytes, MREMAP_MAYMOVE | MREMAP_FIXED, self.address) == MAP_FAILED):
                Py_FatalError(b"shmring: the kernel has unmapped an array that was shared, and does not map it again")
        if error:
            munmap(private, self.nbytes)
            raise self.refusal("restore", error)
        self.is_moved = False
