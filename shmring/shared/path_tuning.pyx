"""Learns whether a collective on shared arrays is better staged.

On shared arrays the ranks access one another's arrays. A rank that stores into its array before the next call must
first get the lines back from the ranks that have read them. Staged, the lines of the array stay with its owner, and the
slots are written by the fastest kind of stores. Which of the two takes less time depends on the collective, its size,
the distance of the cores, and on what the program does between the calls, which no call can measure. So the calls of a
collective are divided into windows, in every period some windows are staged, and the time from the beginning of a
window to that of the next one decides.

One rank decides, the root or else rank 0, by its own times: ranks that call in a loop take equally long for a window.
When the ranks agree about shared arrays it publishes how many calls, from this one on, are staged: these need no
agreement.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint64_t

from shmring.arrays.store_tuning cimport ON_TRIAL, decide, least, next_call, note, trials_us
from shmring.shared.paths cimport STAGED, ZERO_COPY
from shmring.engine.compiled_plan cimport Program
from shmring.sync.backoff cimport now_ns


cdef enum:
    NPATHS = 2             # STAGED and ZERO_COPY
    # Windows in a trial. A window has as many calls as the staged plan tries one kind of stores, so that plan decides
    # between these kinds within its first trial.
    TRIES = 8
    COUNTED = 4            # the last ones, of which the shortest counts
    MARGIN = 16            # staging must save this part of the time at least: it loads and stores more bytes


cdef class PathTrials:
    """The trials of one collective and size.

    Parameters
    ----------
    shared, staged : Program
        The plans between which they decide.
    """

    def __cinit__(self, Program shared not None, Program staged not None):
        self.shared = shared
        self.window = staged.stores.tries
        self.trials.tries = TRIES
        self.trials.nways = NPATHS
        self.trials.way = ZERO_COPY

    def stats(self):
        """What was learned; see `Communicator.stats`."""
        return {"kind": self.shared.plan.kind, "staged": self.is_staged,
                "trial_us": tuple([us / self.window for us in trials_us(&self.trials)])}

    cdef uint64_t count_call(self) noexcept nogil:
        """Count a call about which the ranks agree; so many calls from it on are staged. Of the rank that decides."""
        if self.left == 0:
            self.next_window()
        self.left -= 1
        return self.left + 1 if self.way == STAGED else 0

    cdef void next_window(self) noexcept nogil:
        """Record the time of the window that ends, and begin the next one."""
        cdef int64_t now = now_ns()
        cdef int64_t cost_ns[NPATHS]
        cdef int64_t took_ns = INT64_MAX if self.is_mixed else now - self.begun_ns
        if self.begun_ns and note(&self.trials, self.trials.calls - 1, took_ns, COUNTED):
            cost_ns[STAGED] = least(&self.trials, STAGED)
            cost_ns[ZERO_COPY] = least(&self.trials, ZERO_COPY) // MARGIN * (MARGIN - 1)
            if max(cost_ns[STAGED], cost_ns[ZERO_COPY]) < INT64_MAX // MARGIN * (MARGIN - 1):
                decide(&self.trials, cost_ns)
        self.begun_ns = now if next_call(&self.trials, &self.way) == ON_TRIAL else 0
        self.is_mixed = False
        self.left = self.window
