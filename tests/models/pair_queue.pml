/* Pair queue (collectives/p2p/pair_queue.pyx): messages from one rank to one other. A message is one cell, or a sequence of pieces
 * through the byte ring with one cell for each. A cell is announced by its number, stored last. The receiver publishes in
 * one counter how many cells it has taken; the sender derives from it which bytes are free again.
 *
 * Here: NCELLS cells of one word each beside the number, a ring of NBYTES bytes, pieces of one byte. Of four
 * cells two hold their payload themselves. The sender derives free room from the counter alone, for each part of the
 * ring in the same way; there is one here. The receiver must load from each cell and each byte exactly what the sender
 * stored. With DEATH the sender may be killed at each step: the receiver takes the announced cells and ends.
 *
 * Mutations that must be found faulty: MUTATION =
 *   1  the number of a cell is stored without release
 *   2  cells and bytes are released before they are read
 *   3  the sender assumes one free cell too many
 *   4  the sender assumes one free byte too many
 *   5  cells are distinguished by a bit (old, new) instead of a number, and the bit is not inverted
 *   6  the payload is loaded before the number of its cell
 *   7  the bytes of taken cells are looked up one cell too far
 */
#ifndef MUTATION
#define MUTATION 0
#endif

#define NCELLS 2
#define NBYTES 1
#define NCOUNT 6                   /* number of cells sent */
#define NPROCS 2
#define SEQ(n) ((n) % NCELLS)
#define CELL(n) (NCELLS + (n) % NCELLS)
#define BYTE(n) (2 * NCELLS + (n) % NBYTES)
#define TAKEN (2 * NCELLS + NBYTES)
#define NWORDS (2 * NCELLS + NBYTES + 1)

/* In turn: two cells that hold their payload themselves, two with a byte of a piece. */
#define is_whole(n) ((n) % 4 < 2)
#if MUTATION == 5
#define NUMBER(n) 1
#else
#define NUMBER(n) ((n) + 1)
#endif
#if MUTATION == 3
#define CELLS_ASSUMED (NCELLS + 1)
#else
#define CELLS_ASSUMED NCELLS
#endif
#if MUTATION == 4
#define BYTES_ASSUMED (NBYTES + 1)
#else
#define BYTES_ASSUMED NBYTES
#endif

#include "memory.pml"

bit is_dead;

proctype sender(byte me) {
    bit mortal = 1;
    byte sent, taken, filled, drained, nbytes;
    byte filled_by[NCELLS];
    do
    :: sent < NCOUNT ->
        nbytes = (is_whole(sent) -> 0 : 1);
        may_die();
        do
        :: sent - taken < CELLS_ASSUMED && filled - drained + nbytes <= BYTES_ASSUMED -> break
        :: else ->
            memory[TAKEN] != taken;
            load(TAKEN, taken);
#if MUTATION == 7
            drained = filled_by[taken % NCELLS];
#else
            drained = filled_by[(taken - 1) % NCELLS];
#endif
            may_die()
        od;
        if
        :: nbytes > 0 -> store_relaxed(BYTE(filled), sent + 1); filled++
        :: else -> store_relaxed(CELL(sent), sent + 1)
        fi;
        may_die();
        filled_by[sent % NCELLS] = filled;
#if MUTATION == 1
        store_relaxed(SEQ(sent), NUMBER(sent));
#else
        store_release(SEQ(sent), NUMBER(sent));
#endif
        sent++
    :: sent == NCOUNT -> break
    od;
    goto gone;
#ifdef DEATH
died:
    is_dead = 1;
#endif
gone:
    skip
}

proctype receiver(byte me) {
    byte taken, drained, seq, found;
    do
    :: taken < NCOUNT ->
#if MUTATION == 6
        if
        :: is_whole(taken) -> load(CELL(taken), found)
        :: else -> load(BYTE(drained), found)
        fi;
#endif
        load(SEQ(taken), seq);
        if
        :: seq == NUMBER(taken) ->
#if MUTATION == 2
            store_release(TAKEN, taken + 1);
#endif
#if MUTATION != 6
            if
            :: is_whole(taken) -> load(CELL(taken), found)
            :: else -> load(BYTE(drained), found)
            fi;
#endif
            assert(found == taken + 1);
            if :: is_whole(taken) :: else -> drained++ fi;
            taken++;
#if MUTATION != 2
            store_release(TAKEN, taken)
#endif
        :: else ->
            if
            :: memory[SEQ(taken)] != seq
            :: is_dead && memory[SEQ(taken)] == seq -> break
            fi
        fi
    :: taken == NCOUNT -> break
    od
}

init {
    atomic {
        run drain(0);
        run drain(1);
        run sender(0);
        run receiver(1)
    }
}
