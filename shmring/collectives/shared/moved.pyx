"""Private arrays that become shared memory where they lie, and private again: their pages, the arrays, and when.

The kernel replaces what is mapped at an address in one step (``mremap`` with ``MREMAP_FIXED``), so a thread that reads
the pages meanwhile finds their content before and after. Everything that can fail is done first: the new mapping
exists, has the content, and is locked if the old pages were.

Pages are copied and then replaced, so a store between the two would be lost. A thread stores into an array in three
ways. In a collective or in a message of any communicator of the process: those have a turn, which is taken here, or a
call on other arrays. In `copy_back`: these are counted. In its own code: the caller of `share` and `close` excludes
that. The GIL is kept from the first look at the turns to the last page, so no call begins meanwhile, and no fork.
"""

import os
from bisect import bisect_left, insort

cimport cython
from libc.errno cimport EAGAIN, ENOMEM, errno
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.mman cimport MAP_FAILED, MS_ASYNC, PROT_READ, PROT_WRITE, madvise, mlock, msync, munmap

from shmring.core.c.atomics cimport load_acquire_u32
from shmring.core.c.faults cimport fault_point
from shmring.core.arrays.array_view cimport ncopying
from shmring.collectives.engine.engine cimport BUSY, Engine, memory_t
from shmring.core.memory.mapping cimport PAGE_NBYTES, Mapping, map_private_like, populate, touch_pages
from shmring.collectives.shared.registry cimport Allocation, may_be_found, range_t

from shmring.core.base.lifecycle import Stage, in_child, tracked
from shmring.core.base.pace import Pace
from shmring.errors import ClosedError, OutOfSharedMemoryError, SegmentError
from shmring.core.memory.mapping import address_space_limit
from shmring.core.sync.turn import Turn


cdef extern from "<sys/mman.h>" nogil:
    const int MREMAP_MAYMOVE
    const int MREMAP_FIXED
    void *mremap(void *address, size_t old_nbytes, size_t nbytes, int flags, ...)

cdef extern from "Python.h" nogil:
    void Py_FatalError(const char *message)

cdef extern from "core/placement/numa_calls.h" nogil:
    const int SHMRING_MPOL_DEFAULT
    int set_policy(void *address, size_t nbytes, int mode, const shmring_nodes *nodes)
    int get_policy(const void *address, int *mode, shmring_nodes *nodes)


