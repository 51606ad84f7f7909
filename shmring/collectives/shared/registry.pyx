"""The registry of a communicator's shared arrays: from an address to (allocation, owner, offset), and back.

An *allocation* is the memory that one collective call made: one segment per rank, all mapped by all ranks, or a single
segment for all ranks. Each ndarray keeps an *area* alive, the area its allocation, and the allocation the mappings of
all its segments. So the memory is unmapped with its last view; the registry holds borrowed references only.

Addresses differ from process to process. Ranks exchange a *place*: (allocation, owner, offset).
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memmove

from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.memory.mapping cimport Mapping


# The registry's references are borrowed: without the GIL, a thread may find an object that waits to leave the
# registry, because another thread has just dropped the last reference to it.
cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define may_be_found(object) PyUnstable_EnableTryIncRef(object)
    static inline PyObject *living(void *object) {
        return PyUnstable_TryIncRef((PyObject *)object) ? (PyObject *)object : Py_NewRef(Py_None);
    }
    #else
    #define may_be_found(object) ((void)(object))
    static inline PyObject *living(void *object) { return Py_NewRef((PyObject *)object); }
    #endif
    """
    void make_findable "may_be_found"(object)
    object living(void *found)      # a reference; None: it is being deallocated


cdef class AllocationRegistry:
    """Which addresses belong to which allocation. Read and changed with the GIL held; without one, in the critical
    section of this object, as are entries and ranges that it returns pointers to."""

    def __dealloc__(self):
        free(self.ranges)
        free(self.entries)

    cdef int reserve(self, int nranges) except -1:
        """Make room for ``nranges`` more ranges, and as many allocations."""
        cdef int needed = self.nranges + nranges
        cdef void *memory
        if needed <= self.capacity:
            return 0
        needed *= 2
        memory = realloc(self.ranges, needed * sizeof(range_t))
        if memory == NULL:
            raise MemoryError("no memory for the registry of shared arrays")
        self.ranges = <range_t *> memory
        memory = realloc(self.entries, needed * sizeof(entry_t))
        if memory == NULL:
            raise MemoryError("no memory for the registry of shared arrays")
        self.entries = <entry_t *> memory
        self.capacity = needed
        return 0

    cdef void insert(self, range_t new) noexcept:
        cdef int i, at = self.nranges
        for i in range(self.nranges):
            if self.ranges[i].start > new.start:
                at = i
                break
        memmove(self.ranges + at + 1, self.ranges + at, (self.nranges - at) * sizeof(range_t))
        self.ranges[at] = new
        self.nranges += 1

    @cython.critical_section
    cdef int add(self, Allocation allocation) except -1:
        """Add an allocation, which has a higher number than all before it."""
        cdef range_t new
        self.reserve(<int> len(allocation.segments))
        for segment in allocation.segments:
            new.start = allocation.bases[segment.rank]
            new.end = new.start + allocation.nbytes
            new.allocation = allocation.number
            new.owner = segment.rank
            new.moved = NULL
            self.insert(new)
        self.entries[self.nentries].allocation = allocation.number
        self.entries[self.nentries].bases = allocation.bases
        self.entries[self.nentries].object = <void *> allocation
        self.nentries += 1
        allocation.is_registered = True
        return 0

    @cython.critical_section
    cdef void remove(self, Allocation allocation) noexcept:
        cdef int i, kept = 0
        for i in range(self.nranges):
            if self.ranges[i].allocation != <uint32_t> allocation.number:
                self.ranges[kept] = self.ranges[i]
                kept += 1
        self.nranges = kept
        kept = 0
        for i in range(self.nentries):
            if self.entries[i].allocation != <uint32_t> allocation.number:
                self.entries[kept] = self.entries[i]
                kept += 1
        self.nentries = kept

    @cython.critical_section
    cdef void remove_moved(self, void *moved) noexcept:
        cdef int i, kept = 0
        for i in range(self.nranges):
            if self.ranges[i].moved != moved:
                self.ranges[kept] = self.ranges[i]
                kept += 1
        self.nranges = kept

    cdef range_t *range_at(self, const void *address) noexcept:
        """The range that contains an address; NULL if none does."""
        cdef int low = 0, high = self.nranges, middle
        while low < high:       # the last range that does not start after the address
            middle = (low + high) // 2
            if self.ranges[middle].start <= <char *> address:
                low = middle + 1
            else:
                high = middle
        if low == 0 or <char *> address >= self.ranges[low - 1].end:
            return NULL
        return &self.ranges[low - 1]

    @cython.critical_section
    cdef place_t place_of(self, const void *address, size_t nbytes) noexcept:
        """The place of ``nbytes`` from an address on. NOWHERE unless they lie in one shared array, or all ranks are
        threads of this process."""
        cdef place_t place
        cdef range_t *found = self.range_at(address)
        place.allocation = NOWHERE
        place.owner = 0
        place.offset = 0
        if found != NULL and nbytes <= <size_t> (found.end - <char *> address):
            place.allocation = found.allocation
            place.owner = found.owner
            place.offset = <char *> address - found.start
        elif self.is_one_process:
            place.allocation = ANYWHERE
            place.offset = <uint64_t> address
        return place

    cdef entry_t *entry_of(self, uint32_t allocation) noexcept:
        """The entry of an allocation; NULL if this process has unmapped it, or never had it."""
        cdef int low = 0, high = self.nentries, middle
        while low < high:
            middle = (low + high) // 2
            if self.entries[middle].allocation < allocation:
                low = middle + 1
            else:
                high = middle
        if low == self.nentries or self.entries[low].allocation != allocation:
            return NULL
        return &self.entries[low]

    @cython.critical_section
    cdef Allocation allocation_of(self, uint32_t number):
        """An allocation by its number; None as in `entry_of`."""
        cdef entry_t *entry = self.entry_of(number)
        return None if entry == NULL else living(entry.object)

    @cython.critical_section
    cdef object moved_at(self, const void *address):
        """The private array that contains an address and is shared now; None if there is none."""
        cdef range_t *found = self.range_at(address)
        return None if found == NULL or found.moved == NULL else living(found.moved)

    @cython.critical_section
    def locate(self, size_t address):
        """(allocation, owner, offset) of an address; None if it is not in a segment as this process maps that."""
        cdef range_t *found = self.range_at(<void *> address)
        if found == NULL or found.moved != NULL:
            return None
        allocation = self.allocation_of(found.allocation)
        return None if allocation is None else (allocation, found.owner, <size_t> (address - <size_t> found.start))

    @cython.critical_section
    def moved_arrays(self):
        """The private arrays of this rank that are shared now, by address."""
        cdef int i
        found = [living(self.ranges[i].moved) for i in range(self.nranges) if self.ranges[i].moved != NULL]
        return [array for array in found if array is not None]

    @cython.critical_section
    def allocations(self):
        """All that this process still has mapped, by number."""
        cdef int i
        found = [living(self.entries[i].object) for i in range(self.nentries)]
        return [allocation for allocation in found if allocation is not None]

    def __len__(self):
        return self.nentries


