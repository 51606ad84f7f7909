/* The kernel's memory policies, by their system calls: no library is needed for four of them.
 *
 * Each returns 0 or the error number: EPERM or EACCES where a container's filter refuses, ENOSYS where the kernel or an
 * emulator has none of it.
 */
#ifndef SHMRING_NUMA_H
#define SHMRING_NUMA_H

#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From linux/mempolicy.h, which not every system that builds this has. */
#define SHMRING_MPOL_DEFAULT 0
#define SHMRING_MPOL_PREFERRED 1
#define SHMRING_MPOL_INTERLEAVE 3
#define SHMRING_MPOL_F_ADDR 2

#define SHMRING_NODES_MAX 1024 /* as many as kernels are built for */
#define SHMRING_NODE_BITS (8 * sizeof(unsigned long))

typedef struct {
    unsigned long words[SHMRING_NODES_MAX / SHMRING_NODE_BITS];
} shmring_nodes;

static inline void add_node(shmring_nodes *nodes, int node) {
    nodes->words[node / SHMRING_NODE_BITS] |= 1ul << node % SHMRING_NODE_BITS;
}

/* For pages of the range that have no memory yet. The policy of shared memory belongs to the file, so it applies
 * whichever process touches the pages first. */
static inline int set_policy(void *address, size_t nbytes, int mode, const shmring_nodes *nodes) {
#ifdef SYS_mbind
    /* The kernel reads one bit less than the count it is given. */
    return syscall(SYS_mbind, address, nbytes, mode, nodes->words, SHMRING_NODES_MAX + 1ul, 0u) ? errno : 0;
#else
    return ENOSYS;
#endif
}

/* What `numactl` or the program itself has set for this thread. */
static inline int get_thread_policy(int *mode) {
#ifdef SYS_get_mempolicy
    return syscall(SYS_get_mempolicy, mode, NULL, 0ul, NULL, 0ul) ? errno : 0;
#else
    return ENOSYS;
#endif
}

/* The policy of the memory at an address, which only mbind gives it; SHMRING_MPOL_DEFAULT where there is none. */
static inline int get_policy(const void *address, int *mode, shmring_nodes *nodes) {
    *mode = SHMRING_MPOL_DEFAULT;
#ifdef SYS_get_mempolicy
    if (syscall(SYS_get_mempolicy, mode, nodes->words, (unsigned long)SHMRING_NODES_MAX, address, SHMRING_MPOL_F_ADDR) == 0)
        return 0;
    *mode = SHMRING_MPOL_DEFAULT;
    return errno;
#else
    return ENOSYS;
#endif
}

/* For each page its node, or a negative error number: -ENOENT where this process has none mapped. Moves nothing. */
static inline int nodes_of_pages(unsigned long count, void **pages, int *nodes) {
#ifdef SYS_move_pages
    return syscall(SYS_move_pages, 0, count, pages, NULL, nodes, 0) ? errno : 0;
#else
    return ENOSYS;
#endif
}

static inline int get_node(unsigned *node) {
#ifdef SYS_getcpu
    return syscall(SYS_getcpu, NULL, node, NULL) ? errno : 0;
#else
    return ENOSYS;
#endif
}

#endif
