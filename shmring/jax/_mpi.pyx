"""The functions of MPI that XLA calls, over the table of shmring.capi: the library that MPITRAMPOLINE_LIB names.

This file is a module of Python and that library at once: MPItrampoline, linked into jaxlib, opens it when jaxlib is
imported, and `MPIABI_Init_thread` (``jax/mpitrampoline.h``) imports it when JAX makes its CPU backend.

A communicator of MPI is a `clique_t`. If it could not be made, or a call on it has failed, it keeps the reason, and
each further call returns that. XLA ignores the result of Comm_split, and shows the text of an operation's error.

Irecv only notes a receive, and its Wait makes it, without the GIL: XLA waits at once for its requests. A Wait for
another request first posts the noted receives, as Irecv would have.
"""

from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport strdup, strlen

from shmring.capi cimport *

from shmring.jax import world


cdef extern from "jax/mpitrampoline.h" nogil:
    enum:
        SHMRING_MPI_SUCCESS, SHMRING_MPI_ERR_OTHER
        SHMRING_MPI_COMM_WORLD, SHMRING_MPI_COMM_NULL
        SHMRING_MPI_NCONSTANTS
    int shmring_mpi_is_imported, shmring_mpi_is_opened
    int shmring_mpi_fail(const char *text)
    int shmring_mpi_fail_as(const char *name, const char *text)
    char *shmring_mpi_text
    uint64_t shmring_mpi_nbegun, shmring_mpi_nended
    void shmring_mpi_count(uint64_t *n)
    uint64_t shmring_mpi_counted(const uint64_t *n)

cdef extern from "Python.h" nogil:
    bint Py_IsInitialized()

ctypedef struct clique_t:
    shmring_comm *comm      # NULL: it could not be made
    char *problem           # why every call fails; NULL: none does
    int rank
    int size                # at least 1; a guess if it could not be made: XLA allocates by it

ctypedef struct pending_t:
    pending_t *next
    clique_t *clique
    shmring_request *request      # of the table
    void *out                     # with the next four: of a receive that is noted
    int count
    int dtype
    int src
    int tag
    bint is_noted
    bint has_failed               # with a call on its clique; no more in the list

cdef extern from *:
    """
    static _Thread_local void *shmring_mpi_pending;
    """
    void *shmring_mpi_pending      # pending_t *: the first that this thread has posted and not waited for

cdef const shmring_api *api = NULL
cdef int world_rank = 0, world_size = 1

shmring_mpi_is_imported = 1


# ---- start and end ---------------------------------------------------------------------------------------------------

cdef public int shmring_mpi_start() except -1:
    """Connect this process with the others of JAX's distributed client; raises if that is not possible."""
    global api, world_rank, world_size
    api = shmring_import()
    world_rank, world_size = world.connect(activity)
    return 0


cdef public int MPIABI_Finalize() noexcept nogil:
    """JAX calls it first of all at exit, while its work may be under way."""
    with gil:
        world.exit()
    return SHMRING_MPI_SUCCESS


def is_opened():
    """Whether jaxlib has opened this library."""
    return bool(shmring_mpi_is_opened)


def activity():
    """How many operations have begun, and how many have ended; all threads count."""
    return shmring_mpi_counted(&shmring_mpi_nbegun), shmring_mpi_counted(&shmring_mpi_nended)


cdef public int MPIABI_Is_thread_main(int *flag) noexcept nogil:
    flag[0] = 1      # XLA makes groups in threads of its own, which may call here
    return SHMRING_MPI_SUCCESS


cdef public int MPIABI_Error_string(int code, char *text, int *nbytes) noexcept nogil:
    """Copy the text of this thread's last error; there is one code for all."""
    cdef size_t i
    nbytes[0] = <int> strlen(shmring_mpi_text)
    for i in range(nbytes[0] + 1):
        text[i] = shmring_mpi_text[i]
    return SHMRING_MPI_SUCCESS


# ---- cliques ---------------------------------------------------------------------------------------------------------

