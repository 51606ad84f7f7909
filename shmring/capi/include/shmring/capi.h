/* shmring for C11, C++11 or newer, and Cython: a table of functions, without linking.
 *
 *     #include <Python.h>                                  with Python.h before it:
 *     #include "shmring/capi.h"
 *     const shmring_api *api = shmring_import();           once, with the GIL; NULL: a Python exception is set
 *
 *     #include "shmring/capi.h"                            without Python.h:
 *     const shmring_api *api = shmring_table(address);     shmring.capi.table_address(); NULL: another version
 *
 *     shmring_comm *comm;
 *     if (api->comm_open(object, &comm)) puts(api->last_error()->text);
 *     shmring_all_reduce(api, comm, x, x, count, SHMRING_FLOAT32, SHMRING_SUM, SHMRING_DEFAULT_TIMEOUT);
 *
 * Any thread may call any function, with or without the GIL. A function returns 0 or one of `enum shmring_code`; then
 * `last_error` of the same thread has the text. docs/embedding.md has the rules, the errors and a complete program.
 *
 * Versions: functions are appended to the table, never moved or removed, so code that was compiled with this header runs
 * with this and all later releases of the same SHMRING_API_VERSION. `struct_size` is the size of the table in the
 * release that runs: SHMRING_HAS(api, name) tests whether it has a function, for code that supports older ones, too.
 */
#ifndef SHMRING_CAPI_H
#define SHMRING_CAPI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHMRING_API_VERSION 2
#define SHMRING_API_CAPSULE "shmring.capi._C_API"

/* What is required of the release that runs: all functions of this header, or the first bytes of the table. */
#ifndef SHMRING_API_LEAST_SIZE
#define SHMRING_API_LEAST_SIZE sizeof(shmring_api)
#endif
#define SHMRING_HAS(api, name)                                                                                         \
    (offsetof(shmring_api, name) + sizeof((api)->name) <= (api)->struct_size)

enum shmring_code {
    SHMRING_OK = 0,
    SHMRING_ERR_BAD_ARGUMENT = 1,    /* nothing was sent; the communicator stays usable */
    SHMRING_ERR_CLOSED = 2,          /* closed, or inherited by a forked child */
    SHMRING_ERR_PEER_LOST = 3,       /* this and the next three: the communicator is broken */
    SHMRING_ERR_TIMEOUT = 4,
    SHMRING_ERR_MISMATCH = 5,
    SHMRING_ERR_ABORTED = 6,
    SHMRING_ERR_OUT_OF_MEMORY = 7,   /* nothing was sent */
    SHMRING_ERR_INTERNAL = 8,        /* any other exception of Python */
    SHMRING_ERR_MESSAGE_TIMEOUT = 9, /* no message, or no room, in time; the communicator stays usable */
    SHMRING_ERR_MESSAGE_TOO_LONG = 10 /* longer than the buffer; it can still be received */
};

/* The order of shmring.dtypes.DTYPES. */
enum shmring_dtype {
    SHMRING_OPAQUE = -1, /* bytes: messages only; may be received as SHMRING_UINT8 */
    SHMRING_FLOAT64 = 0,
    SHMRING_FLOAT32 = 1,
    SHMRING_FLOAT16 = 2,
    SHMRING_BFLOAT16 = 3,
    SHMRING_INT8 = 4,
    SHMRING_INT16 = 5,
    SHMRING_INT32 = 6,
    SHMRING_INT64 = 7,
    SHMRING_UINT8 = 8,
    SHMRING_UINT16 = 9,
    SHMRING_UINT32 = 10,
    SHMRING_UINT64 = 11,
    SHMRING_BOOL = 12,
    SHMRING_COMPLEX64 = 13,
    SHMRING_COMPLEX128 = 14,
    SHMRING_FLOAT8_E4M3FN = 15,
    SHMRING_FLOAT8_E5M2 = 16
};

/* The order of shmring.dtypes.OPS. */
enum shmring_op {
    SHMRING_SUM = 0,
    SHMRING_PROD = 1,
    SHMRING_MIN = 2,
    SHMRING_MAX = 3,
    SHMRING_AVG = 4,
    SHMRING_BAND = 5,
    SHMRING_BOR = 6,
    SHMRING_BXOR = 7,
    SHMRING_LAND = 8,
    SHMRING_LOR = 9,
    SHMRING_ABSMAX = 10
};

