"""The custom call of XLA behind all functions of `shmring.jax`: buffers in, one call of the C table.

XLA executes it in a thread of its own, without the GIL. The first buffer describes the call, a constant that
`operations` writes. XLA has attributes for that, but jaxlib 0.6 aborts the process as it compiles some products of
matrices before a custom call with attributes. A graph may come from another program, so nothing in it is trusted.

A graph cannot hold a communicator, and an address in it could dangle: a graph may be executed after its communicator is
gone, or in another process. So a graph has the number of a `Registered`, which each call looks up, or the name of a
communicator if it is exported. Numbers are not used again.
"""

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int32_t, int64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset

from shmring.capi cimport (SHMRING_DEFAULT_TIMEOUT, SHMRING_KIND_BROADCAST, SHMRING_KIND_EXSCAN, SHMRING_OPAQUE,
                           SHMRING_UINT8, shmring_api, shmring_call, shmring_comm, shmring_error, shmring_import,
                           shmring_message)
from shmring.collectives.engine.kinds cimport (KIND, KIND_ALL_REDUCE_MANY, KIND_BARRIER, KIND_NONE, OF_ROOT, nblocks_in,
                                   nblocks_out)

import weakref

from shmring.communicator import Communicator
from shmring.dtypes import DTYPES
from shmring.launch.named import by_name, communicator

cdef const shmring_api *api = shmring_import()

cdef extern from "jax/functions/xla_ffi_abi.h" nogil:
    enum:
        XLA_FFI_Error_Code_INVALID_ARGUMENT
        XLA_FFI_Error_Code_FAILED_PRECONDITION
        XLA_FFI_DataType_S64
        XLA_FFI_DataType_TOKEN
        XLA_FFI_DataType_U8
    ctypedef struct XLA_FFI_Error:
        pass
    ctypedef struct XLA_FFI_Buffer:
        int32_t dtype
        void *data
        int64_t rank
        int64_t *dims
    ctypedef struct XLA_FFI_Buffers:
        int64_t size
        XLA_FFI_Buffer **buffers
    ctypedef struct XLA_FFI_CallFrame:
        XLA_FFI_Buffers args
        XLA_FFI_Buffers rets
    bint xla_ffi_describe(XLA_FFI_CallFrame *frame)
    XLA_FFI_Error *xla_ffi_error(XLA_FFI_CallFrame *frame, int code, const char *message)

cdef extern from *:
    """
    #include "jax/functions/xla_ffi_abi.h"
    #include "shmring/capi.h"

    /* Kinds beside the collectives of collectives/engine/kinds.h. */
    enum { SEND = 101, RECV, SENDRECV, PERMUTE };

    static const int shmring_xla_codes[] = {
        [SHMRING_ERR_BAD_ARGUMENT] = XLA_FFI_Error_Code_INVALID_ARGUMENT,
        [SHMRING_ERR_CLOSED] = XLA_FFI_Error_Code_FAILED_PRECONDITION,
        [SHMRING_ERR_PEER_LOST] = XLA_FFI_Error_Code_UNAVAILABLE,
        [SHMRING_ERR_TIMEOUT] = XLA_FFI_Error_Code_DEADLINE_EXCEEDED,
        [SHMRING_ERR_MISMATCH] = XLA_FFI_Error_Code_FAILED_PRECONDITION,
        [SHMRING_ERR_ABORTED] = XLA_FFI_Error_Code_ABORTED,
        [SHMRING_ERR_OUT_OF_MEMORY] = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED,
        [SHMRING_ERR_INTERNAL] = XLA_FFI_Error_Code_INTERNAL,
        [SHMRING_ERR_MESSAGE_TIMEOUT] = XLA_FFI_Error_Code_DEADLINE_EXCEEDED,
        [SHMRING_ERR_MESSAGE_TOO_LONG] = XLA_FFI_Error_Code_FAILED_PRECONDITION,
    };

    /* By XLA's dtype: shmring's, and the bytes of an element. 0: no array, or less than a byte, which XLA may pack.
     * Those that shmring has are filled in from the rows of dtypes.py. */
    enum { NXLA = XLA_FFI_DataType_F8E8M0FNU + 1 };
    typedef struct { int dtype, itemsize; } shmring_dtype_size;
    static shmring_dtype_size shmring_dtypes[NXLA] = {
        [XLA_FFI_DataType_F8E5M2] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3FN] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3B11FNUZ] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E5M2FNUZ] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3FNUZ] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E4M3] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E3M4] = {SHMRING_OPAQUE, 1},
        [XLA_FFI_DataType_F8E8M0FNU] = {SHMRING_OPAQUE, 1},
    };
    """
    enum: SEND, RECV, SENDRECV, PERMUTE, NXLA
    const int *xla_codes "shmring_xla_codes"
    ctypedef struct dtype_t "shmring_dtype_size":
        int dtype
        int itemsize
    dtype_t *dtypes "shmring_dtypes"

