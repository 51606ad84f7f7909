/* Calls of the C table for tests, each in a new thread, which never has the GIL. Built as C11 and as C++17, without
 * Python.h; loaded by support/capi.py, which has the same struct. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shmring/capi.h"

#define EXPORT __attribute__((visibility("default")))

enum { PLAN = 100, SEND, RECV, SENDRECV, ISEND, IRECV, TEST, WAIT, OPEN, DUP, SPLIT, CLOSE, ABORT, RELEASE };

typedef struct job {
    const shmring_api *api;
    shmring_comm *comm;
    int what; /* enum shmring_collective, or one of the above */
    int dtype, op, root;
    const void *x;
    void *out;
    int64_t count, out_count, timeout_ns;
    int out_dtype, peer, tag, source, out_tag;
    shmring_request *request;
    void *object; /* OPEN: PyObject *; ABORT: char * */
    int64_t color, key;
    shmring_comm *made;
    int64_t times; /* how often */
    /* what it has led to */
    int code, rank, is_over;
    shmring_message message;
    char text[1024];
} job;

static shmring_call call_of(const job *j, int kind) {
    shmring_call call;
    memset(&call, 0, sizeof(call));
    call.struct_size = sizeof(call);
    call.kind = kind;
    call.dtype = j->dtype;
    call.op = j->op;
    call.root = j->root;
    call.x = kind == SHMRING_KIND_BROADCAST ? j->out : j->x;
    call.out = j->out;
    call.count = j->count;
    call.timeout_ns = j->timeout_ns;
    return call;
}

static int run_plan(job *j) {
    shmring_plan *plan;
    shmring_call call = call_of(j, j->key ? (int)j->key : j->root < 0 ? SHMRING_KIND_ALL_REDUCE : SHMRING_KIND_REDUCE);
    int code, released;
    code = j->api->plan_make(j->comm, &call, &plan);
    if (code) return code;
    for (int64_t i = 0; i < j->times && !code; ++i) code = j->api->plan_run(plan);
    released = j->api->plan_release(plan);
    return code ? code : released;
}

/* By the functions of the header, which are those that C programs call. */
static int collective(job *j) {
    const shmring_api *a = j->api;
    shmring_comm *c = j->comm;
    int64_t n = j->count, limit = j->timeout_ns;
    int dtype = j->dtype, op = j->op, root = j->root;
    switch (j->what) {
    case SHMRING_KIND_BARRIER: return shmring_barrier(a, c, limit);
    case SHMRING_KIND_ALL_REDUCE: return shmring_all_reduce(a, c, j->x, j->out, n, dtype, op, limit);
    case SHMRING_KIND_REDUCE: return shmring_reduce(a, c, j->x, j->out, n, dtype, op, root, limit);
    case SHMRING_KIND_BROADCAST: return shmring_broadcast(a, c, j->out, n, dtype, root, limit);
    case SHMRING_KIND_ALL_GATHER: return shmring_all_gather(a, c, j->x, j->out, n, dtype, limit);
    case SHMRING_KIND_REDUCE_SCATTER: return shmring_reduce_scatter(a, c, j->x, j->out, n, dtype, op, limit);
    case SHMRING_KIND_GATHER: return shmring_gather(a, c, j->x, j->out, n, dtype, root, limit);
    case SHMRING_KIND_SCATTER: return shmring_scatter(a, c, j->x, j->out, n, dtype, root, limit);
    case SHMRING_KIND_ALL_TO_ALL: return shmring_all_to_all(a, c, j->x, j->out, n, dtype, limit);
    case SHMRING_KIND_SCAN: return shmring_scan(a, c, j->x, j->out, n, dtype, op, limit);
    case SHMRING_KIND_EXSCAN: return shmring_exscan(a, c, j->x, j->out, n, dtype, op, limit);
    default: return SHMRING_ERR_INTERNAL;
    }
}

static int once(job *j) {
    const shmring_api *api = j->api;
    switch (j->what) {
    case SEND: return api->send(j->comm, j->x, j->count, j->dtype, j->peer, j->tag, j->timeout_ns);
    case RECV: return api->recv(j->comm, j->out, j->count, j->dtype, j->peer, j->tag, j->timeout_ns, &j->message);
    case SENDRECV:
        return api->sendrecv(j->comm, j->x, j->count, j->dtype, j->peer, j->tag, j->out, j->out_count, j->out_dtype,
                             j->source, j->out_tag, j->timeout_ns, &j->message);
    case ISEND: return api->isend(j->comm, j->x, j->count, j->dtype, j->peer, j->tag, &j->request);
    case IRECV: return api->irecv(j->comm, j->out, j->count, j->dtype, j->peer, j->tag, &j->request);
    case TEST: return api->test(&j->request, &j->is_over, &j->message);
    case WAIT: return api->wait(&j->request, j->timeout_ns, &j->message);
    case OPEN: return api->comm_open(j->object, &j->made);
    case DUP: return api->comm_dup(j->comm, j->times > 1 ? NULL : &j->made);
    case SPLIT: return api->comm_split(j->comm, j->color, j->key, j->times > 1 ? NULL : &j->made);
    case CLOSE: return api->comm_close(j->comm);
    case ABORT: return api->comm_abort(j->comm, (const char *)j->object);
    case RELEASE: return api->comm_release(j->comm);
    default: return collective(j);
    }
}

static void *work(void *argument) {
    job *j = (job *)argument;
    j->code = 0;
    if (j->what == PLAN)
        j->code = run_plan(j);
    else
        for (int64_t i = 0; i < j->times && !j->code; ++i) j->code = once(j);
    if (j->code) {
        const shmring_error *error = j->api->last_error();
        j->rank = error->code == j->code ? error->rank : -100;
        strncpy(j->text, error->text, sizeof(j->text) - 1);
    }
    return NULL;
}

#ifdef __cplusplus
extern "C" {
#endif

/* All jobs at the same time, each in a thread. Returns 0, or what pthread_create returned. */
EXPORT int run_jobs(job *jobs, int n) {
    pthread_t threads[64];
    int made = 0, failure = 0;
    for (; made < n && made < 64 && !failure; ++made) failure = pthread_create(&threads[made], NULL, work, &jobs[made]);
    if (failure) --made;
    for (int i = 0; i < made; ++i) pthread_join(threads[i], NULL);
    return failure;
}

/* A job in a child that fork() makes without Python; the child writes the code and the text to `to`. */
EXPORT int run_in_child(job *j, int to) {
    int pid = fork(), status = -1;
    if (pid == 0) {
        work(j);
        if (write(to, j->text, strlen(j->text)) < 0) _exit(1);
        _exit(j->code);
    }
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* On the calling thread. */
EXPORT void run_here(job *j) { work(j); }

EXPORT const void *checked_table(const void *address) { return shmring_table(address); }
EXPORT int rank_of(const shmring_api *api, const shmring_comm *comm) { return api->comm_rank(comm); }
EXPORT int size_of(const shmring_api *api, const shmring_comm *comm) { return api->comm_size(comm); }

#ifdef __cplusplus
}
#endif
