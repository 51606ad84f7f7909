"""Collectives without the GIL: checked like the methods of a communicator, executed by the same engine.

A call takes the engine's turn, fills in the same request as the method, and executes it. The GIL is taken to make a
plan for a signature that this handle has not used yet, for the agreement about shared arrays, for asynchronous work
that comes first, and for the text of an error.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from shmring.base.timeouts cimport NO_LIMIT
from shmring.arrays.array_view cimport array_t
from shmring.capi cimport SHMRING_DEFAULT_TIMEOUT, SHMRING_OPAQUE, shmring_call, shmring_comm, shmring_plan
from shmring.capi.handles cimport check_handle, comm_t, enter, find_known, hold, is_inherited, let_go, remember
from shmring.capi.last_error cimport Py_IsInitialized, fail_with, refuse, refuse_null
from shmring.collective.local cimport fill_eager, fill_execution, prepare_request, request_t, run_request
from shmring.engine.call cimport call_t, check_call, open_call, refuse_call
from shmring.engine.compiled_plan cimport Program
from shmring.engine.engine cimport Engine
from shmring.engine.kinds cimport (KIND_ALL_REDUCE, KIND_BARRIER, KIND_BROADCAST, KIND_EXSCAN, KIND_SCATTER, KIND,
                                   has_root, is_receiver, is_sender)
from shmring.engine.signature cimport NO_ROOT
from shmring.shared.zero_copy cimport Sharing
from shmring.sync.group cimport READY

from shmring.dtypes import DTYPES, OPS

cdef enum:
    MOST_DTYPES = 16
    LEAST_TIMEOUT = -2

cdef int64_t MOST_NBYTES = <int64_t> 1 << 48      # of one block: no product of sizes overflows
cdef int ITEMSIZES[MOST_DTYPES]
cdef int NDTYPES = len(DTYPES)
cdef int NOPS = len(OPS)
for _code in range(NDTYPES):
    ITEMSIZES[_code] = DTYPES[_code].itemsize


# ---- arguments -------------------------------------------------------------------------------------------------------

cdef int check_memory(const void *data, int64_t count, int dtype, array_t *a) noexcept nogil:
    """Describe ``count`` elements at ``data``; 0, or the code of the error."""
    if not SHMRING_OPAQUE <= dtype < NDTYPES:
        with gil:
            return refuse(f"dtype={dtype}: must be one of enum shmring_dtype, from 0 to {NDTYPES - 1}")
    a.data = <void *> data
    a.dtype = dtype
    a.itemsize = 1 if dtype == SHMRING_OPAQUE else ITEMSIZES[dtype]
    if count < 0 or count > MOST_NBYTES // a.itemsize:
        with gil:
            return refuse(f"count={count}: must be from 0 to {MOST_NBYTES // a.itemsize} elements")
    a.count = count
    a.nbytes = count * a.itemsize
    if data == NULL and count:
        with gil:
            return refuse(f"NULL is no address of {count} elements")
    return 0


cdef int64_t checked_timeout(int64_t timeout_ns, int64_t default_ns) noexcept nogil:
    """The timeout as the engine has it, or LEAST_TIMEOUT if there is no such timeout."""
    if timeout_ns == SHMRING_DEFAULT_TIMEOUT:
        return default_ns
    return max(timeout_ns, <int64_t> LEAST_TIMEOUT)      # NO_LIMIT is SHMRING_NO_TIMEOUT


cdef int refuse_timeout(int64_t timeout_ns) noexcept nogil:
    with gil:
        return refuse(f"timeout_ns={timeout_ns}: must be 0 or more nanoseconds, SHMRING_NO_TIMEOUT or "
                      "SHMRING_DEFAULT_TIMEOUT")


cdef int check(comm_t *h, const shmring_call *call, call_t *c) noexcept nogil:
    """Check a call that C code has filled in; 0, or the code of the error."""
    cdef const void *x
    cdef void *out
    cdef int64_t count
    cdef int kind, dtype, code
    cdef bint receives = True
    if h == NULL:
        return refuse_null(b"handle of a communicator")
    if call == NULL or call.struct_size < sizeof(shmring_call) or not KIND_BARRIER <= call.kind <= KIND_EXSCAN:
        return refuse_record(call)
    kind, x, out, count, dtype = call.kind, call.x, call.out, call.count, call.dtype
    open_call(c, kind, call.root if has_root(kind) else NO_ROOT, checked_timeout(call.timeout_ns, h.timeout_ns))
    if c.timeout_ns < NO_LIMIT:
        return refuse_timeout(call.timeout_ns)
    if kind == KIND_BARRIER:
        x = out = NULL
        count = dtype = 0
    receives = is_receiver(kind, h.rank, c.root)
    if not is_sender(kind, h.rank, c.root) and kind == KIND_SCATTER:
        x = out      # not read: the signature needs its size only
    elif kind == KIND_BROADCAST or not receives:
        out = <void *> x
    code = check_memory(x, count, dtype, &c.x)
    if code == 0:
        code = check_memory(out, count, dtype, &c.out)
    if code:
        return code
    if KIND[kind].blocks_in:
        c.x.count *= h.size
        c.x.nbytes *= h.size
    if KIND[kind].blocks_out and receives:
        c.out.count *= h.size
        c.out.nbytes *= h.size
    if KIND[kind].takes_op:
        if dtype == SHMRING_OPAQUE:
            with gil:
                return refuse("SHMRING_OPAQUE is a dtype of messages: pass SHMRING_UINT8")
        if not 0 <= call.op < NOPS:
            with gil:
                return refuse(f"op={call.op}: must be one of enum shmring_op, from 0 to {NOPS - 1}")
        c.op = call.op
    code = check_call(c, h.rank, h.size)
    return refuse_mistake(h, c, code) if code else 0


cdef int refuse_record(const shmring_call *call) noexcept nogil:
    if call == NULL:
        return refuse_null(b"call")
    with gil:
        return refuse(f"struct_size={call.struct_size}, kind={call.kind}: must be sizeof(shmring_call) and one of "
                      "enum shmring_collective")


cdef int refuse_mistake(comm_t *h, call_t *c, int mistake) noexcept nogil:
    with gil:
        try:
            refuse_call(mistake, c, h.rank, h.size)
        except BaseException as error:
            return fail_with(error)
    return 0


# ---- calls -----------------------------------------------------------------------------------------------------------

cdef int collective(shmring_comm *comm, const shmring_call *call) noexcept nogil:
    cdef comm_t *h = <comm_t *> comm
    cdef call_t c
    cdef request_t request
    cdef PyObject *program = NULL
    cdef bint is_eager
    cdef int code = check(h, call, &c) or enter(h)
    if code:
        return code
    is_eager = fill_eager(<Engine> h.engine, &c, &request.eager)
    if needs_agreement(h, &c, is_eager):
        code = perform_with_gil(h, &c)
    else:
        if not is_eager:
            program = find_known(h, c.signature)
            if program == NULL:
                code = plan_with_gil(h, &c, &program)
            if code == 0:
                fill_execution(<Engine> h.engine, &c, &request.execution)
        if code == 0:
            code = run(h, &request, program, c.timeout_ns)
    (<Engine> h.engine).leave_free()
    return code


cdef inline int run(comm_t *h, request_t *request, PyObject *program, int64_t timeout_ns) noexcept nogil:
    """Execute a request, which is eager if it has no program; 0, or the code of the error."""
    cdef int outcome
    if program == NULL:
        outcome = (<Engine> h.engine).run_free(&request.eager, None, NULL, timeout_ns)
    else:
        outcome = (<Engine> h.engine).run_free(NULL, <Program> program, &request.execution, timeout_ns)
    return 0 if outcome == READY else break_down(h)


cdef inline bint needs_agreement(comm_t *h, call_t *c, bint is_eager) noexcept nogil:
    """Whether shared arrays matter, about which ranks agree in `shmring.shared.zero_copy`, with the GIL: to large
    calls; and to an all_reduce in place, which may be refused on a shared result."""
    cdef PyObject *sharing = <PyObject *> (<Engine> h.engine).sharing
    if (<Engine> h.engine).sharing is None:
        return False
    return not is_eager or (c.kind == KIND_ALL_REDUCE and c.x.data == c.out.data and (<Sharing> sharing).nresults > 0)


cdef int perform_with_gil(comm_t *h, call_t *c) noexcept nogil:
    cdef request_t request
    with gil:
        try:
            program = prepare_request(<Engine> h.engine, c, &request)
            run_request(<Engine> h.engine, program, &request, c.timeout_ns)
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int plan_with_gil(comm_t *h, call_t *c, PyObject **program) noexcept nogil:
    """The plan of a signature that this handle has not used yet."""
    cdef request_t request
    with gil:
        try:
            found = prepare_request(<Engine> h.engine, c, &request)
            remember(h, c.signature, found)
            program[0] = <PyObject *> found      # `remember` holds a reference
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int break_down(comm_t *h) noexcept nogil:
    """The error of the abort record, which every further call gets."""
    with gil:
        try:
            (<Engine> h.engine).break_down()
        except BaseException as error:
            return fail_with(error)
    return 0


# ---- plans -----------------------------------------------------------------------------------------------------------

# What a `shmring_plan *` points to.
ctypedef struct plan_t:
    comm_t *comm                   # holds the handle
    call_t call
    request_t request
    PyObject *program              # holds a reference; NULL: eager


cdef int plan_make(shmring_comm *comm, const shmring_call *call, shmring_plan **plan) noexcept nogil:
    cdef call_t c
    cdef int code
    if plan == NULL:
        return refuse_null(b"place for a plan")
    plan[0] = NULL
    code = check(<comm_t *> comm, call, &c) or check_handle(<comm_t *> comm)
    if code:
        return code
    with gil:
        try:
            plan[0] = <shmring_plan *> make_plan(<comm_t *> comm, &c)
        except BaseException as error:
            return fail_with(error)
    return 0


cdef plan_t *make_plan(comm_t *h, call_t *c) except NULL:
    cdef Engine engine = <Engine> h.engine
    cdef Program program
    cdef plan_t *plan = <plan_t *> calloc(1, sizeof(plan_t))
    if plan == NULL:
        raise MemoryError("no memory for a plan")
    plan.call = c[0]
    try:
        engine.check_usable()
        program = prepare_request(engine, c, &plan.request)
    except BaseException:
        free(plan)
        raise
    if program is not None:
        Py_INCREF(program)
        plan.program = <PyObject *> program
    plan.comm = h
    hold(h)
    return plan


cdef int plan_run(shmring_plan *made) noexcept nogil:
    cdef plan_t *plan = <plan_t *> made
    cdef comm_t *h
    cdef int code
    if plan == NULL:
        return refuse_null(b"plan")
    h = plan.comm
    code = enter(h)
    if code:
        return code
    if needs_agreement(h, &plan.call, plan.program == NULL):
        code = perform_with_gil(h, &plan.call)
    else:
        code = run(h, &plan.request, plan.program, plan.call.timeout_ns)
    (<Engine> h.engine).leave_free()
    return code


cdef int plan_release(shmring_plan *made) noexcept nogil:
    cdef plan_t *plan = <plan_t *> made
    if plan == NULL or is_inherited(plan.comm) or not Py_IsInitialized():
        return 0
    with gil:
        if plan.program != NULL:
            Py_DECREF(<object> plan.program)
        let_go(plan.comm)
        free(plan)
    return 0