cdef enum:
    NNUMBERS = 10           # the fields of custom_call_t from `comm` to `nname`
    BY_NAME = -1            # as the number of a communicator
    PERMUTE_TAG = 0x7fffffff
    NO_PEER = -2            # beside SHMRING_ANY_SOURCE, -1

for _code, _row in enumerate(DTYPES):
    if not 0 < _row.xla < NXLA:
        raise ImportError(f"{_row.name} has a number of XLA's that the table of dtypes has no room for")
    dtypes[<int> _row.xla].dtype, dtypes[<int> _row.xla].itemsize = _code, _row.itemsize

ctypedef struct array_t:
    void *data
    int64_t count
    int xla_dtype
    int dtype           # shmring's; SHMRING_UINT8 where it has none
    bint is_opaque
    size_t itemsize

ctypedef struct custom_call_t:
    # The description, in its order:
    int64_t comm, kind, nranks, op, root, src, dst, tag, out_tag, nname
    const int64_t *name             # of the communicator, in an exported graph; a byte in each
    const int64_t *pairs
    int64_t npairs
    # Buffers:
    array_t x, out
    int32_t *status


# ---- operands and results by kind ------------------------------------------------------------------------------------

cdef inline bint is_collective(int64_t kind) noexcept nogil:
    return KIND_NONE < kind < KIND_ALL_REDUCE_MANY


cdef inline bint has_operand(int64_t kind) noexcept nogil:
    return kind != KIND_BARRIER and kind != RECV


cdef inline bint has_result(int64_t kind) noexcept nogil:
    return kind != KIND_BARRIER and kind != SEND


cdef inline bint has_status(int64_t kind) noexcept nogil:
    return kind == RECV or kind == SENDRECV


# ---- communicators of graphs -----------------------------------------------------------------------------------------

cdef extern from *:
    """
    #include <pthread.h>
    #include <stdint.h>
    #define MOST 4096
    typedef struct {
        int64_t number;     /* 0: free */
        int64_t nholders;   /* the Registered object, and the calls that use the handle */
        int is_dropped;     /* the object is gone: no new calls */
        void *comm;
    } shmring_slot;
    static shmring_slot shmring_slots[MOST];
    static pthread_mutex_t shmring_slots_lock = PTHREAD_MUTEX_INITIALIZER;
    static void slots_lock(void) { pthread_mutex_lock(&shmring_slots_lock); }
    static void slots_unlock(void) { pthread_mutex_unlock(&shmring_slots_lock); }
    """
    const int MOST
    ctypedef struct slot_t "shmring_slot":
        int64_t number
        int64_t nholders
        bint is_dropped
        void *comm
    slot_t *slots "shmring_slots"
    void slots_lock() noexcept nogil      # for some instructions, and never with a call of Python in it
    void slots_unlock() noexcept nogil

cdef int64_t ngenerations = 0
cdef dict named = {}        # keeps the entries of the communicators that have names
# By weak reference to the communicator, one to its entry. No Python code runs where either dies, in which the exception
# of a signal handler (Ctrl-C) would be lost.
cdef dict entries = {}


cdef class Registered:
    """A communicator to which graphs refer. It keeps the communicator alive, and compiled graphs keep it alive.

    Its slot is freed once this object is gone and the calls that use the slot have ended.
    """

    cdef readonly object comm
    cdef readonly int64_t number
    cdef object __weakref__

    def __init__(self, comm):
        cdef shmring_comm *handle = NULL
        if api.comm_open(<void *> comm, &handle):
            raise ValueError(api.last_error().text.decode("utf-8", "replace"))
        self.number = enter(handle)
        if not self.number:
            api.comm_release(handle)
            raise RuntimeError(f"more than {MOST} communicators are in use by compiled functions: use fewer, or "
                               "jax.clear_caches()")
        self.comm = comm

    def __dealloc__(self):
        drop(self.number)

    def __repr__(self):
        return self.comm.name


cdef int64_t enter(shmring_comm *handle) noexcept:
    """A number for the handle; 0 if all slots are in use."""
    global ngenerations
    cdef int i
    cdef int64_t number = 0
    slots_lock()
    for i in range(MOST):
        if slots[i].number == 0:
            ngenerations += 1
            number = ngenerations * MOST + i
            slots[i].number = number
            slots[i].nholders = 1
            slots[i].is_dropped = False
            slots[i].comm = handle
            break
    slots_unlock()
    return number


