/* Liveness and the abort record (report_trouble and is_reported in core/sync/abort.pyx, check_ranks in core/sync/wait.pyx).
 *
 * NRANKS ranks; rank 0 is killed, or the timeout of another rank passes first. The rank that notices writes the record:
 * it takes the state by compare-and-swap, fills in the record, stores the state with release, and wakes all. The writer
 * may be killed in between (with DEATH), or stopped there (with STOP), and the others must still end.
 *
 * A survivor ends when the record is complete. It must then load a cause and the rank that the record is about. The
 * kernel's mark of a death may become visible before or after the last store of the dead process.
 *
 * Mutations that must be found faulty: MUTATION =
 *   1  the state "written" is stored without release
 *   2  (DEATH) a record whose writer died is not completed
 *   3  the state is loaded and stored without compare-and-swap, and the loser uses what it wrote itself
 *   4  (STOP) a record whose writer stopped is waited for
 *   5  the record is loaded before its state
 */
#ifndef MUTATION
#define MUTATION 0
#endif

#define NRANKS 3
#define NPROCS NRANKS
#define NWORDS 3
#define STATE 0     /* 0 nothing, 1 + rank being written by that rank, WRITTEN */
#define CAUSE 1
#define ABOUT 2     /* rank + 1 */
#define WRITTEN 9
#define LOST 1
#define LATE 2

#include "memory.pml"

bit is_dead[NRANKS], is_stopped[NRANKS];
byte writers;

#ifdef STOP
#define may_stop() if :: me == 1 -> is_stopped[me] = 1; goto gone :: skip fi
#else
#define may_stop() skip
#endif

inline complete(cause, about) {
    store_relaxed(CAUSE, cause);
    store_relaxed(ABOUT, about + 1);
#if MUTATION == 1
    store_relaxed(STATE, WRITTEN)
#else
    store_release(STATE, WRITTEN)
#endif
}

inline report(cause, about) {
#if MUTATION == 3
    load(STATE, state);
    won = (state == 0);
    if :: won -> store_release(STATE, 1 + me) :: else fi;
#else
    compare_swap(STATE, 0, 1 + me, won);
#endif
    if
    :: won ->
        writers++;
        assert(writers == 1);
        may_die();
        may_stop();
        store_relaxed(CAUSE, cause);
        may_die();
        store_relaxed(ABOUT, about + 1);
        may_die();
#if MUTATION == 1
        store_relaxed(STATE, WRITTEN)
#else
        store_release(STATE, WRITTEN)
#endif
    :: else
    fi
}

proctype rank(byte me) {
    bit mortal = (me == 1), won;
    byte state, cause, about;
    if
    :: me == 0 -> goto died         /* the rank that all others wait for */
    :: else
    fi;
    do
    ::  /* the check at each tick of a wait */
#if MUTATION == 5
        load(CAUSE, cause);
        load(ABOUT, about);
#endif
        load(STATE, state);
        if
        :: state == WRITTEN -> break
        :: state == 0 && is_dead[0] -> report(LOST, 0)
        :: state == 0 && !is_dead[0] -> if :: report(LATE, 0) :: skip fi
        :: state != 0 && state != WRITTEN ->
            if
#if MUTATION != 2
            :: is_dead[state - 1] -> complete(LOST, state - 1)
#endif
#if MUTATION != 4
            :: is_stopped[state - 1] -> complete(LATE, state - 1)       /* after a bounded wait */
#endif
            :: memory[STATE] != state       /* its writer proceeds */
            fi
        fi
    od;
#if MUTATION != 5
    load(CAUSE, cause);
    load(ABOUT, about);
#endif
    assert(cause == LOST || cause == LATE);
    assert(about == 1 || about == 2);
    goto gone;
died:
    is_dead[me] = 1;
gone:
    skip
}

init {
    atomic {
        byte i = 0;
        do
        :: i < NRANKS -> run drain(i); run rank(i); i++
        :: else -> break
        od
    }
}