cdef void may_be_found(found):
    make_findable(found)


@cython.no_gc       # in no cycle: it refers to nothing that refers back
cdef class Allocation:
    """The segments of one collective allocation, mapped here; registered as long as it lives.

    Parameters
    ----------
    registry : AllocationRegistry
    number : int
        The number of the allocation, from 1 on; equal on all ranks.
    segments : list of Segment
        By rank; or the only one, which all ranks share.
    size : int
        Number of ranks.
    nbytes : int
        Bytes of data in each segment.
    offsets : sequence of int, optional
        By rank: where the data begins after the header of the segment; 0 by default.
    """

    def __cinit__(self, AllocationRegistry registry not None, int number, list segments not None, int size,
                  size_t nbytes, offsets=None):
        cdef int r
        cdef size_t offset
        cdef Mapping mapping
        self.registry = registry
        self.number = number
        self.segments = segments
        self.size = size
        self.nbytes = nbytes
        self.offsets = offsets
        self.is_result = len(segments) == 1 and size > 1
        if len(segments) not in (1, size):
            raise ValueError(f"{len(segments)} segments for {size} ranks")
        self.bases = <char **> calloc(size, sizeof(char *))
        if self.bases == NULL:
            raise MemoryError("no memory for a shared array's addresses")
        for r in range(size):
            mapping = segments[0 if self.is_result else r].mapping
            offset = <size_t> HEADER_NBYTES + <size_t> (0 if offsets is None else offsets[r])
            if mapping.address == NULL or offset > mapping.nbytes or nbytes > mapping.nbytes - offset:
                raise ValueError(f"the segment of rank {r} has no {nbytes} bytes of data from {offset} on")
            self.bases[r] = mapping.address + offset
        make_findable(self)
        registry.add(self)

    def __dealloc__(self):
        if self.is_registered:
            self.registry.remove(self)
        free(self.bases)

    def area(self, int rank):
        """The data of a rank's segment, as a buffer for an ndarray."""
        cdef Area area = Area.__new__(Area)
        if not 0 <= rank < self.size:
            raise ValueError(f"rank={rank}: must be from 0 to {self.size - 1}")
        area.allocation = self
        area.rank = rank
        return area


@cython.no_gc
cdef class Area:
    """One rank's memory in an allocation. A view of it keeps the whole allocation mapped."""

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if self.allocation is None:
            raise BufferError("an area is made by Allocation.area")
        PyBuffer_FillInfo(buffer, self, self.allocation.bases[self.rank], self.allocation.nbytes, 0, flags)
