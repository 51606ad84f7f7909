"""Whether a call over several nodes is made by a plan or by the wire's own collective: measured, alike on all ranks.

All ranks make the same calls in the same order, so each counts the calls of one description and begins a *look* at the
same one: some calls by the plan, then some by the wire, each timed on every rank. The largest times of all ranks, which
one more collective finds, are the same numbers on every rank; so is what they choose. Looks grow rarer, as the network
may change, but not often.
"""

cimport cython
from libc.stdint cimport UINT64_MAX

cdef enum:
    FIRST_LOOK = 4          # calls before it: the first ones find cold memory
    TIMES_LATER = 8         # each further one comes after so many times as many,
    MUCH_LATER = 32         # or these if the other way took twice as long
    GROUP = 4               # calls that are timed together: where ranks share processors, short and long ones alternate
    GAIN = 32               # the other way is taken if it saves one part in so many

NAMES = ("plan", "wire")


@cython.final
cdef class Trials:
    """The calls of one description, which `Program` makes in both ways."""

    def __cinit__(self):
        self.next_look, self.us = FIRST_LOOK, [None, None]

    cpdef int begin(self) noexcept:
        """The way of the next call."""
        if self.ncalls < self.next_look:
            return self.best
        return PLAN if self.ncalls - self.next_look < NTRIED else WIRE

    cpdef bint note(self, int64_t ns) noexcept:
        """Record the time of the call just made, since the end of the one before; whether the look is over."""
        cdef uint64_t call = self.ncalls - self.next_look
        cdef bint is_tried = self.ncalls >= self.next_look
        self.ncalls += 1
        if is_tried and call % NTRIED >= NTRIED - NTIMED:
            self.times[call // NTRIED][call % NTRIED - (NTRIED - NTIMED)] = ns
        return is_tried and call + 1 == 2 * NTRIED

    def least(self):
        """Nanoseconds of a call in each way on this rank, of the group of calls that other work has delayed least."""
        return [min([sum([self.times[way][i + k] for k in range(GROUP)]) // GROUP for i in range(0, NTIMED, GROUP)])
                for way in range(2)]

    def conclude(self, list ns):
        """Choose by these times, the same on all ranks."""
        other = 1 - self.best
        if GAIN * ns[other] < (GAIN - 1) * ns[self.best]:
            self.best, other = other, self.best
        self.us = [ns[PLAN] / 1e3, ns[WIRE] / 1e3]
        later = MUCH_LATER if ns[other] > 2 * ns[self.best] else TIMES_LATER
        self.next_look = self.ncalls * <uint64_t> later

    def pin(self, way):
        """Make all further calls in this way. All ranks must do so between the same two calls."""
        self.best, self.next_look = NAMES.index(way), UINT64_MAX
