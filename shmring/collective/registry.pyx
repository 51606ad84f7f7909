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

from shmring.memory.header import HEADER_NBYTES
from shmring.memory.mapping cimport Mapping


cdef class AllocationRegistry:
    """Which addresses belong to which allocation. Read and changed with the GIL held."""

    def __dealloc__(self):
        free(self.ranges)
        free(self.entries)

    cdef int add(self, Allocation allocation) except -1:
        """Add an allocation, which has a higher number than all before it."""
        cdef int i, at, needed = self.nranges + <int> len(allocation.segments)
        cdef range_t new
        cdef Mapping mapping
        cdef void *memory
        if needed > self.capacity:
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
        for segment in allocation.segments:
            mapping = segment.mapping
            new.start = mapping.address + <size_t> HEADER_NBYTES
            new.end = new.start + allocation.nbytes
            new.allocation = allocation.number
            new.owner = segment.rank
            at = self.nranges
            for i in range(self.nranges):
                if self.ranges[i].start > new.start:
                    at = i
                    break
            memmove(self.ranges + at + 1, self.ranges + at, (self.nranges - at) * sizeof(range_t))
            self.ranges[at] = new
            self.nranges += 1
        self.entries[self.nentries].allocation = allocation.number
        self.entries[self.nentries].bases = allocation.bases
        self.entries[self.nentries].object = <void *> allocation
        self.nentries += 1
        allocation.is_registered = True
        return 0

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

    cdef place_t place_of(self, const void *address, size_t nbytes) noexcept:
        """The place of ``nbytes`` from an address on; NOWHERE unless they lie in one shared array."""
        cdef place_t place
        cdef range_t *found = self.range_at(address)
        place.allocation = NOWHERE
        place.owner = 0
        place.offset = 0
        if found != NULL and nbytes <= <size_t> (found.end - <char *> address):
            place.allocation = found.allocation
            place.owner = found.owner
            place.offset = <char *> address - found.start
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

    def locate(self, size_t address):
        """(allocation, owner, offset) of an address; None if it lies in no shared array."""
        cdef range_t *found = self.range_at(<void *> address)
        if found == NULL:
            return None
        allocation = <Allocation> self.entry_of(found.allocation).object
        return allocation, found.owner, <size_t> (address - <size_t> found.start)

    def allocations(self):
        """All that this process still has mapped, by number."""
        cdef int i
        return [<Allocation> self.entries[i].object for i in range(self.nentries)]

    def __len__(self):
        return self.nentries


@cython.no_gc       # in no cycle: it refers to nothing that refers back
cdef class Allocation:
    """The segments of one collective allocation, mapped here; registered as long as it lives.

    Parameters
    ----------
    registry : AllocationRegistry
    number : int
        From 1 on; the same on all ranks.
    segments : list of Segment
        By rank; or the only one, which all ranks share.
    size : int
        Number of ranks.
    nbytes : int
        Of data in each segment.
    """

    def __cinit__(self, AllocationRegistry registry not None, int number, list segments not None, int size,
                  size_t nbytes):
        cdef int r
        cdef Mapping mapping
        self.registry = registry
        self.number = number
        self.segments = segments
        self.size = size
        self.nbytes = nbytes
        self.is_result = len(segments) == 1 and size > 1
        if len(segments) not in (1, size):
            raise ValueError(f"{len(segments)} segments for {size} ranks")
        self.bases = <char **> calloc(size, sizeof(char *))
        if self.bases == NULL:
            raise MemoryError("no memory for a shared array's addresses")
        for r in range(size):
            mapping = segments[0 if self.is_result else r].mapping
            if mapping.address == NULL or mapping.nbytes < <size_t> HEADER_NBYTES + nbytes:
                raise ValueError(f"the segment of rank {r} has no {nbytes} bytes of data")
            self.bases[r] = mapping.address + <size_t> HEADER_NBYTES
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
