/* The kinds of calls, by code. Written by tools/enums.py from collectives/plan/kinds.py, which has what the columns
mean. */
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
    KIND_SEND,
    KIND_RECV,
    KIND_PROBE,
    KIND_END
};

enum { OF_NO_RANK, OF_ROOT, OF_ALL };
enum { READS_NOTHING, READS_ALL, READS_ROOT, READS_THROUGH, READS_BEFORE };

typedef struct {
    const char *name;
    char inputs, outputs;
    char reads;
    signed char blocks_in, blocks_out;
    char takes_counts, takes_op;
    char shared_inputs, shared_outputs;
} shmring_kind;

static const shmring_kind KINDS[KIND_END] = {
    [KIND_BARRIER] = {"barrier", OF_NO_RANK, OF_NO_RANK, READS_ALL, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    [KIND_ALL_REDUCE] = {"all_reduce", OF_ALL, OF_ALL, READS_ALL, 0, 0, 0, 1, OF_ALL, OF_ALL},
    [KIND_REDUCE] = {"reduce", OF_ALL, OF_ROOT, READS_ALL, 0, 0, 0, 1, OF_ALL, OF_ROOT},
    [KIND_BROADCAST] = {"broadcast", OF_ROOT, OF_ALL, READS_ROOT, 0, 0, 0, 0, OF_ROOT, OF_NO_RANK},
    [KIND_ALL_GATHER] = {"all_gather", OF_ALL, OF_ALL, READS_ALL, 0, -1, 1, 0, OF_ALL, OF_NO_RANK},
    [KIND_REDUCE_SCATTER] = {"reduce_scatter", OF_ALL, OF_ALL, READS_ALL, -1, 0, 1, 1, OF_ALL, OF_NO_RANK},
    [KIND_GATHER] = {"gather", OF_ALL, OF_ROOT, READS_ALL, 0, -1, 1, 0, OF_NO_RANK, OF_ROOT},
    [KIND_SCATTER] = {"scatter", OF_ROOT, OF_ALL, READS_ROOT, -1, 0, 1, 0, OF_ROOT, OF_NO_RANK},
    [KIND_ALL_TO_ALL] = {"all_to_all", OF_ALL, OF_ALL, READS_ALL, -1, -1, 1, 0, OF_ALL, OF_NO_RANK},
    [KIND_SCAN] = {"scan", OF_ALL, OF_ALL, READS_THROUGH, 0, 0, 0, 1, OF_NO_RANK, OF_NO_RANK},
    [KIND_EXSCAN] = {"exscan", OF_ALL, OF_ALL, READS_BEFORE, 0, 0, 0, 1, OF_NO_RANK, OF_NO_RANK},
    [KIND_ALL_REDUCE_MANY] = {"all_reduce_many", OF_ALL, OF_ALL, READS_ALL, 0, 0, 0, 1, OF_NO_RANK, OF_NO_RANK},
    [KIND_SEND] = {"send", OF_NO_RANK, OF_NO_RANK, READS_NOTHING, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    [KIND_RECV] = {"recv", OF_NO_RANK, OF_NO_RANK, READS_NOTHING, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
    [KIND_PROBE] = {"probe", OF_NO_RANK, OF_NO_RANK, READS_NOTHING, 0, 0, 0, 0, OF_NO_RANK, OF_NO_RANK},
};

#endif
