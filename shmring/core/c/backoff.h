/* Waiting: spin, yield, sleep; and the one handshake between a thread that sleeps and the one that wakes it.
 *
 * A waiter has a word and a semaphore that its wakers can reach, in shared memory or in their own process:
 *
 *     waiter                                        waker
 *     1 waiter word = what it waits for             1 store the awaited word (release)
 *       full fence                                    full fence
 *     2 look at the awaited word once more          2 load the waiter word
 *     3 sleep on the semaphore                      3 if that wait is over: swap the word to 0, post
 *     4 waiter word = 0
 *
 * In every order of these steps the waiter's look observes the store, or the waker observes the waiter word: no wake-up
 * is lost. The swap lets one of several wakers post. A waker makes no system call unless a waiter sleeps.
 *
 * A waiter whose wakers have no semaphore in common sleeps on its waiter words (futex.h), and the value in each word
 * tells its waker so. In step 3 the kernel compares the words, so a swap before it ends the sleep; a swap after it is
 * followed by the wake-up of the word. A waiter word is not 0 while its waiter sleeps, and bit 0 is set, so the low half
 * of the word, which the kernel compares, differs after every swap.
 *
 * The waiter's loop, in which `is_there` looks at the awaited words by acquire loads:
 *
 *     while (!is_there()) {
 *         int step = back_off(&patience, &sleeper);
 *         ...                     nothing to do for LOOK; at CHECK and TICK see whether the wait makes sense any longer
 *     }
 *     learn_spin(&sleeper, &patience, true);           if this waiter learns how long to spin
 *     end_wait(&patience, &sleeper);
 *
 * tests/models/waiting.pml checks the handshake in every interleaving.
 */
#ifndef SHMRING_BACKOFF_H
#define SHMRING_BACKOFF_H

#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "atomics.h"
#include "futex.h"
#include "moment.h"

#define LOOKS_PER_CLOCK 32              /* looks between two readings of the clock: about a microsecond of pauses */
#define BRIEF_LOOKS 64                  /* before the interpreter lock is released */
#define MOST_STALE_POSTS 64             /* taken before a sleep; a count that was overwritten can be 2^31 */
#define FIRST_TICK_NS 1000000           /* the first sleep; each next one is twice as long, up to the waiter's tick */
#define LONGEST_SPIN_NS 1000000         /* without a check of liveness, timeout and signals, whatever the budget */
#define STOP_NS 100000000               /* a step of a wait that took this much longer than asked for: see `forgive` */
#define MOST_HALVINGS 6                 /* of a spin budget, before a waiter sleeps at once */
#define WAITS_PER_TRIAL 64              /* of a waiter that sleeps at once: one of so many waits spins all the same */
#define LONG_YIELD_NS 500000            /* a yield that lasted longer: another program has used its time slice */
#define FEW_YIELDS 8                    /* between two long ones, if another program computes */
#define SOON_NS 50000000                /* after a long yield, or a period without yields: another one belongs to it */
#define FIRST_CROWD_NS 2000000          /* the first period without yields; each next one is twice as long */
#define LONGEST_CROWD_NS 1600000000     /* the longest one */

/* What the caller does after `back_off`, beside looking again. In order: each includes those before it. */
enum shmring_step {
    LOOK = 0,       /* nothing */
    LOOK_ROUND = 1, /* a microsecond has passed, or the waiter word was just stored: look for an abort, too */
    CHECK = 2,      /* before the first sleep: are those alive that it waits for, is the timeout over? */
    TICK = 3,       /* after each sleep, and now and then while spinning: as CHECK, and see to signals */
    BROKEN = 4      /* the semaphore was overwritten: the wait cannot go on */
};

enum shmring_stage { FRESH = 0, SPINS = 1, YIELDS = 2, SLEEPS = 3 };

/* How far one wait has backed off; kept from call to call. Nothing of it is shared. */
typedef struct {
    int stage;
    int looks; /* spinning: until the clock is read again; yielding: yields left */
    bool is_announced;
    int64_t began_ns; /* this wait; valid unless FRESH */
    int64_t spin_until_ns;
    int64_t looked_ns; /* when the clock was last read, for the spin or the timeout; valid unless FRESH */
    int64_t check_at_ns;
    int64_t tick_ns;
    int64_t timeout_ns;  /* < 0: no limit */
    int64_t deadline_ns; /* 0: not computed yet, as the clock is read only in a wait that outlasts the first look */
} shmring_patience;

