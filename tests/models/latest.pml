/* The latest value (channels/latest.pyx): versions of a value in NSLOTS slots by turns; writers one after the other, of
 * which the first may be killed at each step; a reader that copies the newest version and looks whether it was
 * overwritten. A value is two words, both its version. The lock of the writers is that of the kernel: here the second
 * writer begins when the first has ended or died, and everything that that one had stored has arrived.
 *
 * To be found faulty: MUTATION =
 *   1  the slot is not marked before it is overwritten
 *   2  no fence between that mark and the stores of the value
 *   3  the number of the newest is stored without release
 *   4  the reader does not look at the version after its copy
 *   5  a new writer takes the newest version for one that may be overwritten
 */
#ifndef MUTATION
#define MUTATION 0
#endif

#define NSLOTS 2
#define NVERSIONS 4
#define NWORDS 7
#define NPROCS 3
#define NEWEST 0
#define VERSION(v) (1 + 3 * ((v) % NSLOTS))
#define FIRST(v) (2 + 3 * ((v) % NSLOTS))
#define SECOND(v) (3 + 3 * ((v) % NSLOTS))

#include "memory.pml"

bit has_left;

inline write_all(limit) {
    do
    :: version < limit ->
        version++;
        may_die();
#if MUTATION != 1
        store_release(VERSION(version), 0);
#endif
#if MUTATION != 2
        full_fence();
#endif
        may_die();
        store_relaxed(FIRST(version), version);
        may_die();
        store_relaxed(SECOND(version), version);
        may_die();
        store_relaxed(VERSION(version), version);
        may_die();
#if MUTATION == 3
        store_relaxed(NEWEST, version)
#else
        store_release(NEWEST, version)
#endif
    :: version == limit -> break
    od
}

proctype first_writer(byte me) {
    bit mortal = 1;
    byte version;
    write_all(NVERSIONS - 1);
#ifdef DEATH
died:
#endif
    has_left = 1
}

proctype second_writer(byte me) {
    bit mortal = 0;
    byte version;
    has_left && buffer[0].count == 0;
    load(NEWEST, version);
#if MUTATION == 5
    version = (version > 0 -> version - 1 : 0);
#endif
    write_all(NVERSIONS);
#ifdef DEATH
died:
#endif
    skip
}

proctype reader(byte me) {
    byte version, last, found, one, two, looks;
    do
    :: looks < 2 ->
        looks++;
        load(NEWEST, version);
        assert(version >= last);
        last = version;
        if
        :: version == 0
        :: else ->
            load(FIRST(version), one);
            load(SECOND(version), two);
#if MUTATION == 4
            found = version;
#else
            load(VERSION(version), found);
#endif
            if
            :: found == version -> assert(one == version && two == version)
            :: else ->
                /* Overwritten: then there is a newer one. */
                load(NEWEST, found);
                assert(found != version)
            fi
        fi
    :: looks == 2 -> break
    od
}

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