cdef class MovedPages:
    """Whole private pages, and the pages of a segment that take their place from `move` to `restore`.

    Nothing has changed when this raises. An object that is freed while `is_moved` leaves the pages as they are.

    Parameters
    ----------
    mapping : Mapping
        The mapping of the segment, which stays mapped.
    offset : int
        Where the pages are in the mapping: a multiple of the page size.
    address, nbytes : int
        The pages: `shmring.collectives.shared.movable` has found them to be private memory.
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


@cython.no_gc_clear     # what keeps the memory of the array is not released before the pages are private
cdef class MovedArray:
    """A private array of this rank; its whole pages are those of its segment, from `share` to `unshare`.

    Peers find the whole array in the segment, contiguous; the two *ends*, which share a page with other memory, stay
    where they are, and their bytes are copied into the segment before a call and back after it.

    Parameters
    ----------
    allocation : Allocation
    rank : int
        This rank.
    pages : MovedPages
        Not moved yet.
    address : int
        The address of the array, which has ``allocation.nbytes`` bytes.
    inner : tuple of int
        Bounds of its whole pages.
    owner : object
        What keeps its memory.
    """

    def __cinit__(self, Allocation allocation not None, int rank, MovedPages pages not None, size_t address,
                  tuple inner not None, owner):
        self.registry = allocation.registry
        self.allocation = allocation
        self.pages = pages
        self.owner = owner
        self.rank = rank
        self.image = allocation.bases[rank]
        self.start = <char *> address
        self.end = self.start + allocation.nbytes
        self.inner_start, self.inner_end = <char *> <size_t> inner[0], <char *> <size_t> inner[1]
        may_be_found(self)

    def __dealloc__(self):
        if self.is_registered:
            self.registry.remove_moved(<void *> self)

    @property
    def nbytes(self):
        """Bytes of its memory that are those of the segment."""
        return self.inner_end - self.inner_start if self.is_registered else 0

    @property
    def bounds(self):
        """Bounds of its whole pages, and of those of the segment as this process maps that."""
        inner = self.image + (self.inner_start - self.start)
        return ((<size_t> self.inner_start, <size_t> self.inner_end),
                (<size_t> inner, <size_t> (inner + (self.inner_end - self.inner_start))))

    cdef int share(self) except -1:
        """Map the pages of the segment at the address, with the present content."""
        cdef range_t new
        new.start, new.end = self.start, self.end
        new.allocation, new.owner = self.allocation.number, self.rank
        new.moved = <void *> self
        with cython.critical_section(self.registry):
            self.registry.reserve(1)
            self.pages.move()
            self.registry.insert(new)
            self.is_registered = True
        return 0

    cdef int unshare(self, bint is_mapped) except -1:
        """Map private pages with the present content at the address; if the pages of the segment are not mapped there
        any more (not ``is_mapped``), leave what is there."""
        if is_mapped:
            self.pages.restore()
        self.is_registered = False
        self.registry.remove_moved(<void *> self)
        return 0

    cdef int release(self) except -1:
        """Drop what keeps the memory. Any code may run here."""
        self.owner = self.allocation = None
        return 0

    cdef void stage_ends(self, const char *address, size_t nbytes) noexcept:
        """Copy into the segment what a buffer in this array has in common with the ends."""
        cdef const char *end = address + nbytes
        if address < self.inner_start:
            memcpy(self.image + (address - self.start), address, min(end, <const char *> self.inner_start) - address)
        if end > self.inner_end:
            address = max(address, <const char *> self.inner_end)
            memcpy(self.image + (address - self.start), address, end - address)

    cdef void fetch_ends(self, char *address, size_t nbytes) noexcept:
        """The reverse of `stage_ends`."""
        cdef char *end = address + nbytes
        if address < self.inner_start:
            memcpy(address, self.image + (address - self.start), min(end, self.inner_start) - address)
        if end > self.inner_end:
            address = max(address, self.inner_end)
            memcpy(address, self.image + (address - self.start), end - address)


# ---- when pages are replaced -----------------------------------------------------------------------------------------

# Of the thread that changes the claims or replaces pages, and of one that forks. Re-entrant, for signal handlers.
turn = Turn("memory that is being shared", is_reentrant=True)
cdef list _claims = []      # ranges (start, end) of whole pages, which do not overlap, by address


def claim(list ranges, list claimed):
    """Claim ranges of whole pages; each that was, is appended to ``claimed``.

    Raises
    ------
    ValueError
        Two overlap, or another call has claimed memory of one.
    """
    turn.run(_claim, ranges, claimed)


def _claim(list ranges, list claimed):
    for start, end in ranges:
        i = bisect_left(_claims, (start, end))
        for other in _claims[max(i - 1, 0):i + 1]:
            if start < other[1] and other[0] < end:
                mistake = "two of the arrays overlap" if other in claimed else "the memory is shared already"
                raise ValueError(f"{mistake}, at {max(start, other[0]):#x}")
        insort(_claims, (start, end))
        claimed.append((start, end))


def disclaim(list ranges):
    """Give up claims, and take them out of the list."""
    turn.run(_disclaim, ranges)


def _disclaim(list ranges):
    for one in ranges:
        i = bisect_left(_claims, one)
        if _claims[i:i + 1] == [one]:
            del _claims[i]
    ranges.clear()      # another call may claim them from now on


def make_shared(list arrays):
    """Replace the pages of arrays by those of their segments. Waits for the calls of other threads on them.

    If this raises (see `MovedPages.move`; `RuntimeError` inside a call of this thread on them), those before the one
    that failed are shared.
    """
    replace(arrays, None)


def make_private(list arrays, are_mapped):
    """Make arrays private with their present content; ``are_mapped`` as in `MovedArray.unshare`, for each of them.

    Returns those that were shared until then: not what another thread has made private meanwhile. Waits, and raises, as
    `make_shared`: then those before the one that failed are private.
    """
    try:
        return replace(arrays, are_mapped)
    finally:
        release(arrays)


def make_private_in_child(list arrays):
    """`make_private` in a forked child, which has no other thread."""
    cdef MovedArray array
    for array in arrays:
        if array.is_registered:
            array.unshare(True)
    release(arrays)


cdef int release(list arrays) except -1:
    cdef MovedArray array
    for array in arrays:
        if not array.is_registered:
            array.release()
    return 0


cdef list replace(list arrays, are_mapped):
    cdef list replaced = []
    pace = Pace()
    while not turn.run(_attempt, arrays, are_mapped, replaced):
        pace.pause()
    return replaced


def _attempt(list arrays, are_mapped, list replaced):
    """Replace the pages, unless a call may store there; whether it was done. ``are_mapped`` is None: share them."""
    cdef list engines = tracked(Stage.ENGINE)
    cdef MovedArray array
    cdef int i, nranges = len(arrays), nengines = len(engines)
    cdef memory_t *ranges = <memory_t *> calloc(nranges + 1, sizeof(memory_t))
    cdef int *taken = <int *> calloc(nengines + 1, sizeof(int))
    # No Python code runs from here on, so the GIL is kept.
    try:
        if ranges == NULL or taken == NULL:
            raise MemoryError(f"no memory to look at {nengines} communicators")
        if load_acquire_u32(&ncopying):
            return False
        for i in range(nranges):
            array = arrays[i]
            ranges[i].start, ranges[i].end = <size_t> array.start, <size_t> array.end
        for i in range(nengines):
            taken[i] = (<Engine> engines[i]).take_from_stores(ranges, nranges)
            if taken[i] == BUSY:
                return False
        for i in range(nranges):
            array = arrays[i]
            if are_mapped is None:
                array.share()
            elif array.is_registered:
                array.unshare(are_mapped[i])
                replaced.append(array)
    finally:
        for i in range(nengines if taken != NULL else 0):
            (<Engine> engines[i]).give_back(max(taken[i], 0))
        free(ranges)
        free(taken)
    return True


@in_child
def _renew():
    """In a forked child, where no thread moves pages, and all that was shared becomes private."""
    turn.renew()
    _claims.clear()
