"""One sleep of the calling thread for several receivers: at the waiter words of their rings.

Between two sleeps the receivers are as before; during one they are busy, as in a call of their own.
"""

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from shmring.core.base.timeouts cimport timeout_to_ns
from shmring.channels.ring_ends cimport RingReceiver
from shmring.core.ring.blocking cimport awaited_t, wait_t
from shmring.core.ring.end cimport await_rings
from shmring.core.sync.backoff cimport FUTEX_WAITV_WORDS, has_futex_waitv


cdef Py_ssize_t words_of(object end):
    """The number of waiter words of an end; more than a thread can sleep on, if it is no receiver of a ring."""
    return 1 if isinstance(end, RingReceiver) else FUTEX_WAITV_WORDS + 1


def can_sleep_on_words(list ends):
    """Whether a `WordSleep` can wait for these."""
    return sum(map(words_of, ends)) <= FUTEX_WAITV_WORDS and has_futex_waitv()


@cython.final
cdef class WordSleep:
    """One sleep until one of several receivers may have something; they were just seen to have nothing.

    Parameters
    ----------
    ends : list
        As `can_sleep_on_words` allows; each once.
    """

    cdef list ends
    cdef wait_t wait
    cdef bint is_asleep

    def __cinit__(self, list ends):
        self.ends = ends
        self.wait.awaited = <awaited_t *>calloc(FUTEX_WAITV_WORDS, sizeof(awaited_t))
        if self.wait.awaited == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.wait.awaited)

    def sleep(self, timeout):
        """Return when an end may be ready, or after so many seconds; None: no limit. Raises if an end is busy."""
        cdef int64_t timeout_ns = timeout_to_ns(timeout)
        cdef Py_ssize_t nbusy = 0
        self.wait.n = 0
        try:
            for end in self.ends:
                self.enter(end)
                nbusy += 1
            await_rings(self, &self.wait, timeout_ns, None, &self.is_asleep)
        finally:
            for end in self.ends[:nbusy]:
                (<RingReceiver>end).is_busy = False

    cdef int enter(self, RingReceiver end) except -1:
        with cython.critical_section(end):
            end.require_idle()
            end.fill_in(&self.wait.awaited[self.wait.n])
            end.is_busy = True
        self.wait.n += 1
        return 0

    def __repr__(self):
        return f"shmring.wait for one of {len(self.ends)} ends"
