# cython: language_level=3, binding=True
"""The learner of the calls, for tests in Python that simulate machines; built by `support.compiled`."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from shmring.core.base.learner cimport (LEAST_TIMED, MOST_ALTERNATIVES, alternative, alternative_t, begin, dimensions_t,
                                   is_timed, learner_t, look, note, note_trip, open_learner, value_of, values_of,
                                   with_value)
from shmring.collectives.engine.compiled_plan cimport OUTPUT, PATH, SCHEDULE, STORES

cdef enum:
    NDIMENSIONS = 5


cdef class Learner:
    """A learner of one call: one rank decides, the others follow its words.

    Parameters
    ----------
    nvalues : sequence of int
        The number of values of each dimension; at most five dimensions.
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
    cdef alternative_t alternatives[MOST_ALTERNATIVES + 1]

    def __cinit__(self, nvalues, guess=(), uint32_t lead=0, uint32_t window=LEAST_TIMED, int exchange=0):
        cdef uint32_t offer = 0, variant = 0
        cdef dimensions_t d
        memset(&d, 0, sizeof(dimensions_t))
        d.of_stores, d.whole = 1 << STORES | 1 << OUTPUT, 1 << PATH | 1 << OUTPUT
        for dimension in range(NDIMENSIONS):
            d.nvalues[dimension] = nvalues[dimension] if dimension < len(nvalues) else 1
        for dimension, n in enumerate(nvalues):
            offer |= values_of(d.nvalues, dimension, n) if n > 1 else 0
        for dimension, value in enumerate(guess):
            variant = with_value(d.nvalues, variant, dimension, value)
        d.ordinary = <int> alternative(d.nvalues, SCHEDULE, exchange) if exchange else -1
        d.within = <int> alternative(d.nvalues, PATH, 1) if d.nvalues[PATH] > 1 else -1
        open_learner(&self.l, &d, 1, variant, offer, lead, window)

    def look(self):
        """Before a call of the rank that decides: the word to publish, or 0."""
        return look(&self.l)

    def begin(self, uint64_t word):
        """Count a call: the values of its variant, by dimension. ``word``: the last one found published."""
        cdef uint32_t variant = begin(&self.l, word)
        return tuple([value_of(self.l.nvalues, variant, dimension) for dimension in range(NDIMENSIONS)])

    @property
    def is_timed(self):
        """Whether the call that was begun last will be timed."""
        return is_timed(&self.l, self.l.calls - 1)

    def note(self, int64_t inside_ns, int64_t whole_ns, int64_t trip_ns=0):
        """Record the time of the call that was begun last: within it, and until the next one; and how long a message
        between processors takes, if that was measured."""
        note_trip(&self.l, trip_ns)
        note(&self.l, self.l.calls - 1, inside_ns, whole_ns)
