"""What bounds every implementation: how fast the ranks copy, and how long one word takes there and back."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from shmring._c.atomics cimport cpu_pause, load_acquire_u64, store_release_u64
from shmring.arrays.reduce cimport copy_bytes

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef enum:
    _APART = 16    # words of 8 bytes: what different processors write lies 128 bytes apart
    WARMUP = 20
    LOOKS = 2000   # before a yield: two ranks may for a while have one processor

APART = _APART
WAYS = "memcpy", "a loop", "past the cache"    # the loops are over vectors, the last with non-temporal stores


def copy(unsigned char[::1] y not None, const unsigned char[::1] x not None, Py_ssize_t times, str way="memcpy"):
    """Copy ``x`` into ``y``, ``times`` times: by one of `WAYS`."""
    cdef Py_ssize_t _i
    cdef bint by_loop = way != "memcpy", past_cache = way == "past the cache"
    if len(x) != len(y):
        raise ValueError(f"{len(x)} bytes do not fit {len(y)}")
    if way not in WAYS:
        raise ValueError(f"way={way!r}: must be one of {', '.join(WAYS)}")
    with nogil:
        for _i in range(times):
            if by_loop:
                copy_bytes(&y[0], &x[0], y.shape[0], past_cache)
            else:
                memcpy(&y[0], &x[0], y.shape[0])


def round_trips(uint64_t[::1] words not None, int rank, int size, uint64_t times):
    """Time ``times`` round trips of one word between rank 0 and each of the others, one after the other.

    All ranks call this together, with the same shared ``words``: two for each other rank, `APART` apart, zero at first.

    Returns
    -------
    list of float
        On rank 0 nanoseconds for each of the others, nothing on the others.
    """
    cdef int peer
    cdef list taken = []
    cdef double ns
    if len(words) < 2 * size * _APART:
        raise ValueError(f"{len(words)} words are too few for {size} ranks")
    for peer in range(1, size):
        if rank == 0:
            with nogil:
                ns = _ping(&words[2 * peer * _APART], &words[(2 * peer + 1) * _APART], times)
            taken.append(ns)
        elif rank == peer:
            with nogil:
                _pong(&words[2 * peer * _APART], &words[(2 * peer + 1) * _APART], times)
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
