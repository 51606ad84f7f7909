"""Timeouts, counts and ranks that callers pass: numbers of Python, checked, as those of C."""

import time

from cpython.long cimport PyLong_AsLongLongAndOverflow
from libc.limits cimport INT_MAX, INT_MIN
from cpython.number cimport PyNumber_Index


# ---- timeouts --------------------------------------------------------------------------------------------------------

cdef int64_t seconds_to_ns(object seconds, str name) except -2:
    """The argument ``name``, a timeout in seconds, as nanoseconds: 0: look once; `NO_LIMIT` for None, infinity and what
    int64 cannot hold. `ValueError` for a negative number or NaN, `TypeError` for what is no real number."""
    cdef double value
    if seconds is None:
        return NO_LIMIT
    try:
        value = seconds
    except TypeError:
        raise TypeError(
            f"{name}={seconds!r}: must be a number of seconds, or None for no limit, not {type(seconds).__name__}"
        ) from None
    except OverflowError:    # an int beyond the range of a double
        value = 1e300 if seconds > 0 else -1.0
    if not value >= 0:       # NaN too
        raise ValueError(f"{name}={seconds!r}: must be 0 or more seconds, or None for no limit")
    value *= 1e9
    return <int64_t> value if value < 9223372036854775808.0 else NO_LIMIT


cdef bint is_negative(object seconds) except -1:
    """Whether it is a number below 0."""
    try:
        return bool(seconds < 0)
    except (TypeError, ValueError):        # no number, which `seconds_to_ns` refuses
        return False


def at_least_0(seconds):
    """A timeout in seconds as `multiprocessing` takes it: below 0 it is 0."""
    return 0 if is_negative(seconds) else seconds


def timeout_ns(seconds, str name="timeout"):
    """`seconds_to_ns` for Python code."""
    return seconds_to_ns(seconds, name)


def deadline_after(seconds, name="timeout"):
    """The moment, by `time.monotonic`, at which a timeout ends; None for no limit. Arguments as of `timeout_ns`."""
    ns = timeout_ns(seconds, name)
    return None if ns < 0 else time.monotonic() + ns / 1e9


# ---- counts ----------------------------------------------------------------------------------------------------------

cdef int64_t checked_count(object count, int64_t most) except -1:
    """How many things a caller asks for at most, 1 or more; None, and whatever is more than that, is ``most``."""
    cdef int overflow
    cdef int64_t n
    if count is None:
        return most
    count = PyNumber_Index(count)
    n = PyLong_AsLongLongAndOverflow(count, &overflow)
    if overflow > 0:
        return most
    if n < 1:
        raise ValueError(f"count={count}: must be at least 1")
    return min(n, most)


cdef object int_or_none(object count):
    """A count as an int, or None. Python code may run here: callers check afterwards what it may have changed."""
    return None if count is None else PyNumber_Index(count)


cdef int64_t checked_part(object count, int64_t whole) except -1:
    """How many of ``whole`` things ``count``, of `int_or_none`, means: none of them or more; None: all."""
    if count is None:
        return whole
    if not 0 <= count <= whole:
        raise ValueError(f"count={count}: must be from 0 to {whole}")
    return count


# ---- ranks and tags --------------------------------------------------------------------------------------------------

cdef int any_int_of(object number, str name, int most) except? -2:
    """See `int_of`: of an int of any size, or what has ``__index__``."""
    cdef int overflow
    cdef long long n = PyLong_AsLongLongAndOverflow(number, &overflow)
    if overflow or not INT_MIN <= n <= INT_MAX:
        raise ValueError(f"{name}={PyNumber_Index(number)}: must be from 0 to {most}")
    return <int> n