cdef public int MPIABI_Comm_split(uintptr_t comm, int color, int key, uintptr_t *made) noexcept nogil:
    """Make the clique of the processes that give the same colour; only its operations report a failure."""
    cdef clique_t *clique = <clique_t *> calloc(1, sizeof(clique_t))
    made[0] = <uintptr_t> clique if clique != NULL else SHMRING_MPI_COMM_NULL
    if clique == NULL:
        return shmring_mpi_fail("shmring: no memory for a communicator")
    shmring_mpi_count(&shmring_mpi_nbegun)
    with gil:
        make_clique(clique, color, key)
    shmring_mpi_count(&shmring_mpi_nended)
    return SHMRING_MPI_SUCCESS


cdef int make_clique(clique_t *clique, int color, int key) noexcept:
    clique.rank = key
    clique.size = key + 1
    try:
        group, problem, size = world.split(color, key)
        clique.size = size
        if group is None:
            clique.problem = strdup(problem.encode("utf-8", "replace"))
        elif api.comm_open(<void *> group, &clique.comm):
            clique.problem = strdup(api.last_error().text)
    except BaseException as error:
        clique.problem = strdup(f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    return 0


cdef clique_t *clique_of(uintptr_t comm) noexcept nogil:
    """The clique, if a call on it may be made; else NULL, and the reason is the error of this thread."""
    cdef clique_t *clique = <clique_t *> comm
    if comm == SHMRING_MPI_COMM_NULL or comm == SHMRING_MPI_COMM_WORLD:
        shmring_mpi_fail("shmring: a call on no communicator of a group of devices")
        return NULL
    if clique.problem != NULL or clique.comm == NULL:
        shmring_mpi_fail("shmring: no memory for a communicator")
        if clique.problem != NULL:
            shmring_mpi_fail(clique.problem)
        return NULL
    return clique


cdef clique_t *begin(uintptr_t comm) noexcept nogil:
    """`clique_of`, for an operation that `conclude` ends."""
    cdef clique_t *clique = clique_of(comm)
    if clique != NULL:
        shmring_mpi_count(&shmring_mpi_nbegun)
    return clique


cdef public int MPIABI_Comm_rank(uintptr_t comm, int *rank) noexcept nogil:
    rank[0] = world_rank if comm == SHMRING_MPI_COMM_WORLD else (<clique_t *> comm).rank
    return SHMRING_MPI_SUCCESS


cdef public int MPIABI_Comm_size(uintptr_t comm, int *size) noexcept nogil:
    size[0] = world_size if comm == SHMRING_MPI_COMM_WORLD else (<clique_t *> comm).size
    return SHMRING_MPI_SUCCESS


cdef public int MPIABI_Comm_free(uintptr_t *comm) noexcept nogil:
    """Close a clique. As the process ends, the interpreter may be gone: then the kernel frees its memory."""
    cdef clique_t *clique = <clique_t *> comm[0]
    if comm[0] == SHMRING_MPI_COMM_NULL or comm[0] == SHMRING_MPI_COMM_WORLD or not Py_IsInitialized():
        return SHMRING_MPI_SUCCESS
    give_up(clique)
    if clique.comm != NULL:
        api.comm_close(clique.comm)
        api.comm_release(clique.comm)
    free(clique.problem)
    free(clique)
    comm[0] = SHMRING_MPI_COMM_NULL
    return SHMRING_MPI_SUCCESS


cdef int conclude(clique_t *clique, int code) noexcept nogil:
    """0; or the table's error, which every later call on the clique returns; the other members get an abort."""
    cdef const shmring_error *last
    shmring_mpi_count(&shmring_mpi_nended)
    if code == 0:
        return SHMRING_MPI_SUCCESS
    last = api.last_error()
    code = shmring_mpi_fail_as(last.name, last.text)
    clique.problem = strdup(shmring_mpi_text)
    api.comm_abort(clique.comm, clique.problem)      # no effect on a communicator that is broken or closed
    return code


cdef int refuse(const char *text) noexcept nogil:
    """End an operation whose arguments are not supported: an error of this call alone."""
    shmring_mpi_count(&shmring_mpi_nended)
    return shmring_mpi_fail(text)


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef extern from *:
    """
    #include "shmring/capi.h"

    /* By MPI's type or operation: shmring's plus one; 0: XLA does not use it. */
    static const unsigned char shmring_mpi_numbers[SHMRING_MPI_NCONSTANTS] = {
        [SHMRING_MPI_FLOAT] = 1 + SHMRING_FLOAT32,
        [SHMRING_MPI_DOUBLE] = 1 + SHMRING_FLOAT64,
        [SHMRING_MPI_BYTE] = 1 + SHMRING_UINT8,
        [SHMRING_MPI_INT8_T] = 1 + SHMRING_INT8,
        [SHMRING_MPI_INT16_T] = 1 + SHMRING_INT16,
        [SHMRING_MPI_INT32_T] = 1 + SHMRING_INT32,
        [SHMRING_MPI_INT64_T] = 1 + SHMRING_INT64,
        [SHMRING_MPI_UINT8_T] = 1 + SHMRING_UINT8,
        [SHMRING_MPI_UINT16_T] = 1 + SHMRING_UINT16,
        [SHMRING_MPI_UINT32_T] = 1 + SHMRING_UINT32,
        [SHMRING_MPI_UINT64_T] = 1 + SHMRING_UINT64,
        [SHMRING_MPI_C_COMPLEX] = 1 + SHMRING_COMPLEX64,
        [SHMRING_MPI_C_FLOAT_COMPLEX] = 1 + SHMRING_COMPLEX64,
        [SHMRING_MPI_C_DOUBLE_COMPLEX] = 1 + SHMRING_COMPLEX128,
        [SHMRING_MPI_SUM] = 1 + SHMRING_SUM,
        [SHMRING_MPI_PROD] = 1 + SHMRING_PROD,
        [SHMRING_MPI_MIN] = 1 + SHMRING_MIN,
        [SHMRING_MPI_MAX] = 1 + SHMRING_MAX,
    };
    """
    const unsigned char *numbers "shmring_mpi_numbers"

cdef enum:
    UNKNOWN = 100      # a type or operation that the table does not have


cdef int number_of(uintptr_t constant) noexcept nogil:
    """The number of a type or an operation in the table of shmring.capi."""
    return numbers[constant] - 1 if constant < SHMRING_MPI_NCONSTANTS and numbers[constant] else UNKNOWN


# ---- collectives -----------------------------------------------------------------------------------------------------

cdef public int MPIABI_Allreduce(const void *x, void *out, int count, uintptr_t dtype, uintptr_t op,
                                 uintptr_t comm) noexcept nogil:
    cdef clique_t *clique = begin(comm)
    if clique == NULL:
        return SHMRING_MPI_ERR_OTHER
    return conclude(clique, shmring_all_reduce(api, clique.comm, x, out, count, number_of(dtype), number_of(op),
                                               SHMRING_DEFAULT_TIMEOUT))


cdef public int MPIABI_Reduce_scatter(const void *x, void *out, const int *counts, uintptr_t dtype, uintptr_t op,
                                      uintptr_t comm) noexcept nogil:
    cdef clique_t *clique = begin(comm)
    cdef int rank
    if clique == NULL:
        return SHMRING_MPI_ERR_OTHER
    for rank in range(clique.size):
        if counts[rank] != counts[0]:
            return refuse("shmring: MPI_Reduce_scatter with counts that differ, which JAX does not make")
    return conclude(clique, shmring_reduce_scatter(api, clique.comm, x, out, counts[0], number_of(dtype), number_of(op),
                                                   SHMRING_DEFAULT_TIMEOUT))


cdef public int MPIABI_Allgather(const void *x, int count, uintptr_t dtype, void *out, int out_count,
                                 uintptr_t out_dtype, uintptr_t comm) noexcept nogil:
    cdef clique_t *clique = begin(comm)
    if clique == NULL:
        return SHMRING_MPI_ERR_OTHER
    if out_count != count or number_of(out_dtype) != number_of(dtype):
        return refuse("shmring: MPI_Allgather with another count or type of output, which JAX does not make")
    return conclude(clique, shmring_all_gather(api, clique.comm, x, out, count, number_of(dtype),
                                               SHMRING_DEFAULT_TIMEOUT))


# ---- messages --------------------------------------------------------------------------------------------------------

cdef public int MPIABI_Sendrecv(const void *x, int count, uintptr_t dtype, int dst, int tag, void *out, int out_count,
                                uintptr_t out_dtype, int src, int out_tag, uintptr_t comm,
                                void *status) noexcept nogil:
    cdef clique_t *clique = begin(comm)
    if clique == NULL:
        return SHMRING_MPI_ERR_OTHER
    return conclude(clique, api.sendrecv(clique.comm, x, count, number_of(dtype), dst, tag, out, out_count,
                                         number_of(out_dtype), src, out_tag, SHMRING_DEFAULT_TIMEOUT, NULL))


cdef public int MPIABI_Isend(const void *x, int count, uintptr_t dtype, int dst, int tag, uintptr_t comm,
                             uintptr_t *request) noexcept nogil:
    cdef pending_t *made = note(comm)
    cdef clique_t *clique = NULL if made == NULL else begin(comm)
    cdef int code = SHMRING_MPI_ERR_OTHER
    request[0] = 0
    if clique != NULL:
        code = conclude(clique, api.isend(clique.comm, x, count, number_of(dtype), dst, tag, &made.request))
    if code:
        give_up(clique)
        free(made)
        return code
    append(made)
    request[0] = <uintptr_t> made
    return SHMRING_MPI_SUCCESS


cdef public int MPIABI_Irecv(void *x, int count, uintptr_t dtype, int src, int tag, uintptr_t comm,
                             uintptr_t *request) noexcept nogil:
    cdef pending_t *made = note(comm)
    request[0] = <uintptr_t> made
    if made == NULL:
        return SHMRING_MPI_ERR_OTHER
    made.out, made.count, made.dtype, made.src, made.tag = x, count, number_of(dtype), src, tag
    made.is_noted = True
    append(made)
    return SHMRING_MPI_SUCCESS


cdef pending_t *note(uintptr_t comm) noexcept nogil:
    cdef clique_t *clique = clique_of(comm)
    cdef pending_t *made = NULL
    if clique != NULL:
        made = <pending_t *> calloc(1, sizeof(pending_t))
        if made == NULL:
            shmring_mpi_fail("shmring: no memory for a message")
        else:
            made.clique = clique
    return made


cdef void append(pending_t *made) noexcept nogil:
    cdef pending_t **place = <pending_t **> &shmring_mpi_pending
    while place[0] != NULL:
        place = &place[0].next
    place[0] = made


cdef public int MPIABI_Wait(uintptr_t *request, void *status) noexcept nogil:
    cdef pending_t *own = <pending_t *> request[0]
    cdef pending_t **place = <pending_t **> &shmring_mpi_pending
    cdef clique_t *clique
    cdef int code = SHMRING_MPI_ERR_OTHER
    request[0] = 0
    if own == NULL:
        return SHMRING_MPI_SUCCESS
    if own.has_failed:
        free(own)
        return shmring_mpi_fail("shmring: another call on the communicator of this message has failed")
    clique = begin(<uintptr_t> own.clique)
    if clique != NULL:
        code = conclude(clique, complete(own))
    if code:
        give_up(own.clique)
    else:
        while place[0] != own:
            place = &place[0].next
        place[0] = own.next
    free(own)
    return code


cdef int complete(pending_t *own) noexcept nogil:
    """Make the send or receive. Noted receives are posted first: earlier ones may match the same message, and a send
    may wait for a rank that waits for one of them."""
    cdef pending_t *other = <pending_t *> shmring_mpi_pending
    cdef int is_over = 0
    cdef int code = 0 if own.is_noted else api.test(&own.request, &is_over, NULL)
    while not (code or is_over or other == NULL or (own.is_noted and other == own)):
        if other.clique == own.clique and other.is_noted:
            code = api.irecv(own.clique.comm, other.out, other.count, other.dtype, other.src, other.tag, &other.request)
            other.is_noted = False
        other = other.next
    if code or is_over:
        return code
    if own.is_noted:
        return api.recv(own.clique.comm, own.out, own.count, own.dtype, own.src, own.tag, SHMRING_DEFAULT_TIMEOUT, NULL)
    return api.wait(&own.request, SHMRING_DEFAULT_TIMEOUT, NULL)


cdef void give_up(clique_t *clique) noexcept nogil:
    """Take all sends and receives of a clique that has failed out of this thread's list; `MPIABI_Wait` frees them."""
    cdef pending_t **place = <pending_t **> &shmring_mpi_pending
    while place[0] != NULL:
        if place[0].clique == clique:
            place[0].has_failed = True
            api.wait(&place[0].request, 0, NULL)
            place[0] = place[0].next
        else:
            place = &place[0].next
