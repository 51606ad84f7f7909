/* The keeper: one thread per process. The kernel announces its death, and so the process's, in shared memory.
 *
 * The keeper has a robust list (Documentation/locking/robust-futex-ABI.rst): the kernel walks that list when the
 * thread dies, by any cause, exec included, and sets FUTEX_OWNER_DIED in each word that still holds the thread's id.
 * Robust mutexes rest on the same list. It is used without a mutex, because no thread ever locks such a word: an
 * observer only *loads* it, so the cache line stays shared among all observers, and no observer is ever the owner. (An
 * observer that calls trylock is the owner for an instant. Killed in that instant, it leaves a false mark; from
 * another PID namespace, where thread ids repeat, it can even mark a word that it does not hold.) The list works the
 * same on every libc, and its absence is visible: set_robust_list fails, whereas glibc's robust mutexes then fail to
 * detect deaths without an error.
 *
 * The keeper replaces the list its libc registered; it takes no robust mutex, so nothing is lost by that.
 *
 * State here is per process: only core/sync/liveness.pyx includes this file.
 */
#ifndef SHMRING_KEEPER_H
#define SHMRING_KEEPER_H

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/c/atomics.h"
#include "core/c/descriptors.h"
#include "core/c/layout.h"
#include "core/c/thread.h"

enum { SHMRING_ALIVE = 0, SHMRING_DEAD = 1, SHMRING_DROPPED = 2 };
enum { KERNEL_MARKS = 1, ASK_PROCESS_TABLE = 2 };

/* A word: 0 not held; the id of the keeper's thread, with ASKS_TABLE where its process has method 2; FUTEX_OWNER_DIED,
 * with ASKS_TABLE or not, after the owner's death; FUTEX_OWNER_DIED and an id while the keeper of that id takes it. The
 * kernel leaves ASKS_TABLE, its bit for sleeping waiters, as it is: no thread sleeps on these words. */
#define ASKS_TABLE FUTEX_WAITERS

/* How long to wait where the kernel has no membarrier, for what that waits for. */
#define LAST_STORES_NS 20000000

/* The kernel gives up after this many entries (ROBUST_LIST_LIMIT); words beyond it go by method 2. */
#define KEEPER_MARKED_MAX 2048

_Static_assert(sizeof(struct robust_list) == sizeof(uint64_t), "a link must have the kernel's size");
_Static_assert(offsetof(shmring_liveness, link) % 8 == 0 && offsetof(shmring_liveness, word) % 4 == 0,
               "the kernel refuses unaligned words, and the lowest bit of a link has a meaning");

typedef struct {
    shmring_liveness *liveness;
    bool is_marked; /* in the kernel's list; else method 2 */
} keeper_entry;

/* `held` lists the held words in private memory. The links in shared memory are written for the kernel and never read
 * back: a peer that overwrites them can prevent the mark, but cannot cause a store to a wrong address. */
static struct {
    pthread_mutex_t calls; /* one caller at a time; held across fork */
    sem_t asked, answered;
    bool is_started, is_atfork_set, is_forced_to_ask;
    uint32_t generation;              /* forks between the first process that held a liveness and this one */
    void (*work)(shmring_liveness *); /* the request: this function, */
    shmring_liveness *liveness;       /* with this argument */
    int method;
    int error; /* of take_word */
    uint32_t tid;
    size_t held_count, held_room, marked_count;
    keeper_entry *held; /* oldest first; the kernel's list is this, backwards */
    struct robust_list_head list;
} keeper = {.calls = PTHREAD_MUTEX_INITIALIZER};

/* ---- Names of processes ------------------------------------------------------------------------------------------ */

/* State letter and start time of a process; false if they cannot be read. They are those of its first thread, which are
 * the same: emulators replace the file directly under /proc/PID for their own process, with another start time. */
static bool read_stat(int pid, char *state, uint64_t *start_time) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
    char text[1024]; /* 52 fields, of which only the command is free text, 64 bytes at most */
    int fd = above_standard(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = '\0';
    char *p = strrchr(text, ')'); /* the command may itself hold spaces and parentheses */
    if (p == NULL || p[1] != ' ') return false;
    p += 2;
    *state = *p;
    for (int field = 3; field < 22; field++) {
        p = strchr(p, ' ');
        if (p == NULL) return false;
        p++;
    }
    *start_time = strtoull(p, NULL, 10);
    return true;
}

