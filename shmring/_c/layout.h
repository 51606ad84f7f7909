/* Every struct that lives in shared memory, and nothing else.
 *
 * Rules: offsets, never pointers (each process maps at its own address); one writer per field unless said otherwise;
 * what different ranks write lies SHMRING_FALSE_SHARING bytes apart (two lines: the adjacent-line prefetcher pulls
 * pairs). Any change of meaning or place raises SHMRING_LAYOUT_VERSION; attachers refuse another version.
 */
#ifndef SHMRING_LAYOUT_H
#define SHMRING_LAYOUT_H

#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdint.h>

#define SHMRING_MAGIC 0x676e69726d6873ull /* "shmring\0" read as a little-endian word */
#define SHMRING_LAYOUT_VERSION 1u
#define SHMRING_LINE 64u
#define SHMRING_FALSE_SHARING 128u
#define SHMRING_APART _Alignas(SHMRING_FALSE_SHARING)
#define SHMRING_HEADER_NBYTES 4096u

/* What a segment is for; an attacher says which kind it expects. */
enum shmring_kind { SHMRING_OUTBOX = 1, SHMRING_RING = 2, SHMRING_ARRAY = 3, SHMRING_CHANNEL = 4 };

/* A life, visible to all that map it. The owner's keeper thread (lifeline.pyx) holds the mutex as long as the process
 * lives; the kernel marks it when that thread dies of whatever cause. `method` says whether the mark can be relied on
 * (1) or pid and start time must be asked instead (2: no robust mutexes here, e.g. emulators). */
typedef struct {
    pthread_mutex_t mutex;
    uint32_t method;
    int32_t pid;          /* in the owner's PID namespace */
    uint64_t start_time;  /* field 22 of /proc/PID/stat: with pid, a name no other process ever has */
    uint64_t pid_ns;      /* inode of /proc/self/ns/pid: pids may be asked about only within one namespace */
} shmring_lifeline;

/* First page of every segment. Written once by the creator, `ready` last (release); immutable afterwards, but for
 * `attached` and the lifeline. */
typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t header_nbytes;
    uint64_t nbytes; /* whole segment */
    uint32_t kind;
    uint32_t uid;
    uint8_t boot_id[16];
    uint8_t nonce[16];
    int32_t rank; /* the creator's, and the size of its group */
    int32_t size;
    uint64_t params[4]; /* meaning depends on kind */
    SHMRING_APART uint32_t ready;
    SHMRING_APART uint64_t attached; /* creator only: peers whose segments it has mapped (meeting.py) */
    SHMRING_APART shmring_lifeline life;
} shmring_header;

_Static_assert(sizeof(shmring_header) <= SHMRING_HEADER_NBYTES, "the header must fit its page");

#endif
