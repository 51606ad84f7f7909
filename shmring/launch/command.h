/* Start a program in a child process: all that the child does before the program is here, in calls that are safe in a
 * copy of one thread. Python code there (preexec_fn) could wait for a lock that another thread held, as could handlers
 * of fork() that libraries have set; none of them runs. */
#ifndef SHMRING_COMMAND_H
#define SHMRING_COMMAND_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
    char **paths;           /* to try, one after another, until NULL */
    char **argv;
    char **envp;
    int streams[3];         /* what becomes its descriptors 0, 1 and 2; -1: what this process has there */
    const char *processors; /* of sched_setaffinity, nprocessors bytes; NULL: any */
    size_t nprocessors;
    sigset_t blocked;       /* signals */
    pid_t parent;
    int result;             /* where errno is written if no program was started; closed with exec */
} shmring_command;

/* Have exec close every descriptor above 2. */
static void shmring_close_others(void) {
    int fd, n = 1 << 16;
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */) == 0) return;
#endif
    if (sysconf(_SC_OPEN_MAX) < n) n = (int)sysconf(_SC_OPEN_MAX);
    for (fd = 3; fd < n; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/* Let no handler of the parent run in its copy. What it ignores stays ignored, but for what Python ignores. */
static void shmring_reset_signals(const sigset_t *blocked) {
    struct sigaction action, by_default = {.sa_handler = SIG_DFL};
    int number;
    for (number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaction(number, &by_default, NULL);
    sigaction(SIGPIPE, &by_default, NULL);
    sigaction(SIGXFSZ, &by_default, NULL);
    pthread_sigmask(SIG_SETMASK, blocked, NULL);
}

static void shmring_become(const shmring_command *c) {
    int i, error = 0, streams[3];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->parent) _exit(127); /* it died before */
    for (i = 0; i < 3; i++) /* above 2, so that none replaces another */
        if ((streams[i] = c->streams[i]) >= 0) streams[i] = fcntl(streams[i], F_DUPFD, 3);
    for (i = 0; i < 3; i++)
        if (c->streams[i] >= 0 && dup2(streams[i], i) < 0) error = errno;
    if (c->processors && sched_setaffinity(0, c->nprocessors, (const cpu_set_t *)c->processors)) error = errno;
    shmring_close_others();
    shmring_reset_signals(&c->blocked);
    for (i = 0; !error && c->paths[i]; i++) {
        execve(c->paths[i], c->argv, c->envp);
        if (errno != ENOENT && errno != ENOTDIR) error = errno;
    }
    if (!error) error = ENOENT;
    i = (int)write(c->result, &error, sizeof error);
    _exit(127);
}

/* The child's process id; -1, with errno, if there is none. */
static pid_t shmring_start(const shmring_command *c) {
    sigset_t all, before;
    pid_t pid;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
#ifdef __s390__
    pid = (pid_t)syscall(SYS_clone, NULL, SIGCHLD);
#else
    pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
#endif
    if (pid == 0) shmring_become(c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid;
}

#endif