static uint64_t own_pid_ns(void) {
    struct stat s;
    return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

/* This process's number in /proc: getpid(), unless /proc was mounted in another PID namespace; 0 if there is none. */
static int number_in_proc(void) {
    char target[32];
    ssize_t n = readlink("/proc/self", target, sizeof target - 1);
    if (n <= 0) return 0;
    target[n] = '\0';
    return atoi(target);
}

/* Method 2. True only if the process is certainly dead; false also if that cannot be determined. */
static bool is_gone_from_table(const shmring_liveness *liveness) {
    if (liveness->pid <= 0 || liveness->pid_ns == 0 || liveness->pid_ns != own_pid_ns()) return false;
    if (kill(liveness->pid, 0) != 0 && errno == ESRCH) return true;
    char state;
    uint64_t start_time;
    if (number_in_proc() != getpid() || !read_stat(liveness->pid, &state, &start_time)) return false;
    return state == 'Z' || state == 'X' || (liveness->start_time != 0 && start_time != liveness->start_time);
}

/* ---- Functions that run in the keeper's thread: its death cannot come between a store and its list entry ---------- */

/* The kernel reads the list in the context of this thread, at its death: program order is enough. */
static void in_order(void) { atomic_signal_fence(memory_order_seq_cst); }

static struct robust_list *link_of(shmring_liveness *liveness) { return (struct robust_list *)&liveness->link; }

static bool is_free(uint32_t word) { return !(word & FUTEX_TID_MASK); }

/* Take a free word, for which several keepers may compete. The one that swaps its id in writes the rest. */
static void take_word(shmring_liveness *liveness) {
    bool is_marked = keeper.method == KERNEL_MARKS && keeper.marked_count < KEEPER_MARKED_MAX;
    char state;
    if (is_marked) {
        keeper.list.list_op_pending = link_of(liveness); /* a death from here on marks the word, linked or not */
        in_order();
    }
    uint32_t found = load_relaxed_u32(&liveness->word);
    if (!is_free(found) || !compare_swap_u32(&liveness->word, found, FUTEX_OWNER_DIED | keeper.tid)) {
        in_order();
        keeper.list.list_op_pending = NULL;
        keeper.error = EBUSY;
        return;
    }
    liveness->turn++;
    liveness->pid = (int32_t)getpid();
    liveness->pid_ns = own_pid_ns();
    if (!read_stat(number_in_proc(), &state, &liveness->start_time)) liveness->start_time = 0; /* unknown */
    if (is_marked) liveness->link = (uint64_t)(uintptr_t)keeper.list.list.next;
    /* SYNC liveness (meets: keeper_probe). Turn, pid, start time and namespace, stored before the word. */
    store_release_u32(&liveness->word, is_marked ? keeper.tid : keeper.tid | ASKS_TABLE);
    if (is_marked) {
        in_order();
        keeper.list.list.next = link_of(liveness);
        in_order();
        keeper.list.list_op_pending = NULL;
        keeper.marked_count++;
    }
    keeper.held[keeper.held_count++] = (keeper_entry){liveness, is_marked};
    keeper.error = 0;
}

static void unlink_entry(size_t at) {
    struct robust_list *newer = &keeper.list.list, *older = &keeper.list.list;
    for (size_t i = at + 1; i < keeper.held_count; i++)
        if (keeper.held[i].is_marked) {
            newer = link_of(keeper.held[i].liveness);
            break;
        }
    for (size_t i = at; i-- > 0;)
        if (keeper.held[i].is_marked) {
            older = link_of(keeper.held[i].liveness);
            break;
        }
    newer->next = older;
    keeper.marked_count--;
}

static void release_word(shmring_liveness *liveness, uint32_t last_word) {
    size_t at = keeper.held_count;
    while (at-- > 0)
        if (keeper.held[at].liveness == liveness) break;
    if (at == (size_t)-1) return; /* never held by this process, or held by its parent */
    if (keeper.held[at].is_marked) {
        keeper.list.list_op_pending = link_of(liveness);
        in_order();
        unlink_entry(at);
        in_order();
    }
    /* SYNC leave (meets: keeper_probe). A process that loads the mark sees what the owner stored before it left. */
    store_release_u32(&liveness->word, last_word);
    in_order();
    keeper.list.list_op_pending = NULL;
    memmove(&keeper.held[at], &keeper.held[at + 1], (keeper.held_count - at - 1) * sizeof *keeper.held);
    keeper.held_count--;
}

static void drop_word(shmring_liveness *liveness) { release_word(liveness, 0); }

static void mark_dead(shmring_liveness *liveness) { release_word(liveness, FUTEX_OWNER_DIED); }

static void wait_semaphore(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0 && errno == EINTR) {}
}

static void *run_keeper(void *unused) {
    (void)unused;
    keeper.list.list.next = &keeper.list.list;
    keeper.list.list_op_pending = NULL;
    keeper.list.futex_offset = (long)offsetof(shmring_liveness, word) - (long)offsetof(shmring_liveness, link);
    keeper.tid = (uint32_t)syscall(SYS_gettid);
    bool is_registered = syscall(SYS_set_robust_list, &keeper.list, sizeof keeper.list) == 0;
    keeper.method = is_registered && !keeper.is_forced_to_ask ? KERNEL_MARKS : ASK_PROCESS_TABLE;
    for (;;) {
        sem_post(&keeper.answered);
        wait_semaphore(&keeper.asked);
        keeper.work(keeper.liveness);
    }
    return NULL;
}