/* What a waiter has learned from its waits: how often its spin budget is halved. Only the waiter uses it; zero at first.
 *
 * A wait that outlasts the budget halves it, a shorter one doubles it twice; so it stays near the full one as long as a
 * third of the waits are short. After MOST_HALVINGS the waiter sleeps at once, by its longest ticks, but for a trial now
 * and then. */
typedef struct {
    uint32_t halvings;
    uint32_t untried; /* waits since the last trial */
} shmring_spin;

/* Where a thread sleeps, and how soon. */
typedef struct shmring_sleeper {
    uint64_t *word;               /* the waiter word: 0 unless it sleeps or is about to */
    uint64_t what;                /* what it stores there; not 0 */
    sem_t *wake;                  /* posted by the waker that swaps the word to 0; NULL: it wakes the word (futex.h) */
    struct shmring_sleeper *next; /* a wait for one of several words: the next one; all wakers post the first semaphore */
    int64_t spin_ns;
    int yields;
    int64_t tick_ns; /* longest sleep; < 0: no limit */
    shmring_spin *spin; /* NULL: it spins for all of spin_ns */
    int looks;          /* before the clock is read first, and so before the first yield; 0: LOOKS_PER_CLOCK */
} shmring_sleeper;

/* Whether other programs compute on the processors that a waiter uses. There a yield lasts a time slice, milliseconds,
 * and the scheduler does not prefer a thread that has yielded, as it prefers one that is woken. So after two long yields
 * with few others between them waits neither spin for long nor yield; they sleep. A single long yield may be an
 * interrupt, and among many short ones, of ranks that outnumber the processors, now and then one is long.
 *
 * Each extension module has its own record. All threads read and write it, each word separately: it is a hint. */
typedef struct {
    uint64_t until_ns; /* waits yield again after this time */
    uint64_t lasts_ns; /* the length of the last period without yields */
    uint64_t noted_ns; /* the time of the last long yield */
    uint64_t nshort;   /* yields since then */
} shmring_crowd;

static inline int64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t); /* vdso: no system call */
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Whether libc may use a semaphore that a peer could overwrite. It changes only the first half, whose every value it can
 * take. In the second half are flags of the futex call, 0 or 128: for any other, glibc ends the process or never returns.
 * What is overwritten after this, while the thread sleeps, is not noticed. */
static inline bool is_sound(const sem_t *sem) {
    uint32_t flags;
    memcpy(&flags, (const char *)sem + 8, sizeof flags);
    return (flags & ~128u) == 0;
}

/* sem_post, but for a semaphore that was overwritten: its waiter finds that at its next tick. */
static inline void post_if_sound(sem_t *sem) {
    if (is_sound(sem)) sem_post(sem);
}

/* Returns when posted, after `ns` nanoseconds (< 0: no limit), or when a signal was caught. */
static inline void sleep_on(sem_t *sem, int64_t ns) {
    if (ns < 0) {
        sem_wait(sem);
        return;
    }
    struct timespec until = moment_in(ns);
    sem_clockwait(sem, WAITING_CLOCK, &until);
}

/* The same at the words of a chain, of which the first FUTEX_WAITV_WORDS count. */
__attribute__((noinline, unused)) static void sleep_on_words(const shmring_sleeper *s, int64_t ns) {
    shmring_futex futexes[FUTEX_WAITV_WORDS];
    unsigned n = 0;
    for (; s && n < FUTEX_WAITV_WORDS; s = s->next) futexes[n++] = futex_of(s->word, s->what);
    sleep_on_futexes(futexes, n, ns);
}

/* ---- the handshake ----------------------------------------------------------------------------------------------- */

static inline void announce_sleep(shmring_sleeper *s) {
    /* Posts of an earlier sleep that had ended by itself. One that is left ends this sleep early, no more. */
    for (int i = 0; s->wake && i < MOST_STALE_POSTS && sem_trywait(s->wake) == 0; ++i) {}
    /* SYNC asleep (meets: before_wake). The caller looks again after this: its wakers' stores before their fence are
     * visible then, or the word is visible to them. */
    for (; s; s = s->next) store_release_u64(s->word, s->what);
    full_fence();
}

static inline void withdraw_sleep(shmring_sleeper *s) {
    for (; s; s = s->next) store_relaxed_u64(s->word, 0);
}

