/* Reading the memory of another process, which the kernel copies (`process_vm_readv`).
 *
 * The kernel allows it if this process might trace the other one: the same user, nothing that forbids it (Yama, a
 * filter of system calls), and one PID namespace. Memory that is not mapped there is an error, not a signal. */
#ifndef SHMRING_PEER_MEMORY_H
#define SHMRING_PEER_MEMORY_H

#include <errno.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Copy `nbytes` from `source`, an address in process `pid`; 0 if not all of them could be read. */
static inline int read_peer_memory(pid_t pid, void *destination, const void *source, size_t nbytes) {
    struct iovec here = {destination, nbytes}, there = {(void *)source, nbytes};
    while (here.iov_len > 0) {
        ssize_t count = process_vm_readv(pid, &here, 1, &there, 1, 0); /* 2 GiB at most */
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return 0;
        here.iov_base = (char *)here.iov_base + count;
        there.iov_base = (char *)there.iov_base + count;
        here.iov_len = there.iov_len -= (size_t)count;
    }
    return 1;
}

#endif
