"""A range of a file mapped into this process.

Python's own ``mmap`` duplicates the descriptor and keeps it for the life of the mapping: with hundreds of peers that is
hundreds of descriptors. Here the caller owns the descriptor and may close it as soon as the mapping exists.
"""

import os
import resource

from shmring.core.base.control_groups import memory_room
from shmring.errors import ClosedError, OutOfSharedMemoryError

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EFAULT, EINTR, EINVAL, ENOMEM, ENOSPC, errno
from posix.mman cimport (MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED, PROT_NONE,
                         PROT_READ, PROT_WRITE, madvise, mmap, munmap)
from posix.stat cimport fstat, struct_stat
from posix.types cimport off_t
from posix.unistd cimport _SC_PAGESIZE, sysconf

from shmring.core.sync.liveness cimport end_liveness


cdef extern from *:
    """
    /* Since Linux 5.14; older headers do not know them, older kernels answer EINVAL. */
    #ifndef MADV_POPULATE_READ
    #define MADV_POPULATE_READ 22
    #endif
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    #ifndef MADV_COLLAPSE
    #define MADV_COLLAPSE 25 /* since 6.1 */
    #endif
    """
    const int MADV_POPULATE_READ
    const int MADV_POPULATE_WRITE
    const int MADV_COLLAPSE

cdef extern from "<fcntl.h>" nogil:
    int posix_fallocate(int fd, off_t offset, off_t nbytes)
    int fallocate(int fd, int mode, off_t offset, off_t nbytes)
    const int FALLOC_FL_KEEP_SIZE
    const int FALLOC_FL_PUNCH_HOLE

PAGE_NBYTES = sysconf(_SC_PAGESIZE)

cdef enum:
    READS = 1
    COPIES = 2

SHARED, READ_ONLY, COPY_ON_WRITE = 0, READS, COPIES      # for Python

# Size of a huge page mapped by one PMD entry, with base pages of 4 KiB; with larger base pages it is larger, and
# `collapse` does nothing. Such entries are possible only where address and file offset are equal modulo this.
HUGE_PAGE_NBYTES = 2 << 20
HUGE_NBYTES = HUGE_PAGE_NBYTES

# What is left of this range is compared with the room in the control group, which takes the time of a small range.
cdef off_t COUNTED_NBYTES = 4 << 20

# Allocated or populated per system call; signals are handled in between.
cdef off_t PART_NBYTES = 64 << 20


def allocate(int fd, off_t offset, off_t nbytes):
    """Give a range of a file its pages; the file grows to hold them. After an error the range has none.

    Signals are handled between parts. Many kernels undo a call that a signal interrupts: with a timer, a large one
    would start again for ever. So parts get smaller until one fits between two signals.
    """
    cdef off_t at = offset, left = nbytes, part = PART_NBYTES
    cdef int error
    file_system = os.fstatvfs(fd)
    if file_system.f_blocks and nbytes > file_system.f_blocks * file_system.f_frsize:
        raise OSError(ENOSPC, os.strerror(ENOSPC))  # else only when it has allocated all that there is
    try:
        while left > 0:
            part = min(part, left)
            if left >= COUNTED_NBYTES:
                # The kernel would not refuse, but end a process. Again for each part: others allocate, too.
                room = memory_room()
                if room is not None and left > room:
                    raise OSError(ENOMEM, os.strerror(ENOMEM))
            with nogil:
                error = posix_fallocate(fd, at, part)
            if error == 0:
                at, left = at + part, left - part
                part = min(2 * part, PART_NBYTES)
            elif error == EINTR:
                part = max(part // 2, <off_t>PAGE_NBYTES)
            else:
                raise OSError(error, os.strerror(error))
            PyErr_CheckSignals()
    except BaseException:
        if at > offset:
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, at - offset)
        raise


cdef int populate(char *address, size_t nbytes, bint write) noexcept nogil:
    """Fault in whole pages, contents kept; 0 or the error number."""
    while madvise(address, nbytes, MADV_POPULATE_WRITE if write else MADV_POPULATE_READ):
        if errno != EINTR and errno != EAGAIN:
            return errno
    return 0


cdef void touch_pages(volatile char *address, size_t nbytes, bint write) noexcept nogil:
    # Not atomic: a byte that another process writes between our read and our write would be lost.
    cdef size_t at = 0
    cdef char byte
    while at < nbytes:
        byte = address[at]
        if write:
            address[at] = byte
        at += PAGE_NBYTES


cdef char *map_private_like(size_t nbytes, size_t like, int protection, int flags) noexcept nogil:
    """New private memory at an address that is ``like`` modulo the huge page size; MAP_FAILED with errno set."""
    cdef size_t whole = (nbytes + PAGE_NBYTES - 1) // PAGE_NBYTES * PAGE_NBYTES, before
    cdef char *room = <char *> mmap(NULL, whole + HUGE_NBYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0)
    if room == MAP_FAILED:
        return room
    before = (like - <size_t> room) % HUGE_NBYTES
    if before:
        munmap(room, before)
    munmap(room + before + whole, HUGE_NBYTES - before)
    return room + before