cdef void drop(int64_t number) noexcept:
    """Allow no new calls; the last call that uses the handle releases it."""
    if number:
        slots_lock()
        slots[number % MOST].is_dropped = True
        slots_unlock()
        release(number)


cdef shmring_comm *acquire(int64_t number) noexcept nogil:
    """The handle of that number, until `release`; NULL if there is none."""
    cdef slot_t *slot
    cdef shmring_comm *comm = NULL
    if number < MOST:
        return NULL
    slot = &slots[number % MOST]
    slots_lock()
    if slot.number == number and not slot.is_dropped:
        slot.nholders += 1
        comm = <shmring_comm *> slot.comm
    slots_unlock()
    return comm


cdef void release(int64_t number) noexcept nogil:
    """Release a handle that `acquire` has returned. The last release frees the slot."""
    cdef slot_t *slot = &slots[number % MOST]
    cdef shmring_comm *comm = NULL
    slots_lock()
    slot.nholders -= 1
    if slot.nholders == 0:
        comm = <shmring_comm *> slot.comm
        slot.number = 0
    slots_unlock()
    if comm != NULL:
        api.comm_release(comm)


cdef object entry_of(comm):
    """The entry of a communicator, made where there is none or the last one is gone."""
    found = entries.get(weakref.ref(comm))
    entry = None if found is None else found()
    if entry is None:
        entry = Registered(comm)
        entries[weakref.ref(comm, entries.pop)] = weakref.ref(entry)
    return entry


def registered(comm):
    """The entry of a communicator, given as itself or by name; None: the default one."""
    if isinstance(comm, Registered):
        return comm
    if isinstance(comm, Communicator):
        return entry_of(comm)
    name = comm or ""
    if not isinstance(name, str):
        raise TypeError(f"comm={comm!r}: must be a shmring.Communicator, its name, or None for the default one")
    entry = named.get(name)
    if entry is None or entry.comm is not by_name[name]:
        entry = named[name] = registered(communicator(name))
    return entry


def name_of(entry):
    """The name of a communicator in exported graphs; each process that executes the graph must have set it."""
    for name, comm in by_name.items():
        if comm is entry.comm:
            return name
    raise ValueError(
        f"{entry!r} has no name, by which another process could find it: call "
        "shmring.jax.set_communicator(comm, name) before jax.export"
    )


# ---- the function that XLA calls -------------------------------------------------------------------------------------

cdef XLA_FFI_Error *handle(XLA_FFI_CallFrame *frame) noexcept nogil:
    """Make the call that the first operand describes."""
    cdef custom_call_t c
    cdef XLA_FFI_Error *error
    cdef shmring_comm *comm
    if xla_ffi_describe(frame):
        return NULL
    memset(&c, 0, sizeof(c))
    error = read_buffers(frame, &c)
    if error == NULL and c.comm == BY_NAME:
        error = look_up(frame, &c)
    if error != NULL:
        return error
    comm = acquire(c.comm)
    if comm == NULL:
        return xla_ffi_error(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION,
                             b"the communicator that this function was compiled with is gone, or belongs to another "
                             b"process; graphs for other processes are made by jax.export")
    error = check_sizes(frame, &c, comm)
    if error == NULL:
        error = perform(frame, &c, comm)
    release(c.comm)
    return error


def capsule():
    """The handler, for `jax.ffi.register_ffi_target`."""
    return PyCapsule_New(<void *> handle, NULL, NULL)


# ---- reading ---------------------------------------------------------------------------------------------------------

cdef XLA_FFI_Error *read_description(XLA_FFI_CallFrame *frame, const XLA_FFI_Buffer *b,
                                     custom_call_t *c) noexcept nogil:
    """Read the first operand: the numbers, all of 32 bits but the first, the bytes of a name, and pairs of ranks."""
    cdef const int64_t *numbers = <const int64_t *> b.data
    cdef int64_t i, rest
    if b.dtype != XLA_FFI_DataType_S64 or count_of(b) < NNUMBERS:
        return refuse(frame, b"the description of the call is missing")
    memcpy(&c.comm, numbers, NNUMBERS * sizeof(int64_t))
    rest = count_of(b) - NNUMBERS - c.nname
    for i in range(1, NNUMBERS):
        if numbers[i] != <int32_t> numbers[i]:
            return refuse(frame, b"a number in the description of the call is too large")
    if not (is_collective(c.kind) or SEND <= c.kind <= PERMUTE):
        return refuse(frame, b"this kind of call is not known to this release of shmring")
    if c.nname < 0 or rest < 0 or rest % 2:
        return refuse(frame, b"the description of the call has a wrong length")
    c.name = numbers + NNUMBERS
    c.pairs = c.name + c.nname
    c.npairs = rest // 2
    return NULL