/* Collectives. */
enum shmring_collective {
    SHMRING_KIND_BARRIER = 1,
    SHMRING_KIND_ALL_REDUCE = 2,
    SHMRING_KIND_REDUCE = 3,
    SHMRING_KIND_BROADCAST = 4,
    SHMRING_KIND_ALL_GATHER = 5,
    SHMRING_KIND_REDUCE_SCATTER = 6,
    SHMRING_KIND_GATHER = 7,
    SHMRING_KIND_SCATTER = 8,
    SHMRING_KIND_ALL_TO_ALL = 9,
    SHMRING_KIND_SCAN = 10,
    SHMRING_KIND_EXSCAN = 11
};

/* Timeouts are nanoseconds, 0 or more, or one of these. */
#define SHMRING_NO_TIMEOUT ((int64_t)-1)
#define SHMRING_DEFAULT_TIMEOUT ((int64_t)-2) /* the communicator's */

#define SHMRING_ANY_SOURCE (-1)
#define SHMRING_ANY_TAG (-1)
#define SHMRING_NO_COLOR INT64_MIN /* of comm_split: this rank is in no group */

typedef struct shmring_comm shmring_comm;       /* a communicator; keeps the Python object alive */
typedef struct shmring_plan shmring_plan;       /* a collective that is made often; keeps its communicator alive */
typedef struct shmring_request shmring_request; /* a pending send or receive */

/* The last error of the calling thread; valid until its next call that fails. */
typedef struct shmring_error {
    int code;
    int rank;         /* the rank that was lost, is late (the first of them), or aborted; -1: none */
    const char *text; /* UTF-8, the text of the Python exception; never NULL */
    const char *name; /* of the class of that exception, e.g. "PeerLostError"; never NULL */
} shmring_error;

/* A message that was received. */
typedef struct shmring_message {
    int source;
    int tag;
    uint64_t nbytes;
    int dtype; /* as it was sent */
} shmring_message;

/* A collective: set all fields to zero, then those that the kind needs. `count` is in elements of one rank's block;
 * x == out: in place. A broadcast reads x on the root and writes x on the others. */
typedef struct shmring_call {
    size_t struct_size; /* sizeof(shmring_call) */
    int kind;           /* enum shmring_collective */
    int dtype;
    int op;
    int root;
    const void *x;
    void *out;
    int64_t count;
    int64_t timeout_ns;
} shmring_call;

typedef struct shmring_api {
    size_t struct_size; /* of this table, in the release that runs */
    int version;        /* SHMRING_API_VERSION of that release */

    const shmring_error *(*last_error)(void);

    /* ---- communicators ---- */

    /* `object`: PyObject * of a shmring.Communicator. */
    int (*comm_open)(void *object, shmring_comm **comm);
    /* Frees the handle; the communicator stays open. NULL: no effect. */
    int (*comm_release)(shmring_comm *comm);
    int (*comm_rank)(const shmring_comm *comm);
    int (*comm_size)(const shmring_comm *comm);
    int (*comm_abort)(shmring_comm *comm, const char *reason);
    int (*comm_close)(shmring_comm *comm);
    int (*comm_dup)(shmring_comm *comm, shmring_comm **made);
    int (*comm_split)(shmring_comm *comm, int64_t color, int64_t key, shmring_comm **made);

    /* ---- collectives: the functions below this table, such as shmring_all_reduce, fill in the call ---- */

    int (*collective)(shmring_comm *comm, const shmring_call *call);

    /* ---- plans: a collective on the same memory, checked once ---- */

    int (*plan_make)(shmring_comm *comm, const shmring_call *call, shmring_plan **plan);
    int (*plan_run)(shmring_plan *plan);
    int (*plan_release)(shmring_plan *plan);

    /* ---- messages; `message` may be NULL ---- */

    int (*send)(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag, int64_t timeout_ns);
    int (*recv)(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag, int64_t timeout_ns,
                shmring_message *message);
    int (*sendrecv)(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag, void *out,
                    int64_t out_count, int out_dtype, int src, int out_tag, int64_t timeout_ns,
                    shmring_message *message);
    int (*isend)(shmring_comm *comm, const void *x, int64_t count, int dtype, int dst, int tag,
                 shmring_request **request);
    int (*irecv)(shmring_comm *comm, void *x, int64_t count, int dtype, int src, int tag, shmring_request **request);
    /* They free a request that is over, with or without an error, and set *request to NULL. A NULL request is over. */
    int (*test)(shmring_request **request, int *is_over, shmring_message *message);
    int (*wait)(shmring_request **request, int64_t timeout_ns, shmring_message *message);
} shmring_api;

