/* The latest value (channels/latest.pyx): versions of a value in NSLOTS slots; writers one after the other, of which the
 * first may be killed at each step; a reader. Without LEASE it copies the newest version and looks whether it was
 * overwritten; with LEASE it leases the slot, for which there is one place. A value is two words, both its version.
 * The lock of the writers is not modelled: here the second writer begins when the first has ended or died, and
 * everything that that one had stored has arrived. A writer takes any slot that is neither the newest nor leased.
 *
 * To be found faulty: MUTATION =
 *   1  the slot is not marked before it is overwritten
 *   2  no fence between that mark and what follows
 *   3  the number of the newest is stored without release
 *   4  the reader does not look at the version after its copy, or after it has leased
 *   5  a new writer takes the newest version for one that may be overwritten
 *   6  with LEASE: the writer looks for leases only before it marks the slot
 *   7  with LEASE: no fence between the lease and the look at the version
 *   8  with LEASE: the lease ends before the last load
 */
#ifndef MUTATION
#define MUTATION 0
#endif

#define NSLOTS 3
#ifndef NVERSIONS
#define NVERSIONS 4
#endif
#define NWORDS 11
#define NPROCS 3
#define NEWEST 0
#define LEASE_OF 10
#define VERSION(s) (1 + 3 * (s))
#define FIRST(s) (2 + 3 * (s))
#define SECOND(s) (3 + 3 * (s))
#define NUMBER(n) ((n) / 4)
#define SLOT(n) ((n) % 4)

#include "memory.pml"

bit has_left;

/* Any slot that is neither the newest nor leased: there is one. */
inline pick() {
    load(LEASE_OF, leased);
    if
    :: (newest == 0 || SLOT(newest) != 0) && leased != 1 -> slot = 0
    :: (newest == 0 || SLOT(newest) != 1) && leased != 2 -> slot = 1
    :: (newest == 0 || SLOT(newest) != 2) && leased != 3 -> slot = 2
    :: else -> assert(false)
    fi
}

inline write_all(limit) {
    do
    :: NUMBER(newest) < limit ->
#if MUTATION == 5
        newest = newest - newest % 4 + (SLOT(newest) + 1) % NSLOTS;
#endif
        leased = 9;
        do
        :: leased == 9 ->
            pick();
            may_die();
#if MUTATION != 1
            store_release(VERSION(slot), 0);
#endif
#if MUTATION != 2
            full_fence();
#endif
#if MUTATION == 6
            leased = 0
#else
            load(LEASE_OF, leased);
            if
            :: leased == slot + 1 -> leased = 9
            :: else -> leased = 0
            fi
#endif
        :: else -> break
        od;
        newest = 4 * (NUMBER(newest) + 1) + slot;
        may_die();
        store_relaxed(FIRST(slot), NUMBER(newest));
        may_die();
        store_relaxed(SECOND(slot), NUMBER(newest));
        may_die();
        store_relaxed(VERSION(slot), NUMBER(newest));
        may_die();
#if MUTATION == 3
        store_relaxed(NEWEST, newest)
#else
        store_release(NEWEST, newest)
#endif
    :: else -> break
    od
}

proctype first_writer(byte me) {
    bit mortal = 1;
    byte newest, slot, leased;
    write_all(NVERSIONS - 1);
#ifdef DEATH
died:
#endif
    has_left = 1
}

proctype second_writer(byte me) {
    bit mortal = 0;
    byte newest, slot, leased;
    has_left && buffer[0].count == 0;
    load(NEWEST, newest);
    write_all(NVERSIONS);
#ifdef DEATH
died:
#endif
    skip
}

#ifdef LEASE
proctype reader(byte me) {
    byte newest, last, found, one, two, looks;
    do
    :: looks < 2 ->
        looks++;
        load(NEWEST, newest);
        assert(newest >= last);
        last = newest;
        if
        :: newest == 0
        :: else ->
            store_release(LEASE_OF, SLOT(newest) + 1);
#if MUTATION != 7
            full_fence();
#endif
#if MUTATION == 4
            found = NUMBER(newest);
#else
            load(VERSION(SLOT(newest)), found);
#endif
            if
            :: found == NUMBER(newest) ->
                load(FIRST(SLOT(newest)), one);
#if MUTATION == 8
                store_release(LEASE_OF, 0);
#endif
                load(SECOND(SLOT(newest)), two);
                assert(one == NUMBER(newest) && two == NUMBER(newest))
            :: else ->
                /* Overwritten: then there is a newer one. */
                load(NEWEST, found);
                assert(found != newest)
            fi;
            store_release(LEASE_OF, 0)
        fi
    :: looks == 2 -> break
    od
}
#else
proctype reader(byte me) {
    byte newest, last, found, one, two, looks;
    do
    :: looks < 2 ->
        looks++;
        load(NEWEST, newest);
        assert(newest >= last);
        last = newest;
        if
        :: newest == 0
        :: else ->
            load(FIRST(SLOT(newest)), one);
            load(SECOND(SLOT(newest)), two);
#if MUTATION == 4
            found = NUMBER(newest);
#else
            load(VERSION(SLOT(newest)), found);
#endif
            if
            :: found == NUMBER(newest) -> assert(one == NUMBER(newest) && two == NUMBER(newest))
            :: else ->
                load(NEWEST, found);
                assert(found != newest)
            fi
        fi
    :: looks == 2 -> break
    od
}
#endif

init {
    atomic {
        run drain(0);
        run drain(1);
        run drain(2);
        run first_writer(0);
        run second_writer(1);
        run reader(2)
    }
}
