/* Begins a collective of MPI without blocking, by the address of its function: nothing is compiled for one MPI.
 * What differs between MPIs is whether a handle is an int (MPICH and its kind) or a pointer (Open MPI). */
#ifndef SHMRING_MPI_BEGIN_H
#define SHMRING_MPI_BEGIN_H

#include <stdint.h>

#include "engine/kinds.h"

typedef struct {
    int kind; /* engine/kinds.h */
    int root;
    int count; /* elements of a block */
    uintptr_t function, type, op, comm;
} shmring_mpi_collective;

#define SHMRING_DEFINE_BEGIN(NAME, HANDLE)                                                                             \
    static inline int NAME(const shmring_mpi_collective *c, const void *in, void *out, void *request) {                \
        HANDLE type = (HANDLE)c->type;                                                                           \
        HANDLE op = (HANDLE)c->op;                                                                               \
        HANDLE comm = (HANDLE)c->comm;                                                                           \
        int n = c->count, root = c->root;                                                                              \
        typedef int (*moves_one)(void *, int, HANDLE, int, HANDLE, void *);                                            \
        typedef int (*moves)(const void *, int, HANDLE, void *, int, HANDLE, HANDLE, void *);                          \
        typedef int (*moves_rooted)(const void *, int, HANDLE, void *, int, HANDLE, int, HANDLE, void *);              \
        typedef int (*reduces)(const void *, void *, int, HANDLE, HANDLE, HANDLE, void *);                             \
        typedef int (*reduces_rooted)(const void *, void *, int, HANDLE, HANDLE, int, HANDLE, void *);                 \
        switch (c->kind) {                                                                                             \
        case KIND_BROADCAST:                                                                                           \
            return ((moves_one)c->function)(out, n, type, root, comm, request);                                        \
        case KIND_ALL_GATHER:                                                                                          \
        case KIND_ALL_TO_ALL:                                                                                          \
            return ((moves)c->function)(in, n, type, out, n, type, comm, request);                                     \
        case KIND_GATHER:                                                                                              \
        case KIND_SCATTER:                                                                                             \
            return ((moves_rooted)c->function)(in, n, type, out, n, type, root, comm, request);                        \
        case KIND_REDUCE:                                                                                              \
            return ((reduces_rooted)c->function)(in, out, n, type, op, root, comm, request);                           \
        default: /* all_reduce, reduce_scatter */                                                                      \
            return ((reduces)c->function)(in, out, n, type, op, comm, request);                                        \
        }                                                                                                              \
    }

SHMRING_DEFINE_BEGIN(shmring_begin_by_int, int)
SHMRING_DEFINE_BEGIN(shmring_begin_by_pointer, void *)

#endif