cdef XLA_FFI_Error *read_buffers(XLA_FFI_CallFrame *frame, custom_call_t *c) noexcept nogil:
    """Find description, operand and results. XLA's token comes first; one of shmring, a byte, last."""
    cdef XLA_FFI_Error *error
    cdef XLA_FFI_Buffer **args = frame.args.buffers
    cdef XLA_FFI_Buffer **rets = frame.rets.buffers
    cdef int64_t nargs = frame.args.size, nrets = frame.rets.size
    if nargs and args[0].dtype == XLA_FFI_DataType_TOKEN:
        args, nargs = args + 1, nargs - 1
    if nrets and rets[0].dtype == XLA_FFI_DataType_TOKEN:
        rets, nrets = rets + 1, nrets - 1
    if not nargs:
        return refuse(frame, b"the description of the call is missing")
    error = read_description(frame, args[0], c)
    if error != NULL:
        return error
    args, nargs = args + 1, nargs - 1
    if has_operand(c.kind):
        if not nargs or not read_array(args[0], &c.x):
            return refuse(frame, b"the operand is missing, or of an unknown dtype")
        nargs -= 1
    if has_result(c.kind):
        if not nrets or not read_array(rets[0], &c.out):
            return refuse(frame, b"the result is missing, or of an unknown dtype")
        rets, nrets = rets + 1, nrets - 1
    if has_status(c.kind):
        if not nrets or rets[0].rank != 1 or rets[0].dims[0] != 2:
            return refuse(frame, b"the status is missing")
        c.status = <int32_t *> rets[0].data
        rets, nrets = rets + 1, nrets - 1
    if nrets == 1 and nargs == 1 and rets[0].dtype == XLA_FFI_DataType_U8 and count_of(rets[0]) == 1:
        memset(rets[0].data, 0, 1)
    elif nrets or nargs:
        return refuse(frame, b"there are more operands or results than the call has")
    return NULL


cdef bint read_array(const XLA_FFI_Buffer *b, array_t *a) noexcept nogil:
    """Describe a buffer; False for a dtype without a size."""
    a.data = b.data
    a.xla_dtype = b.dtype
    if not 0 < b.dtype < NXLA:
        return False
    a.is_opaque = dtypes[b.dtype].dtype == SHMRING_OPAQUE
    a.dtype = SHMRING_UINT8 if a.is_opaque else dtypes[b.dtype].dtype
    a.itemsize = dtypes[b.dtype].itemsize
    a.count = count_of(b)
    return a.itemsize > 0


cdef int64_t count_of(const XLA_FFI_Buffer *b) noexcept nogil:
    cdef int64_t i, count = 1
    for i in range(b.rank):
        count *= b.dims[i]
    return count


cdef XLA_FFI_Error *check_sizes(XLA_FFI_CallFrame *frame, custom_call_t *c, shmring_comm *comm) noexcept nogil:
    """Check that the buffers fit the call and the communicator."""
    cdef char text[256]
    cdef int64_t nranks = api.comm_size(comm)
    cdef int64_t blocks_in = nblocks_in(c.kind, nranks) if is_collective(c.kind) else 1
    cdef int64_t blocks_out = nblocks_out(c.kind, nranks) if is_collective(c.kind) else 1
    cdef int64_t block
    if c.nranks != nranks:
        snprintf(text, sizeof(text), b"this graph was made for a communicator of %lld ranks; this one has %lld",
                 <long long> c.nranks, <long long> nranks)
        return refuse(frame, text)
    if has_operand(c.kind) and has_result(c.kind):
        block = c.x.count // blocks_in
        if (c.x.xla_dtype != c.out.xla_dtype or c.x.count != block * blocks_in
                or c.out.count != block * blocks_out):
            return refuse(frame, b"the result does not fit the operand")
    if is_collective(c.kind) and KIND[c.kind].takes_op and c.x.is_opaque:
        return refuse(frame, b"this dtype can be moved, but not reduced")
    return NULL


cdef XLA_FFI_Error *look_up(XLA_FFI_CallFrame *frame, custom_call_t *c) noexcept with gil:
    """Find the communicator of that name (an exported graph)."""
    try:
        c.comm = registered(bytes([c.name[i] for i in range(c.nname)]).decode()).number
        return NULL
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode("utf-8", "replace")
        return xla_ffi_error(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, text)


