/* The threads of a team: helpers that sleep until they are called, do their part, and count themselves off.
 *
 * One thread, the caller, calls all helpers at once and waits until all have done. A helper that is called wakes two
 * others before it begins, so that many are awake after a few wakings in a row. After its part it looks out for the
 * next call for `spin_ns`, then parks on a semaphore of its own and costs no processor time.
 *
 * No helper touches the interpreter, so it needs no lock of it and survives its end; all signals are blocked, so no
 * handler runs in one. They inherit the affinity mask of the thread that starts them. A forked child has none: its copy
 * of the team is not to be called or dismissed (collectives/engine/thread_team.pyx sees to that).
 *
 * State here is private to the process: nothing in shared memory depends on it.
 */
#ifndef SHMRING_TEAM_H
#define SHMRING_TEAM_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/c/atomics.h"
#include "core/c/layout.h"
#include "core/c/backoff.h"
#include "core/c/thread.h"

/* Room for a block of a fold and its table of sources, and for the static TLS of big libraries. */
#define TEAM_STACK_NBYTES (256 * 1024)

struct shmring_team;

typedef struct {
    SHMRING_APART uint64_t asleep; /* the waiter word (backoff.h) */
    uint32_t is_dismissed;
    sem_t wake;
    pthread_t thread;
    struct shmring_team *team;
    int number; /* from 1 on: number 0 is the caller */
} shmring_helper;

typedef struct shmring_team {
    SHMRING_APART uint64_t calls;    /* ever begun; the caller's */
    void (*work)(void *what, int number);
    void *what;
    int nhelpers;
    int64_t spin_ns;
    SHMRING_APART uint32_t nworking; /* helpers that have not done their part of the last call */
    SHMRING_APART uint64_t asleep;   /* the caller's waiter word */
    sem_t done;
    shmring_helper helpers[SHMRING_THREADS_MAX];
} shmring_team;

/* After `before_wake`. */
static void wake_thread(uint64_t *asleep, sem_t *wake) {
    uint64_t word = load_relaxed_u64(asleep);
    if (word && take_sleeper(asleep, word)) sem_post(wake);
}

/* Wake the helpers below thread `number` in a binary tree, of which the caller is the root. */
static void wake_next(shmring_team *team, int number) {
    before_wake(); /* after the call, which this thread has made or observed */
    for (int next = 2 * number + 1; next <= 2 * number + 2 && next <= team->nhelpers; next++)
        wake_thread(&team->helpers[next - 1].asleep, &team->helpers[next - 1].wake);
}

static bool is_called(shmring_helper *helper, uint64_t seen) {
    /* SYNC call (meets: call_helpers). What there is to do is visible. */
    return load_acquire_u64(&helper->team->calls) != seen || load_acquire_u32(&helper->is_dismissed);
}

static void await_call(shmring_helper *helper, uint64_t seen) {
    shmring_sleeper sleeper = {&helper->asleep, 1, &helper->wake, NULL, helper->team->spin_ns, 0, -1, NULL};
    shmring_patience patience;
    be_patient(&patience, -1);
    while (!is_called(helper, seen)) back_off(&patience, &sleeper);
    end_wait(&patience, &sleeper);
}

static void *help(void *argument) {
    shmring_helper *helper = argument;
    shmring_team *team = helper->team;
    for (uint64_t seen = 0;; seen++) { /* the caller waits for all before it calls again, so none is missed */
        await_call(helper, seen);
        if (load_acquire_u64(&team->calls) == seen) return NULL; /* dismissed */
        wake_next(team, helper->number);
        team->work(team->what, helper->number);
        /* SYNC done (meets: have_all_done). Each helper's part before its countdown. */
        if (subtract_one_u32(&team->nworking) > 0) continue;
        before_wake();
        wake_thread(&team->asleep, &team->done);
    }
}

/* ---- the caller's side ------------------------------------------------------------------------------------------- */

static shmring_team *make_team(void (*work)(void *, int), void *what, int64_t spin_ns) {
    shmring_team *team = aligned_alloc(SHMRING_FALSE_SHARING, sizeof *team);
    if (team == NULL) return NULL;
    memset(team, 0, sizeof *team);
    team->work = work;
    team->what = what;
    team->spin_ns = spin_ns;
    sem_init(&team->done, 0, 0);
    return team;
}

/* Before the first call. How many came to be: fewer than wanted where the system gives no more threads. */
static int start_helpers(shmring_team *team, int wanted) {
    while (team->nhelpers < wanted && team->nhelpers < (int)SHMRING_THREADS_MAX - 1) {
        shmring_helper *helper = &team->helpers[team->nhelpers];
        helper->team = team;
        helper->number = team->nhelpers + 1;
        sem_init(&helper->wake, 0, 0);
        if (start_thread(&helper->thread, TEAM_STACK_NBYTES, "shmring-helper", help, helper)) break;
        team->nhelpers++;
    }
    return team->nhelpers;
}

/* Between calls: keep this many and wait for the others' ends, which takes as long as waking them. */
static void dismiss_helpers(shmring_team *team, int kept) {
    while (team->nhelpers > kept) {
        shmring_helper *helper = &team->helpers[--team->nhelpers];
        store_release_u32(&helper->is_dismissed, 1);
        before_wake();
        wake_thread(&helper->asleep, &helper->wake);
        pthread_join(helper->thread, NULL);
        sem_destroy(&helper->wake);
    }
}

static void call_helpers(shmring_team *team) {
    store_relaxed_u32(&team->nworking, (uint32_t)team->nhelpers);
    /* SYNC call (meets: is_called). */
    store_release_u64(&team->calls, load_relaxed_u64(&team->calls) + 1);
    wake_next(team, 0);
}

static bool have_all_done(shmring_team *team) {
    /* SYNC done (meets: help). */
    return load_acquire_u32(&team->nworking) == 0;
}

/* Wait for all, but no longer than a tick or until a signal was caught; whether they have done. `patience` is kept from
 * one call to the next until they have. */
static bool await_helpers(shmring_team *team, shmring_patience *patience, int64_t tick_ns) {
    shmring_sleeper sleeper = {&team->asleep, 1, &team->done, NULL, team->spin_ns, 0, tick_ns, NULL};
    while (!have_all_done(team))
        if (back_off(patience, &sleeper) == TICK) return have_all_done(team);
    end_wait(patience, &sleeper);
    return true;
}

#endif
