"""The time at which a call over several nodes times out."""

from libc.stdint cimport int64_t

from shmring.sync.backoff cimport now_ns


cdef class Deadline:
    """So many seconds from now, None: no limit."""
    cdef int64_t at_ns          # -1: no limit

    def __cinit__(self, timeout_s):
        self.at_ns = -1
        if timeout_s is not None and timeout_s < 1e9:
            self.at_ns = now_ns() + <int64_t> (1e9 * <double> timeout_s)

    def left_s(self, double grace_s=0.0):
        """Seconds until then; None: no limit."""
        return None if self.at_ns < 0 else max(0.0, 1e-9 * (self.at_ns - now_ns()) + grace_s)


UNLIMITED = Deadline(None)
