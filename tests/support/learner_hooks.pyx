# cython: language_level=3, binding=True
"""The learner of the calls, for tests in Python that simulate machines; built by `support.compiled`."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from shmring.base.learner cimport (LEAST_TIMED, SCHEDULE, alternative, begin, is_timed, learner_t, look, note,
                                   note_trip, open_learner, value_of, values_of, with_alternative)


cdef class Learner:
    """A learner of one call: one rank decides, the others follow its words.

    Parameters
    ----------
    nvalues : sequence of int
        The number of values of each dimension, at most four; at most five dimensions.
    guess : sequence of int, optional
        The values to begin with.
    lead : int
        Calls from the publication of a word until every rank is sure to have loaded it; no rank is farther ahead of the
        one that decides.
    window : int
        Calls of a trial, of which the last four count.
    exchange : int
        The schedule that is tried with ordinary stores; 0: none.

    Notes
    -----
    Before each call of the rank that decides, `look` gives the word to publish. Before each call of every rank, `begin`
    gives its variant. `is_timed` tells the rank that decides whether to time the call just begun, for `note`.
    """

    cdef learner_t l

    def __cinit__(self, nvalues, guess=(), uint32_t lead=0, uint32_t window=LEAST_TIMED, int exchange=0):
        cdef uint32_t offer = 0, variant = 0
        for dimension, n in enumerate(nvalues):
            offer |= values_of(dimension, n) if n > 1 else 0
        for dimension, value in enumerate(guess):
            variant = with_alternative(variant, alternative(dimension, value))
        open_learner(&self.l, 1, variant, offer, lead, window)
        self.l.ordinary = alternative(SCHEDULE, exchange) if exchange else 0

    def look(self):
        """Before a call of the rank that decides: the word to publish, or 0."""
        return look(&self.l)

    def begin(self, uint64_t word):
        """Count a call: the values of its variant, by dimension. ``word``: the last one found published."""
        cdef uint32_t variant = begin(&self.l, word)
        return tuple([value_of(variant, dimension) for dimension in range(5)])

    @property
    def is_timed(self):
        """Whether the call that was begun last will be timed."""
        return is_timed(&self.l, self.l.calls - 1)

    def note(self, int64_t inside_ns, int64_t whole_ns, int64_t trip_ns=0):
        """Record the time of the call that was begun last: within it, and until the next one; and how long a message
        between processors takes, if that was measured."""
        note_trip(&self.l, trip_ns)
        note(&self.l, self.l.calls - 1, inside_ns, whole_ns)