/* ---- collectives: `count` is in elements of one rank's block; x == out: in place ---- */

static inline int shmring_make(const shmring_api *api, shmring_comm *comm, int kind, const void *x, void *out,
                               int64_t count, int dtype, int op, int root, int64_t timeout_ns) {
    shmring_call call;
    call.struct_size = sizeof(call);
    call.kind = kind;
    call.dtype = dtype;
    call.op = op;
    call.root = root;
    call.x = x;
    call.out = out;
    call.count = count;
    call.timeout_ns = timeout_ns;
    return api->collective(comm, &call);
}

static inline int shmring_all_reduce(const shmring_api *api, shmring_comm *comm, const void *x, void *out,
                                     int64_t count, int dtype, int op, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_ALL_REDUCE, x, out, count, dtype, op, 0, timeout_ns);
}

static inline int shmring_reduce(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                                 int dtype, int op, int root, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_REDUCE, x, out, count, dtype, op, root, timeout_ns);
}

static inline int shmring_broadcast(const shmring_api *api, shmring_comm *comm, void *x, int64_t count, int dtype,
                                    int root, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_BROADCAST, x, x, count, dtype, 0, root, timeout_ns);
}

static inline int shmring_all_gather(const shmring_api *api, shmring_comm *comm, const void *x, void *out,
                                     int64_t count, int dtype, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_ALL_GATHER, x, out, count, dtype, 0, 0, timeout_ns);
}

static inline int shmring_reduce_scatter(const shmring_api *api, shmring_comm *comm, const void *x, void *out,
                                         int64_t count, int dtype, int op, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_REDUCE_SCATTER, x, out, count, dtype, op, 0, timeout_ns);
}

static inline int shmring_all_to_all(const shmring_api *api, shmring_comm *comm, const void *x, void *out,
                                     int64_t count, int dtype, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_ALL_TO_ALL, x, out, count, dtype, 0, 0, timeout_ns);
}

static inline int shmring_gather(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                                 int dtype, int root, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_GATHER, x, out, count, dtype, 0, root, timeout_ns);
}

static inline int shmring_scatter(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                                  int dtype, int root, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_SCATTER, x, out, count, dtype, 0, root, timeout_ns);
}

static inline int shmring_scan(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                               int dtype, int op, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_SCAN, x, out, count, dtype, op, 0, timeout_ns);
}

static inline int shmring_exscan(const shmring_api *api, shmring_comm *comm, const void *x, void *out, int64_t count,
                                 int dtype, int op, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_EXSCAN, x, out, count, dtype, op, 0, timeout_ns);
}

static inline int shmring_barrier(const shmring_api *api, shmring_comm *comm, int64_t timeout_ns) {
    return shmring_make(api, comm, SHMRING_KIND_BARRIER, NULL, NULL, 0, 0, 0, 0, timeout_ns);
}

/* The table at an address, or NULL if this code was compiled for another version of it. */
static inline const shmring_api *shmring_table(const void *address) {
    const shmring_api *api = (const shmring_api *)address;
    return api && api->version == SHMRING_API_VERSION && api->struct_size >= SHMRING_API_LEAST_SIZE ? api : NULL;
}

#ifdef Py_PYTHON_H
/* The table of the package that is installed. Call with the GIL. NULL: a Python exception is set. */
static inline const shmring_api *shmring_import(void) {
    const shmring_api *api;
    const void *address;
    PyObject *module = PyImport_ImportModule("shmring.capi");
    if (!module) return NULL;
    Py_DECREF(module);
    address = PyCapsule_Import(SHMRING_API_CAPSULE, 0);
    if (!address) return NULL;
    api = shmring_table(address);
    if (!api)
        PyErr_Format(PyExc_ImportError,
                     "shmring.capi has a table of version %d and %zu bytes; this module was compiled for version %d and "
                     "at least %zu bytes: build it with the header of the shmring that is installed, or update shmring",
                     ((const shmring_api *)address)->version, ((const shmring_api *)address)->struct_size,
                     SHMRING_API_VERSION, (size_t)SHMRING_API_LEAST_SIZE);
    return api;
}
#endif

#ifdef __cplusplus
}
#endif

#endif
