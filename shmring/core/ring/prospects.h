/* Locks on bytes of a file by which processes show that they may still take an end: see core/ring/prospects.pyx. */
#ifndef SHMRING_PROSPECTS_H
#define SHMRING_PROSPECTS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "core/c/descriptors.h"

#define FIRST_PROSPECT_BYTE ((int64_t)1 << 40) /* beyond every file: nothing is there to be locked for other reasons */

/* What one process knows of the ends of one memory. */
typedef struct {
    int file;           /* the open file by which this process has its locks; -1: the ends were not passed on */
    const int32_t *own; /* for each end, how many objects of this process may take it */
} shmring_prospects;

static inline struct flock prospect_lock(int64_t end, short type) {
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = FIRST_PROSPECT_BYTE + end, .l_len = 1};
}

static inline bool set_prospect(int file, int64_t end, bool is_prospect) {
    struct flock lock = prospect_lock(end, is_prospect ? F_RDLCK : F_UNLCK);
    return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

/* Another open file of the memory that a descriptor refers to, without locks; -1 if that is impossible. */
static inline int reopen(int descriptor) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    return above_standard(open(path, O_RDWR | O_CLOEXEC));
}

/* Whether another process has the lock. */
static inline bool is_held_elsewhere(int file, int64_t end) {
    struct flock lock = prospect_lock(end, F_WRLCK);
    return fcntl(file, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

#endif