cdef void *map_aligned(int fd, size_t nbytes, Py_ssize_t offset, int access, int *error) noexcept nogil:
    """mmap, at an address that allows huge pages if the size does; MAP_FAILED with the error number."""
    cdef char *room
    cdef void *address
    cdef int protection = PROT_READ if access == READS else PROT_READ | PROT_WRITE
    cdef int sharing = MAP_PRIVATE if access == COPIES else MAP_SHARED
    if nbytes < HUGE_NBYTES or access:     # files that are not written by their mapping are blocks: of small pages
        address = mmap(NULL, nbytes, protection, sharing, fd, offset)
        error[0] = errno
        return address
    room = map_private_like(nbytes, offset, PROT_NONE, MAP_NORESERVE)
    error[0] = errno
    if room == MAP_FAILED:
        return MAP_FAILED
    address = mmap(room, nbytes, protection, sharing | MAP_FIXED, fd, offset)
    error[0] = errno
    if address == MAP_FAILED:
        munmap(room, nbytes)
    return address


cdef class Mapping:
    """``nbytes`` bytes of the file behind descriptor ``fd``, from ``offset`` on; by default shared and writable.

    The range must lie inside the file, since touching a page past its end is a SIGBUS. The descriptor is not kept.
    ``memoryview`` and ``numpy.frombuffer`` treat it as a ``bytearray`` of fixed size; Cython code uses the members
    ``address`` and ``nbytes``. Garbage collection unmaps it too.

    Parameters
    ----------
    fd : int
        Descriptor open for reading and writing.
    nbytes : int
        At least 1.
    offset : int, default 0
        A multiple of the page size.
    access : int, default SHARED
        `SHARED`; `READ_ONLY`; or `COPY_ON_WRITE`: writable, and what is written is this process's own.

    Raises
    ------
    ValueError
        The range is empty, not on a page, or not inside the file.
    OutOfSharedMemoryError
        The kernel refuses: RLIMIT_AS, vm.max_map_count, no memory for page tables.
    OSError
        Any other refusal, with its errno.
    """

    def __cinit__(self, int fd, Py_ssize_t nbytes, Py_ssize_t offset=0, int access=0):
        cdef struct_stat status
        cdef void *address
        cdef int error
        if nbytes <= 0:
            raise ValueError(f"a mapping needs at least one byte, not nbytes={nbytes}")
        if offset < 0 or offset % PAGE_NBYTES:
            raise ValueError(f"offset={offset} is not a multiple of the page size ({PAGE_NBYTES} bytes)")
        if fstat(fd, &status):
            raise OSError(errno, f"cannot map descriptor {fd}: {os.strerror(errno)}")
        if offset > status.st_size or nbytes > status.st_size - offset:
            raise ValueError(f"bytes {offset}..{offset + nbytes} are not inside a file of {status.st_size} bytes; "
                             "touching them would be a SIGBUS")
        with nogil:
            address = map_aligned(fd, nbytes, offset, access, &error)
        if address == MAP_FAILED:
            if error == ENOMEM or error == EAGAIN:
                raise OutOfSharedMemoryError(f"cannot map {nbytes} bytes of shared memory: {os.strerror(error)} "
                                             f"({address_space_limit()})", nbytes)
            raise OSError(error, f"cannot map {nbytes} bytes: {os.strerror(error)}")
        self.address = <char *>address
        self.nbytes = nbytes
        self.is_readonly = access == READS

    def __dealloc__(self):
        if self.address != NULL:
            self.unmap()

    cdef void unmap(self) noexcept:
        # Ends a liveness word in it that no mapping has registered, since a signal handler interrupted its holder.
        end_liveness(self.address, self.nbytes)
        munmap(self.address, self.nbytes)
        self.address = NULL

    @property
    def closed(self):
        """Whether `close` was called."""
        return self.address == NULL

    @cython.critical_section
    def close(self):
        """Unmap. A second call does nothing; ``BufferError`` while there are memoryviews or arrays of the memory."""
        if self.address == NULL:
            return
        if self.views:
            raise BufferError(f"cannot close a mapping with {self.views} views: release them first")
        self.unmap()

    @cython.critical_section
    def collapse(self, Py_ssize_t offset=0, nbytes=None):
        """Turn the whole huge pages inside a range into one physical page each, contents kept, mapped by one entry.

        The range must be reserved: memory that it lacks would be allocated. Processes that map the file afterwards at
        an address that allows it (`Mapping` chooses one) get such entries too. Needs Linux 6.1, but no system setting.

        Returns
        -------
        int
            Bytes that are huge now, from the first huge page of the range on: fewer than requested where the kernel
            refuses, because it has no such page free or is too old.
        """
        cdef size_t at, end, done = 0
        cdef int error = 0
        self._pages(offset, nbytes)      # checks
        end = <size_t> self.address + offset + (self.nbytes - offset if nbytes is None else nbytes)
        at = (<size_t> self.address + offset + HUGE_NBYTES - 1) // HUGE_NBYTES * HUGE_NBYTES
        self.views += 1      # another thread cannot unmap it meanwhile
        try:
            while at + HUGE_NBYTES <= end:
                with nogil:
                    error = madvise(<void *> at, HUGE_NBYTES, MADV_COLLAPSE)
                if error:
                    break
                at += HUGE_NBYTES
                done += HUGE_NBYTES
                PyErr_CheckSignals()
        finally:
            self.views -= 1
        return done

    @property
    def huge_nbytes(self):
        """Bytes that this process maps by huge pages now, according to the kernel; 0 where it does not report it."""
        with cython.critical_section(self):
            address = <size_t> self.address
        if address == 0:
            return 0
        start, inside = f"{address:x}-", False
        try:
            with open("/proc/self/smaps") as smaps:
                for line in smaps:
                    name, _, rest = line.partition(" ")
                    if not name.endswith(":"):
                        inside = line.lstrip("0").startswith(start)
                    elif inside and name == "ShmemPmdMapped:":
                        return int(rest.split()[0]) << 10
        except OSError:
            pass
        return 0

    @cython.critical_section
    def prefault(self, Py_ssize_t offset=0, nbytes=None, *, bint write=True):
        """Give every page of a range its physical page and page-table entry now, contents kept.

        Never a SIGBUS: a page that the file system cannot provide is an error here, on Linux 5.14 and later.

        Parameters
        ----------
        offset, nbytes : int
            The range, rounded outwards to pages; by default all.
        write : bool, default True
            Fault for writing. Older kernels need each page rewritten (`touch`), so it is legal only for memory
            that no other process writes yet. False faults for reading and is always legal.

        Raises
        ------
        OutOfSharedMemoryError
            The file system has no page left.
        """
        cdef size_t at, end
        at, end = self._pages(offset, nbytes)
        self.views += 1      # another thread cannot unmap it meanwhile
        try:
            if not self.populate_range(at, end, write):
                with nogil:
                    touch_pages(self.address + at, end - at, write)
        finally:
            self.views -= 1

    cdef bint populate_range(self, size_t at, size_t end, bint write) except -1:
        """Whether the kernel could fault in these pages."""
        cdef size_t chunk_nbytes, most_nbytes = PART_NBYTES
        cdef int error
        while at < end:
            chunk_nbytes = min(most_nbytes, end - at)
            with nogil:
                error = populate(self.address + at, chunk_nbytes, write)
            if error == EINVAL:
                return False
            if error == EFAULT or error == ENOMEM:
                raise OutOfSharedMemoryError(f"no memory behind bytes {at}..{at + chunk_nbytes} of a mapping: "
                                             "its file was not reserved, or was truncated", chunk_nbytes)
            if error:
                raise OSError(error, f"cannot prefault: {os.strerror(error)}")
            at += chunk_nbytes
            PyErr_CheckSignals()
        return True

    @cython.critical_section
    def touch(self, Py_ssize_t offset=0, nbytes=None, *, bint write=True):
        """Fault pages in by hand: read one byte of each and, with ``write``, store it again.

        What `prefault` does on kernels that cannot populate. The memory must be reserved (SIGBUS otherwise).
        """
        cdef size_t at, end
        at, end = self._pages(offset, nbytes)
        self.views += 1
        with nogil:
            touch_pages(self.address + at, end - at, write)
        self.views -= 1

    def _pages(self, Py_ssize_t offset, nbytes):
        """The range as page bounds (from, to), checked."""
        if self.address == NULL:
            raise ClosedError("the mapping is closed")
        count = self.nbytes - offset if nbytes is None else nbytes
        if offset < 0 or count < 0 or offset + count > self.nbytes:
            raise ValueError(f"offset={offset}, nbytes={nbytes} is not inside a mapping of {self.nbytes} bytes")
        return offset // PAGE_NBYTES * PAGE_NBYTES, -(-(offset + count) // PAGE_NBYTES) * PAGE_NBYTES

    def __len__(self):
        return self.nbytes

    def __repr__(self):
        return f"<Mapping of {self.nbytes} bytes{', closed' if self.address == NULL else ''}>"

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        with cython.critical_section(self):
            if self.address == NULL:
                raise ClosedError("the mapping is closed")
            PyBuffer_FillInfo(buffer, self, self.address, self.nbytes, self.is_readonly, flags)
            self.views += 1

    def __releasebuffer__(self, Py_buffer *buffer):
        with cython.critical_section(self):
            self.views -= 1


def address_space_limit():
    """The limits that may be exhausted when the kernel refuses a mapping, for messages."""
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft == resource.RLIM_INFINITY:
        return "RLIMIT_AS is unlimited; see vm.max_map_count and vm.overcommit_memory"
    return f"RLIMIT_AS, ulimit -v, is {soft} bytes"