/* The waker calls this between storing what others may await and loading their waiter words. */
static inline void before_wake(void) {
    /* SYNC asleep (meets: announce_sleep). */
    full_fence();
}

/* Whether this waker, having loaded `word` from a waiter's word, is the one that must wake it. */
static inline bool take_sleeper(uint64_t *at, uint64_t word) { return compare_swap_u64(at, word, 0); }

/* ---- yields ------------------------------------------------------------------------------------------------------ */

static shmring_crowd crowd;

static inline bool is_crowded(int64_t now) { return (uint64_t)now < load_relaxed_u64(&crowd.until_ns); }

__attribute__((noinline, unused)) static void note_long_yield(uint64_t now) {
    uint64_t lasts = FIRST_CROWD_NS;
    bool is_second = now - load_relaxed_u64(&crowd.noted_ns) < SOON_NS;
    bool is_again = now - load_relaxed_u64(&crowd.until_ns) < SOON_NS; /* after a period */
    bool is_among_few = load_relaxed_u64(&crowd.nshort) <= FEW_YIELDS;
    store_relaxed_u64(&crowd.noted_ns, now);
    store_relaxed_u64(&crowd.nshort, 0);
    if (!is_among_few || !(is_second || is_again)) return;
    if (is_again) lasts = 2 * load_relaxed_u64(&crowd.lasts_ns);
    if (lasts > LONGEST_CROWD_NS) lasts = LONGEST_CROWD_NS;
    store_relaxed_u64(&crowd.lasts_ns, lasts);
    store_relaxed_u64(&crowd.until_ns, now + lasts);
}

static inline void note_short_yield(void) { store_relaxed_u64(&crowd.nshort, load_relaxed_u64(&crowd.nshort) + 1); }

/* Let a thread run that wants this processor; `now`: the time. */
static inline void yield_at(int64_t now) {
    sched_yield();
    int64_t later = monotonic_ns();
    if (later - now > LONG_YIELD_NS)
        note_long_yield((uint64_t)later);
    else
        note_short_yield();
}

/* ---- the stages of a wait ---------------------------------------------------------------------------------------- */

static inline void be_patient(shmring_patience *p, int64_t timeout_ns) {
    p->stage = FRESH;
    p->looks = 0;
    p->is_announced = false;
    p->tick_ns = FIRST_TICK_NS;
    p->timeout_ns = timeout_ns;
    p->deadline_ns = 0;
}

/* A step that began at `since`, or what is between two steps, should have lasted `ns`. If it lasted far longer, this
 * thread did not run: its process was stopped, as the whole job may have been. The timeout does not count that time. */
static inline void forgive(shmring_patience *p, int64_t since, int64_t ns, int64_t now) {
    int64_t over = now - since - ns;
    if (over > STOP_NS && p->timeout_ns >= 0)
        p->deadline_ns = p->deadline_ns < INT64_MAX - over ? p->deadline_ns + over : INT64_MAX;
}

/* The time, between two steps of a wait that is not FRESH. */
static inline int64_t look_at_time(shmring_patience *p) {
    int64_t now = monotonic_ns();
    forgive(p, p->looked_ns, 0, now);
    p->looked_ns = now;
    return now;
}

static inline bool is_past_deadline(shmring_patience *p) {
    return p->timeout_ns >= 0 && (p->stage == FRESH ? monotonic_ns() : look_at_time(p)) >= p->deadline_ns;
}

/* How long to spin in the wait that begins. */
static inline int64_t spin_budget(const shmring_sleeper *s) {
    if (!s->spin || s->spin->halvings == 0) return s->spin_ns;
    if (s->spin->halvings < MOST_HALVINGS) return s->spin_ns >> s->spin->halvings;
    if (++s->spin->untried < WAITS_PER_TRIAL) return 0;
    s->spin->untried = 0;
    return s->spin_ns;
}

/* Before `end_wait`, of a wait that was not interrupted: whether what it waited for has come, or time is over. */
static inline void learn_spin(const shmring_sleeper *s, const shmring_patience *p, bool has_come) {
    if (!s->spin || s->spin_ns == 0 || p->stage == FRESH || (p->stage == SPINS && !has_come)) return;
    /* Of a wait in which the thread slept, about half was the time that it took to wake. */
    if (has_come && (p->stage == SPINS || monotonic_ns() - p->began_ns <= 2 * s->spin_ns))
        s->spin->halvings -= s->spin->halvings < 2 ? s->spin->halvings : 2;
    else if (s->spin->halvings < MOST_HALVINGS)
        s->spin->halvings++;
}