/* ---- The callers' side ------------------------------------------------------------------------------------------- */

static void before_fork(void) { pthread_mutex_lock(&keeper.calls); }

static void after_fork_in_parent(void) { pthread_mutex_unlock(&keeper.calls); }

/* A child has its parent's memory but not its keeper: it holds nothing, and starts a keeper when it first needs one. */
static void after_fork_in_child(void) {
    keeper.is_started = false;
    keeper.generation++;
    keeper.held_count = keeper.marked_count = 0;
    pthread_mutex_unlock(&keeper.calls);
}

static int start_keeper(void) {
    if (!keeper.is_atfork_set) {
        int error = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
        if (error) return error;
        keeper.is_atfork_set = true;
    }
    sem_init(&keeper.asked, 0, 0);
    sem_init(&keeper.answered, 0, 0);
    pthread_t thread;
    int error = start_thread(&thread, SMALL_STACK_NBYTES, "shmring-keeper", run_keeper, NULL);
    if (error) return error;
    pthread_detach(thread);
    wait_semaphore(&keeper.answered);
    keeper.is_started = true;
    return 0;
}

static void run_in_keeper(void (*work)(shmring_liveness *), shmring_liveness *liveness) {
    keeper.work = work;
    keeper.liveness = liveness;
    sem_post(&keeper.asked);
    wait_semaphore(&keeper.answered);
}

static int reserve_entry(void) {
    if (keeper.held_count < keeper.held_room) return 0;
    size_t room = keeper.held_room ? 2 * keeper.held_room : 16;
    keeper_entry *held = realloc(keeper.held, room * sizeof *held);
    if (held == NULL) return ENOMEM;
    keeper.held = held;
    keeper.held_room = room;
    return 0;
}

/* One of SHMRING_ALIVE, SHMRING_DEAD, SHMRING_DROPPED. Any process, any number at once. */
static int keeper_probe(shmring_liveness *liveness) {
    /* SYNC liveness (meets: take_word); SYNC leave (meets: release_word). And what a dead owner stored: the kernel's
     * exchange of the word is ordered after all that the owner's thread did. */
    uint32_t word = load_acquire_u32(&liveness->word);
    if (word != 0 && !(word & (FUTEX_OWNER_DIED | ASKS_TABLE))) return SHMRING_ALIVE;
    if (is_free(word)) return word & FUTEX_OWNER_DIED ? SHMRING_DEAD : SHMRING_DROPPED;
    if (word & FUTEX_OWNER_DIED) return SHMRING_DROPPED; /* a keeper takes it */
    if (!is_gone_from_table(liveness)) return SHMRING_ALIVE;
    /* Store the mark that the kernel would have stored: one load shows it to all others. */
    compare_swap_u32(&liveness->word, word, ASKS_TABLE | FUTEX_OWNER_DIED);
    return SHMRING_DEAD;
}

/* 0 or an errno; EBUSY if a living process holds it. */
static int keeper_hold(shmring_liveness *liveness) {
    if (keeper_probe(liveness) == SHMRING_ALIVE) return EBUSY;
    pthread_mutex_lock(&keeper.calls);
    int error = keeper.is_started ? 0 : start_keeper();
    if (!error) error = reserve_entry();
    if (!error) {
        run_in_keeper(take_word, liveness);
        error = keeper.error;
    }
    pthread_mutex_unlock(&keeper.calls);
    return error;
}

/* After a mark of death, before this process stores what the dead one could store: wait until no thread of the dead one
 * executes an instruction any more. All of its threads have the signal that ends them before the keeper ends, and one
 * that runs on another processor acts on it at its next interrupt. The call waits until there was one on each. */
static void keeper_await_last_stores(void) {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) == 0) return;
    struct timespec pause = {0, LAST_STORES_NS};
    nanosleep(&pause, NULL);
}

static void keeper_drop(shmring_liveness *liveness) {
    pthread_mutex_lock(&keeper.calls);
    if (keeper.is_started) run_in_keeper(drop_word, liveness);
    pthread_mutex_unlock(&keeper.calls);
}

/* Call this before memory is unmapped: no link of the kernel's list may lead there. The holder of a liveness word in it
 * will not use it again, so peers are to see it as dead. */
static void keeper_end_all(const void *base, size_t nbytes) {
    pthread_mutex_lock(&keeper.calls);
    for (size_t i = keeper.held_count; i-- > 0;)
        if ((uintptr_t)keeper.held[i].liveness - (uintptr_t)base < nbytes)
            run_in_keeper(mark_dead, keeper.held[i].liveness);
    pthread_mutex_unlock(&keeper.calls);
}

#endif
