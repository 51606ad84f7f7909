# cython: language_level=3, binding=True
"""`shmring.core.sync.wait` for tests in Python; built by `support.compiled`."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

from shmring.core.c.layout cimport shmring_abort, shmring_liveness, shmring_outbox
from shmring.core.sync.backoff cimport (CHECK, FEW_YIELDS, FIRST_CROWD_NS, FIRST_TICK_NS, FRESH, LONGEST_CROWD_NS,
                                        MOST_HALVINGS, SLEEPS, SOON_NS, SPINS, WAITS_PER_TRIAL, back_off, be_patient,
                                        is_crowded, learn_spin, note_long_yield, note_short_yield, now_ns, patience_t,
                                        sem_init, sleeper_t, spin_budget, spin_t)
from shmring.core.sync.group cimport PUBLISHED, UNREADY, group_t
from shmring.core.sync.liveness cimport drop_liveness, hold_liveness
from shmring.core.sync.wait cimport wait_until

cdef extern from "core/c/backoff.h" nogil:
    ctypedef struct shmring_crowd:
        pass
    shmring_crowd crowd      # this module's record

FIRST_TICK = FIRST_TICK_NS
HALVINGS, TRIAL = MOST_HALVINGS, WAITS_PER_TRIAL
FIRST_CROWD, LONGEST_CROWD, SOON, FEW = FIRST_CROWD_NS, LONGEST_CROWD_NS, SOON_NS, FEW_YIELDS

cdef shmring_outbox boxes[2]
cdef shmring_liveness lives[2]


def ticks_of_two_waits():
    """The tick after a wait that slept, whose counter came between two of its calls, and as it was before that."""
    cdef group_t g
    cdef shmring_abort record
    cdef patience_t patience
    cdef uint64_t seen[2]
    cdef shmring_outbox *outbox[2]
    cdef shmring_liveness *liveness[2]
    cdef int j, outcome, call
    memset(&g, 0, sizeof(g))
    memset(&record, 0, sizeof(record))
    memset(boxes, 0, sizeof(boxes))
    memset(lives, 0, sizeof(lives))
    seen[0] = seen[1] = 0
    for j in range(2):
        outbox[j], liveness[j] = &boxes[j], &lives[j]
        sem_init(&boxes[j].wake, 1, 0)
        hold_liveness(&lives[j])
    g.size, g.first, g.record, g.outbox, g.liveness = 2, &g, &record, outbox, liveness
    g.seen[0] = g.seen[1] = seen
    g.tick_ns = 20000000
    be_patient(&patience, -1)
    try:
        for call in range(3):
            with nogil:
                outcome = wait_until(&g, PUBLISHED, 1, 1, &patience)
            assert outcome == UNREADY
        before = patience.tick_ns
        boxes[1].published = 1
        with nogil:
            outcome = wait_until(&g, PUBLISHED, 1, 1, &patience)
        return outcome, before, patience.tick_ns
    finally:
        for j in range(2):
            drop_liveness(&lives[j])


cdef class Waiter:
    """What one waiter learns from waits that last as a test has them last."""

    cdef spin_t spin
    cdef sleeper_t sleeper

    def __init__(self, int64_t spin_ns):
        self.sleeper.spin_ns, self.sleeper.spin = spin_ns, &self.spin

    def wait(self, int64_t lasts_ns, bint has_come=True):
        """The budget of a wait of that many nanoseconds, from which the waiter then learns."""
        cdef patience_t patience
        cdef int64_t budget = spin_budget(&self.sleeper)
        be_patient(&patience, -1)
        patience.stage = FRESH if lasts_ns == 0 else SPINS if lasts_ns <= budget else SLEEPS
        patience.began_ns = now_ns() - lasts_ns
        learn_spin(&self.sleeper, &patience, has_come)
        return budget

    def first_tick(self, int64_t longest_ns):
        """How long the first sleep of its next wait is at most."""
        cdef patience_t patience
        self.sleeper.tick_ns = longest_ns
        be_patient(&patience, -1)
        back_off(&patience, &self.sleeper)
        return patience.tick_ns

    def looks_before_sleep(self, int yields):
        """How often its next wait looks before it checks for the last time and sleeps."""
        cdef patience_t patience
        cdef int64_t looks = 0
        self.sleeper.yields = yields
        be_patient(&patience, -1)
        while back_off(&patience, &self.sleeper) != CHECK:
            looks += 1
        return looks


def is_busy_at(int64_t now):
    """Whether waits of this module do not yield at that time."""
    return is_crowded(now)


def yield_long(int64_t now):
    """Note a long yield that ended at that time."""
    note_long_yield(now)


def yield_shortly(int count):
    """Note so many short yields."""
    for _ in range(count):
        note_short_yield()


def forget_long_yields():
    """As if there had been none."""
    memset(&crowd, 0, sizeof(shmring_crowd))


def clock():
    """The time by the clock of waits, in nanoseconds."""
    return now_ns()
