/* The kinds of calls: ONE table, indexed by code. What a kind needs, and which ranks access which memory, is read here
 * by every check, plan, report and test. Python has the same table as shmring.engine.kinds.KINDS. */
#ifndef SHMRING_KINDS_H
#define SHMRING_KINDS_H

enum {
    KIND_NONE,
    KIND_BARRIER,
    KIND_ALL_REDUCE,
    KIND_REDUCE,
    KIND_BROADCAST,
    KIND_ALL_GATHER,
    KIND_REDUCE_SCATTER,
    KIND_GATHER,
    KIND_SCATTER,
    KIND_ALL_TO_ALL,
    KIND_SCAN,
    KIND_EXSCAN,
    KIND_ALL_REDUCE_MANY,
    KIND_BROADCAST_MANY,
    KIND_SEND,
    KIND_RECV,
    KIND_PROBE,
    KIND_END
};

/* A set of ranks. */
enum { OF_NO_RANK, OF_ROOT, OF_ALL };

typedef struct {
    const char *name;
    char inputs;         /* ranks that contribute x */
    char outputs;        /* ranks that get out */
    char blocks_in;      /* x has one block for each rank */
    char blocks_out;     /* out has one block from each rank */
    char takes_counts;   /* the blocks may differ in size */
    char takes_op;       /* it reduces */
    char shared_inputs;  /* on shared arrays: x of these ranks is loaded by others */
    char shared_outputs; /* on shared arrays: out of these ranks is stored by others */
} shmring_kind;

static const shmring_kind KINDS[KIND_END] = {
    /*                       name              inputs      outputs     in out counts op  shared_inputs shared_outputs */
    [KIND_NONE]            = {0,               OF_NO_RANK, OF_NO_RANK, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    [KIND_BARRIER]         = {"barrier",       OF_NO_RANK, OF_NO_RANK, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    [KIND_ALL_REDUCE]      = {"all_reduce",    OF_ALL,     OF_ALL,     0, 0, 0, 1, OF_ALL,     OF_ALL},
    [KIND_REDUCE]          = {"reduce",        OF_ALL,     OF_ROOT,    0, 0, 0, 1, OF_ALL,     OF_ROOT},
    [KIND_BROADCAST]       = {"broadcast",     OF_ROOT,    OF_ALL,     0, 0, 0, 0, OF_ROOT,    OF_NO_RANK},
    [KIND_ALL_GATHER]      = {"all_gather",    OF_ALL,     OF_ALL,     0, 1, 1, 0, OF_ALL,     OF_NO_RANK},
    [KIND_REDUCE_SCATTER]  = {"reduce_scatter", OF_ALL,    OF_ALL,     1, 0, 1, 1, OF_ALL,     OF_NO_RANK},
    [KIND_GATHER]          = {"gather",        OF_ALL,     OF_ROOT,    0, 1, 1, 0, OF_NO_RANK, OF_ROOT},
    [KIND_SCATTER]         = {"scatter",       OF_ROOT,    OF_ALL,     1, 0, 1, 0, OF_ROOT,    OF_NO_RANK},
    [KIND_ALL_TO_ALL]      = {"all_to_all",    OF_ALL,     OF_ALL,     1, 1, 1, 0, OF_ALL,     OF_NO_RANK},
    [KIND_SCAN]            = {"scan",          OF_ALL,     OF_ALL,     0, 0, 0, 1, OF_NO_RANK, OF_NO_RANK},
    [KIND_EXSCAN]          = {"exscan",        OF_ALL,     OF_ALL,     0, 0, 0, 1, OF_NO_RANK, OF_NO_RANK},
    [KIND_ALL_REDUCE_MANY] = {"all_reduce_many", OF_ALL,   OF_ALL,     0, 0, 0, 1, OF_NO_RANK, OF_NO_RANK},
    [KIND_BROADCAST_MANY]  = {"broadcast_many", OF_ROOT,   OF_ALL,     0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    /* Of messages: the root is the other rank. */
    [KIND_SEND]            = {"send",          OF_NO_RANK, OF_NO_RANK, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    [KIND_RECV]            = {"recv",          OF_NO_RANK, OF_NO_RANK, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    [KIND_PROBE]           = {"probe",         OF_NO_RANK, OF_NO_RANK, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
};

#endif