# ---- the calls -------------------------------------------------------------------------------------------------------

cdef XLA_FFI_Error *perform(XLA_FFI_CallFrame *frame, custom_call_t *c, shmring_comm *comm) noexcept nogil:
    if c.kind == PERMUTE:
        route(c, api.comm_rank(comm))
    if c.kind >= SEND:
        return exchange(frame, c, comm)
    return fail(frame) if collect(c, comm) else NULL


cdef int collect(custom_call_t *c, shmring_comm *comm) noexcept nogil:
    """A collective; where this rank gets no result, it is zeros."""
    cdef shmring_call call
    cdef int rank = api.comm_rank(comm), kind = <int> c.kind
    memset(&call, 0, sizeof(call))
    call.struct_size = sizeof(call)
    call.kind, call.dtype, call.op, call.root = kind, c.x.dtype, <int> c.op, <int> c.root
    call.x, call.out, call.timeout_ns = c.x.data, c.out.data, SHMRING_DEFAULT_TIMEOUT
    call.count = c.x.count // nblocks_in(kind, c.nranks)
    if kind == SHMRING_KIND_BROADCAST:
        if rank == call.root:
            memcpy(c.out.data, c.x.data, c.x.count * c.x.itemsize)
        call.x = c.out.data
    elif (KIND[kind].outputs == OF_ROOT and rank != call.root) or (kind == SHMRING_KIND_EXSCAN and rank == 0):
        clear(&c.out)
    return api.collective(comm, &call)


cdef inline void clear(array_t *a) noexcept nogil:
    if a.count:
        memset(a.data, 0, a.count * a.itemsize)


cdef void route(custom_call_t *c, int rank) noexcept nogil:
    """The peers of this rank in a permutation."""
    cdef int64_t i
    c.src = c.dst = NO_PEER
    c.tag = c.out_tag = PERMUTE_TAG
    for i in range(c.npairs):
        if c.pairs[2 * i] == rank:
            c.dst = c.pairs[2 * i + 1]
        if c.pairs[2 * i + 1] == rank:
            c.src = c.pairs[2 * i]


cdef XLA_FFI_Error *exchange(XLA_FFI_CallFrame *frame, custom_call_t *c, shmring_comm *comm) noexcept nogil:
    """Send and receive, or one of them; without a source its result is zeros."""
    cdef char text[256]
    cdef array_t *x = &c.x
    cdef array_t *out = &c.out
    cdef int src = <int> c.src, dst = <int> c.dst, tag = <int> c.tag, out_tag = <int> c.out_tag
    cdef int64_t limit = SHMRING_DEFAULT_TIMEOUT
    cdef shmring_message message
    cdef int code = 0
    message.source, message.tag, message.nbytes = NO_PEER, out_tag, out.count * out.itemsize
    if src == NO_PEER and c.kind != SEND:
        clear(out)
    if dst != NO_PEER and src != NO_PEER:
        code = api.sendrecv(comm, x.data, x.count, x.dtype, dst, tag, out.data, out.count, out.dtype, src,
                            out_tag, limit, &message)
    elif dst != NO_PEER:
        code = api.send(comm, x.data, x.count, x.dtype, dst, tag, limit)
    elif src != NO_PEER:
        code = api.recv(comm, out.data, out.count, out.dtype, src, out_tag, limit, &message)
    if code:
        return fail(frame)
    if message.nbytes != out.count * out.itemsize:
        snprintf(text, sizeof(text), b"the message of rank %d with tag %d has %llu bytes, the result %llu: shapes and "
                 b"dtypes must be equal on all ranks", message.source, message.tag,
                 <unsigned long long> message.nbytes, <unsigned long long> (out.count * out.itemsize))
        return xla_ffi_error(frame, XLA_FFI_Error_Code_FAILED_PRECONDITION, text)
    if c.status != NULL:
        c.status[0] = message.source
        c.status[1] = message.tag
    return NULL


# ---- errors ----------------------------------------------------------------------------------------------------------

cdef XLA_FFI_Error *refuse(XLA_FFI_CallFrame *frame, const char *text) noexcept nogil:
    """An error of the graph itself."""
    return xla_ffi_error(frame, XLA_FFI_Error_Code_INVALID_ARGUMENT, text)


cdef XLA_FFI_Error *fail(XLA_FFI_CallFrame *frame) noexcept nogil:
    """The last error of this thread, with the name of the exception that the method would raise."""
    cdef char text[1280]
    cdef const shmring_error *last = api.last_error()
    snprintf(text, sizeof(text), b"%s: %s", last.name, last.text)
    return xla_ffi_error(frame, xla_codes[last.code], text)
