# Timeouts, counts and ranks that callers pass: numbers of Python, checked, as those of C.

from libc.limits cimport INT_MIN
from libc.stdint cimport int64_t


cdef extern from *:
    """
    /* The value of an int of one digit; INT_MIN: anything else. */
    static inline int shmring_one_digit(PyObject *number) {
        if (!PyLong_CheckExact(number)) return INT_MIN;
    #if PY_VERSION_HEX >= 0x030C0000
        if (!PyUnstable_Long_IsCompact((PyLongObject *)number)) return INT_MIN;
        return (int)PyUnstable_Long_CompactValue((PyLongObject *)number);
    #else
        Py_ssize_t sign = Py_SIZE(number);
        return sign < -1 || sign > 1 ? INT_MIN : (int)(sign * (Py_ssize_t)((PyLongObject *)number)->ob_digit[0]);
    #endif
    }
    """
    int one_digit "shmring_one_digit"(object number) noexcept


cdef enum:
    NO_LIMIT = -1    # of `seconds_to_ns`: wait as long as it takes


cdef int64_t seconds_to_ns(object seconds, str name) except -2
cdef bint is_negative(object seconds) except -1
cdef object int_or_none(object count)
cdef int64_t checked_count(object count, int64_t most) except -1
cdef int64_t checked_part(object count, int64_t whole) except -1
cdef int any_int_of(object number, str name, int most) except? -2


cdef inline int64_t timeout_to_ns(object seconds) except -2:
    return seconds_to_ns(seconds, "timeout")


cdef inline int64_t forgiving_timeout_to_ns(object seconds) except -2:
    """The same, but a time below 0 is 0, as `multiprocessing` takes it."""
    return seconds_to_ns(0 if seconds is not None and is_negative(seconds) else seconds, "timeout")


cdef inline int64_t resolve_timeout(object timeout, int64_t default) except -2:
    """A public timeout as nanoseconds, -1: no limit. Ellipsis stands for ``default``."""
    return default if timeout is ... else timeout_to_ns(timeout)


cdef inline int int_of(object number, str name, int most) except? -2:
    """The argument ``name``, from 0 to ``most`` or a value that its user knows, as an int of C; `ValueError` for what
    that cannot hold."""
    cdef int n = one_digit(number)
    return n if n != INT_MIN else any_int_of(number, name, most)
