# Timeouts, counts and ranks that callers pass: numbers of Python, checked, as those of C.

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.limits cimport INT_MAX, INT_MIN
from libc.stdint cimport int64_t


cdef enum:
    NO_LIMIT = -1    # of `seconds_to_ns`: wait as long as it takes


cdef int64_t seconds_to_ns(object seconds, str name) except -2
cdef object int_or_none(object count)
cdef int64_t checked_count(object count, int64_t most) except -1
cdef int64_t checked_part(object count, int64_t whole) except -1
cdef int refuse_int(object number, str name, int most) except -1


cdef inline int64_t timeout_to_ns(object seconds) except -2:
    return seconds_to_ns(seconds, "timeout")


cdef inline int64_t resolve_timeout(object timeout, int64_t default) except -2:
    """A public timeout as nanoseconds, -1: no limit. Ellipsis stands for ``default``."""
    return default if timeout is ... else timeout_to_ns(timeout)


cdef inline int int_of(object number, str name, int most) except? -2:
    """The argument ``name``, from 0 to ``most`` or a value that its user knows, as an int of C; `ValueError` for what
    that cannot hold."""
    cdef int overflow
    cdef long long n = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow or not INT_MIN <= n <= INT_MAX:
        refuse_int(number, name, most)
    return <int> n