static inline void start_spin(shmring_patience *p, const shmring_sleeper *s) {
    int64_t now = monotonic_ns();
    p->stage = SPINS;
    p->looks = s->looks ? s->looks : LOOKS_PER_CLOCK;
    p->began_ns = p->looked_ns = now;
    p->spin_until_ns = now + spin_budget(s);
    p->check_at_ns = now + LONGEST_SPIN_NS;
    /* A waiter with long waits is not woken by several short ticks in each of them. On a busy processor a sleep that is
     * shorter than the kernel's tick has a timer set and taken back, which can take longer than the sleep. */
    if (p->tick_ns < s->tick_ns && (is_crowded(now) || (s->spin && s->spin->halvings == MOST_HALVINGS)))
        p->tick_ns = s->tick_ns;
    if (p->timeout_ns < 0) return;
    if (p->deadline_ns == 0) p->deadline_ns = p->timeout_ns < INT64_MAX - now ? now + p->timeout_ns : INT64_MAX;
    if (p->deadline_ns < p->spin_until_ns) p->spin_until_ns = p->deadline_ns;
}

static inline int spin_on(shmring_patience *p, const shmring_sleeper *s) {
    int64_t now = look_at_time(p);
    if (now >= p->spin_until_ns || is_crowded(now)) {
        p->stage = YIELDS;
        p->looks = s->yields;
        return LOOK_ROUND;
    }
    p->looks = LOOKS_PER_CLOCK;
    if (now >= p->check_at_ns) {
        p->check_at_ns = now + LONGEST_SPIN_NS;
        return TICK;
    }
    /* The awaited thread may want this very processor. If no thread does, the call costs a fraction of the microsecond
     * that has been waited already. */
    yield_at(now);
    return LOOK_ROUND;
}

static inline int sleep_once(shmring_patience *p, shmring_sleeper *s) {
    if (!p->is_announced) {
        announce_sleep(s);
        p->is_announced = true;
        return LOOK_ROUND;
    }
    if (s->wake && !is_sound(s->wake)) return BROKEN;
    int64_t ns = s->tick_ns < 0 ? -1 : p->tick_ns, since = 0;
    if (p->timeout_ns >= 0) {
        since = look_at_time(p);
        int64_t left = p->deadline_ns - since;
        if (left < 0) left = 0;
        if (ns < 0 || left < ns) ns = left;
    }
    if (s->wake)
        sleep_on(s->wake, ns);
    else
        sleep_on_words(s, ns);
    withdraw_sleep(s);
    if (p->timeout_ns >= 0) {
        p->looked_ns = monotonic_ns();
        forgive(p, since, ns, p->looked_ns);
    }
    p->is_announced = false;
    p->tick_ns = 2 * p->tick_ns < s->tick_ns ? 2 * p->tick_ns : s->tick_ns;
    return TICK;
}

/* Out of line: the caller's loop is a load, a compare and a pause while it spins. */
__attribute__((noinline, unused)) static int back_off_further(shmring_patience *p, shmring_sleeper *s) {
    switch (p->stage) {
    case FRESH: start_spin(p, s); return LOOK;
    case SPINS: return spin_on(p, s);
    case YIELDS:
        if (p->looks-- > 0) {
            int64_t now = monotonic_ns();
            if (!is_crowded(now)) {
                yield_at(now);
                return LOOK;
            }
        }
        p->looks = 0;
        p->stage = SLEEPS;
        return CHECK;
    default: return sleep_once(p, s);
    }
}

/* One step of waiting, after a look in vain. */
static inline int back_off(shmring_patience *p, shmring_sleeper *s) {
    if (p->stage == SPINS && p->looks > 0) {
        p->looks--;
        cpu_pause();
        return LOOK;
    }
    return back_off_further(p, s);
}

/* The wait is over, in whichever way. Another one may follow, within the same timeout. */
static inline void end_wait(shmring_patience *p, shmring_sleeper *s) {
    if (p->is_announced) {
        withdraw_sleep(s);
        p->is_announced = false;
    }
    p->stage = FRESH;
    p->looks = 0;
    p->tick_ns = FIRST_TICK_NS;
}

#endif
