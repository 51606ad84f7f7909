/* Memory as weak as C11's release and acquire leave it for stores: between each process and the common memory stands a
 * buffer of its stores, which reach the memory late and in any order, except that
 *
 *   - two stores to one word keep their order,
 *   - a release store waits for all that its process stored before it,
 *   - a full fence, and a compare-and-swap, wait until the buffer is empty.
 *
 * With TSO defined the buffer is first in, first out, as on x86. Loads look into the own buffer first. They happen when
 * they are executed: that an acquire load keeps later loads behind it is built in. A model shows what a missing acquire
 * would do by executing the loads in the other order, as a mutation.
 *
 * A process that dies executes nothing more; what is in its buffer still arrives, also after the mark of its death.
 *
 * Before including this: NWORDS, words of memory, all zero at first; NPROCS; `me`, the own number, in each process.
 */
#define ROOM 3

byte memory[NWORDS];

typedef buffer_t {
    byte count;
    byte word[ROOM];
    byte value[ROOM];
    bit releases[ROOM];
};
buffer_t buffer[NPROCS];

inline store(w, v, is_release) {
    atomic {
        buffer[me].count < ROOM;
        buffer[me].word[buffer[me].count] = w;
        buffer[me].value[buffer[me].count] = v;
        buffer[me].releases[buffer[me].count] = is_release;
        buffer[me].count++
    }
}

#define store_relaxed(w, v) store(w, v, 0)
#define store_release(w, v) store(w, v, 1)

/* The newest own store to the word that has not arrived, else the memory. */
inline load(w, into) {
    d_step {
        into = memory[w];
        if
        :: buffer[me].count > 0 && buffer[me].word[0] == w -> into = buffer[me].value[0]
        :: else
        fi;
        if
        :: buffer[me].count > 1 && buffer[me].word[1] == w -> into = buffer[me].value[1]
        :: else
        fi;
        if
        :: buffer[me].count > 2 && buffer[me].word[2] == w -> into = buffer[me].value[2]
        :: else
        fi
    }
}

#define full_fence() buffer[me].count == 0

inline compare_swap(w, expected, desired, done) {
    atomic {
        buffer[me].count == 0;
        done = (memory[w] == (expected));
        if
        :: done -> memory[w] = desired
        :: else
        fi
    }
}

/* The i-th store in the buffer arrives. */
inline arrive(i) {
    d_step {
        memory[buffer[me].word[i]] = buffer[me].value[i];
        if
        :: i < 1 -> buffer[me].word[0] = buffer[me].word[1]; buffer[me].value[0] = buffer[me].value[1];
                    buffer[me].releases[0] = buffer[me].releases[1]
        :: else
        fi;
        if
        :: i < 2 -> buffer[me].word[1] = buffer[me].word[2]; buffer[me].value[1] = buffer[me].value[2];
                    buffer[me].releases[1] = buffer[me].releases[2]
        :: else
        fi;
        buffer[me].word[2] = 0;
        buffer[me].value[2] = 0;
        buffer[me].releases[2] = 0;
        buffer[me].count--
    }
}

#define may_overwrite(i) (buffer[me].count > i && !buffer[me].releases[i] && buffer[me].word[i] != buffer[me].word[0])

proctype drain(byte me) {
end:
    do
    :: buffer[me].count > 0 -> arrive(0)
#ifndef TSO
    :: may_overwrite(1) -> arrive(1)
    :: may_overwrite(2) && buffer[me].word[2] != buffer[me].word[1] -> arrive(2)
#endif
    od
}

/* A step at which a process may be killed, in the runs with DEATH. */
#ifdef DEATH
#define may_die() if :: mortal -> goto died :: skip fi
#else
#define may_die() skip
#endif
