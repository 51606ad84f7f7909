"""Bounds of every implementation: copy bandwidth, and the round trip of one word between two ranks."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from shmring._c.atomics cimport cpu_pause, load_acquire_u64, store_release_u64
from shmring._c.layout cimport SHMRING_ORDINARY, SHMRING_STREAMING
from shmring.kernel.reduce cimport copy_bytes

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef enum:
    _APART = 16    # words of 8 bytes: words that different processors store lie 128 bytes apart
    WARMUP = 20
    LOOKS = 2000   # loads before a yield: for a while two ranks may share one processor

APART = _APART
WAYS = "memcpy", "a loop", "past the cache"    # the last two are vector loops; the last has non-temporal stores


def copy(y, x, Py_ssize_t times, str way="memcpy"):
    """Copy the bytes of ``x`` into ``y``, ``times`` times, by one of `WAYS`."""
    cdef Py_ssize_t _i
    cdef Py_buffer target, source
    cdef bint by_loop = way != "memcpy"
    cdef int stores = SHMRING_STREAMING if way == "past the cache" else SHMRING_ORDINARY
    if way not in WAYS:
        raise ValueError(f"way={way!r}: must be one of {', '.join(WAYS)}")
    PyObject_GetBuffer(y, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(x, &source, PyBUF_SIMPLE)
        try:
            if source.len != target.len:
                raise ValueError(f"{source.len} bytes do not fit {target.len}")
            with nogil:
                for _i in range(times):
                    if by_loop:
                        copy_bytes(<char *> target.buf, <char *> source.buf, target.len, stores)
                    else:
                        memcpy(target.buf, source.buf, target.len)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)


def round_trips(words, int rank, int size, uint64_t times):
    """Time ``times`` round trips of one word between rank 0 and each of the others, one after the other.

    All ranks call this together, with the same shared ``words`` of 8 bytes: two for each other rank, `APART` apart,
    initially zero.

    Returns
    -------
    list of float
        On rank 0, nanoseconds for each of the other ranks; empty on the other ranks.
    """
    cdef int peer
    cdef list taken = []
    cdef double ns
    cdef Py_buffer view
    cdef uint64_t *word
    PyObject_GetBuffer(words, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if view.len < 16 * size * _APART:
            raise ValueError(f"{view.len // 8} words are too few for {size} ranks")
        word = <uint64_t *> view.buf
        for peer in range(1, size):
            if rank == 0:
                with nogil:
                    ns = _ping(word + 2 * peer * _APART, word + (2 * peer + 1) * _APART, times)
                taken.append(ns)
            elif rank == peer:
                with nogil:
                    _pong(word + 2 * peer * _APART, word + (2 * peer + 1) * _APART, times)
    finally:
        PyBuffer_Release(&view)
    return taken


cdef double _ping(uint64_t *mine, uint64_t *theirs, uint64_t times) noexcept nogil:
    cdef uint64_t first = mine[0] + 1, i
    cdef int64_t start = 0
    for i in range(times + WARMUP):
        if i == WARMUP:
            start = _now_ns()
        store_release_u64(mine, first + i)      # SYNC there (meets: _pong)
        _await(theirs, first + i)               # SYNC back (meets: _pong)
    return <double> (_now_ns() - start) / times


cdef void _pong(uint64_t *theirs, uint64_t *mine, uint64_t times) noexcept nogil:
    cdef uint64_t first = mine[0] + 1, i
    for i in range(times + WARMUP):
        _await(theirs, first + i)               # SYNC there (meets: _ping)
        store_release_u64(mine, first + i)      # SYNC back (meets: _ping)


cdef void _await(uint64_t *word, uint64_t value) noexcept nogil:
    cdef int looks = 0
    while load_acquire_u64(word) < value:
        looks += 1
        if looks % LOOKS == 0:
            sched_yield()
        else:
            cpu_pause()


cdef int64_t _now_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t> t.tv_sec * 1000000000 + t.tv_nsec
