/* The ring (core/ring/spsc.pxd): one producer, one consumer, NSLOTS slots, two counters that only grow. The producer may be killed
 * at each step, or close in good order. The consumer takes the slots one by one and must find in each what was put there;
 * it ends when the stream is finished or, after a death, when it has looked once more and nothing is there.
 *
 * To be found faulty: MUTATION =
 *   1  the count of filled slots is announced without release
 *   2  a slot is given back before it is read
 *   3  the producer believes in one slot more than there are
 *   4  the end of the stream is asked about in the other order: counter first, flag second
 *   5  the payload is looked at before the counter, as without acquire
 *   6  the flag that closes is stored without release
 */
#ifndef MUTATION
#define MUTATION 0
#endif

#define NSLOTS 2
#define NMESSAGES 4
#define NWORDS 5
#define NPROCS 2
#define SLOT(n) ((n) % NSLOTS)
#define TAIL 2
#define HEAD 3
#define CLOSED 4

#if MUTATION == 3
#define CAPACITY (NSLOTS + 1)
#else
#define CAPACITY NSLOTS
#endif

#include "memory.pml"

bit is_dead, has_closed;
byte committed, taken;

proctype producer(byte me) {
    bit mortal = 1;
    byte tail, cached_head;
    do
    :: tail < NMESSAGES ->
        may_die();
        do
        :: tail - cached_head < CAPACITY -> break
        :: else -> load(HEAD, cached_head); may_die()
        od;
        store_relaxed(SLOT(tail), tail + 1);
        may_die();
        tail++;
#if MUTATION == 1
        store_relaxed(TAIL, tail);
#else
        store_release(TAIL, tail);
#endif
        committed = tail
    :: tail == NMESSAGES -> break
    od;
    may_die();
    has_closed = 1;
#if MUTATION == 6
    store_relaxed(CLOSED, 1);
#else
    store_release(CLOSED, 1);
#endif
    goto gone;
#ifdef DEATH
died:
    is_dead = 1;
#endif
gone:
    skip
}

proctype consumer(byte me) {
    byte head, cached_tail, found, closed, dead;
    do
    :: head < cached_tail ->
#if MUTATION == 2
        head++;
        store_release(HEAD, head);
        load(SLOT(head - 1), found);
        assert(found == head);
#elif MUTATION == 5
        assert(found == head + 1);
        head++;
        store_release(HEAD, head);
#else
        load(SLOT(head), found);
        assert(found == head + 1);
        head++;
        store_release(HEAD, head);
#endif
        taken = head
    :: head == cached_tail ->
#if MUTATION == 4
        load(TAIL, cached_tail);
        if
        :: cached_tail == head -> load(CLOSED, closed); if :: closed -> break :: else fi
        :: else
        fi;
#else
        load(CLOSED, closed);
        dead = is_dead;
#if MUTATION == 5
        load(SLOT(head), found);
#endif
        load(TAIL, cached_tail);
        assert(cached_tail - head <= NSLOTS);
        if
        :: cached_tail == head && (closed || dead) -> break
        :: else
        fi
#endif
    od;
    assert(!has_closed || taken == committed)
}

init {
    atomic {
        run drain(0);
        run drain(1);
        run producer(0);
        run consumer(1)
    }
}
