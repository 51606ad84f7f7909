"""The table: its functions of communicators, of collectives and of plans, those of `messages`, and its capsule.

Collectives are checked like the methods of a communicator and executed by the same engine, without the GIL: a call
takes the engine's turn, fills in the same request as the method, and executes it. It takes the GIL to make a plan for a
signature that this handle has not used yet, for the agreement about shared arrays, to wait for earlier asynchronous
work, and for the text of an error.
"""

from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from shmring.core.base.timeouts cimport NO_LIMIT
from shmring.capi cimport *
from shmring.capi.handles cimport (Py_IsInitialized, check_handle, check_memory, checked_timeout, comm_t, enter,
                                   fail_with, find_known, hold, is_inherited, last_error, let_go, open_comm, refuse,
                                   refuse_timeout, remember)
from shmring.capi.messages cimport add_messages
from shmring.collectives.calls.local cimport fill_eager, fill_execution, prepare_request, request_t, run_request
from shmring.collectives.engine.call cimport call_t, check_call, open_call, refuse_call
from shmring.collectives.engine.compiled_plan cimport Program
from shmring.collectives.engine.engine cimport Engine
from shmring.collectives.engine.kinds cimport (
    KIND, KIND_ALL_REDUCE, KIND_ALL_REDUCE_MANY, KIND_BARRIER, KIND_BROADCAST, KIND_SCATTER, has_root, is_receiver,
    is_sender, nblocks_in, nblocks_out,
)
from shmring.collectives.engine.signature cimport NO_ROOT
from shmring.core.kernel.numbers cimport NOPS
from shmring.collectives.shared.zero_copy cimport Sharing, may_be_zero_copy
from shmring.core.sync.group cimport READY


# ---- communicators ---------------------------------------------------------------------------------------------------

cdef int comm_open(void *owner, shmring_comm **made) noexcept nogil:
    if made == NULL:
        return refuse(b"comm must not be NULL")
    made[0] = NULL
    with gil:
        try:
            made[0] = <shmring_comm *> open_comm(<object> owner if owner != NULL else None)
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int comm_release(shmring_comm *comm) noexcept nogil:
    if comm == NULL or is_inherited(<comm_t *> comm) or not Py_IsInitialized():
        return 0      # a child of a C program that forked may have no interpreter that works
    with gil:
        return let_go(<comm_t *> comm)


cdef int comm_rank(const shmring_comm *comm) noexcept nogil:
    return (<const comm_t *> comm).rank if comm != NULL else -1


cdef int comm_size(const shmring_comm *comm) noexcept nogil:
    return (<const comm_t *> comm).size if comm != NULL else -1


cdef int comm_abort(shmring_comm *comm, const char *reason) noexcept nogil:
    cdef int code = check_handle(<comm_t *> comm)
    if code:
        return code
    with gil:
        try:
            text = "" if reason == NULL else reason.decode("utf-8", "replace")
            (<Engine> (<comm_t *> comm).engine).abort(text)
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int comm_close(shmring_comm *comm) noexcept nogil:
    cdef int code = check_handle(<comm_t *> comm)
    if code:
        return code
    with gil:
        try:
            (<object> (<comm_t *> comm).owner).close()
        except BaseException as error:
            return fail_with(error)
    return 0


cdef int comm_dup(shmring_comm *comm, shmring_comm **made) noexcept nogil:
    return make_group(comm, True, 0, 0, made)


cdef int comm_split(shmring_comm *comm, int64_t color, int64_t key, shmring_comm **made) noexcept nogil:
    return make_group(comm, False, color, key, made)


cdef int make_group(shmring_comm *comm, bint of_all, int64_t color, int64_t key, shmring_comm **made) noexcept nogil:
    """Make a communicator of all ranks, or of those with a colour, and its handle; NULL for a rank without a colour."""
    cdef int code = check_handle(<comm_t *> comm)
    if code == 0 and made == NULL:
        code = refuse(b"made must not be NULL")
    if code:
        return code
    made[0] = NULL
    with gil:
        try:
            owner = <object> (<comm_t *> comm).owner
            group = owner.dup() if of_all else owner.split(None if color == SHMRING_NO_COLOR else color, key)
            if group is not None:
                made[0] = <shmring_comm *> open_comm(group)
        except BaseException as error:
            return fail_with(error)
    return 0


# ---- collectives ---------------------------------------------------------------------------------------------------

cdef int check(comm_t *h, const shmring_call *call, call_t *c) noexcept nogil:
    """Check a call that C code has filled in; 0, or the code of the error."""
    cdef const void *x
    cdef void *out
    cdef int64_t count
    cdef int kind, dtype, code
    cdef bint receives
    if h == NULL:
        return refuse(b"comm must not be NULL")
    if call == NULL:
        return refuse(b"call must not be NULL")
    if call.struct_size < sizeof(shmring_call) or not KIND_BARRIER <= call.kind < KIND_ALL_REDUCE_MANY:
        return refuse(b"struct_size=%lld, kind=%lld: must be sizeof(shmring_call) and one of enum shmring_collective",
                      <int64_t> call.struct_size, call.kind)
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
    c.x.count *= nblocks_in(kind, h.size)
    c.x.nbytes *= nblocks_in(kind, h.size)
    if receives:
        c.out.count *= nblocks_out(kind, h.size)
        c.out.nbytes *= nblocks_out(kind, h.size)
    if KIND[kind].takes_op:
        if dtype == SHMRING_OPAQUE:
            return refuse(b"SHMRING_OPAQUE is a dtype of messages: pass SHMRING_UINT8")
        if not 0 <= call.op < NOPS:
            return refuse(b"op=%lld: must be one of enum shmring_op, from 0 to %lld", call.op, NOPS - 1)
        c.op = call.op
    code = check_call(c, h.rank, h.size)
    return refuse_mistake(h, c, code) if code else 0


cdef int refuse_mistake(comm_t *h, call_t *c, int mistake) noexcept with gil:
    try:
        refuse_call(mistake, c, h.rank, h.size)
    except BaseException as error:
        return fail_with(error)
    return 0


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
        outcome = (<Engine> h.engine).run_free(&request.eager, NULL, NULL, timeout_ns)
    else:
        outcome = (<Engine> h.engine).run_free(NULL, &(<Program> program).code, &request.execution, timeout_ns)
    return 0 if outcome == READY else break_down(h)


cdef inline bint needs_agreement(comm_t *h, call_t *c, bint is_eager) noexcept nogil:
    """Whether the ranks agree about shared arrays first (`shmring.collectives.shared.zero_copy`, with the GIL): for
    large calls, and for an all_reduce in place, which is refused on a shared result."""
    cdef PyObject *sharing = <PyObject *> (<Engine> h.engine).sharing
    if (<Engine> h.engine).sharing is None:
        return False
    if not is_eager:
        return may_be_zero_copy(<Sharing> sharing, c.kind, c.x.nbytes // nblocks_in(c.kind, h.size))
    return c.kind == KIND_ALL_REDUCE and c.x.data == c.out.data and (<Sharing> sharing).nresults > 0


cdef int perform_with_gil(comm_t *h, call_t *c) noexcept with gil:
    cdef request_t request
    try:
        program = prepare_request(<Engine> h.engine, c, &request)
        run_request(<Engine> h.engine, program, &request, c.timeout_ns)
    except BaseException as error:
        return fail_with(error)
    return 0


cdef int plan_with_gil(comm_t *h, call_t *c, PyObject **program) noexcept with gil:
    """The plan of a signature that this handle has not used yet."""
    cdef request_t request
    try:
        found = prepare_request(<Engine> h.engine, c, &request)
        remember(h, c.signature, found)
        program[0] = <PyObject *> found      # `remember` holds a reference
    except BaseException as error:
        return fail_with(error)
    return 0


cdef int break_down(comm_t *h) noexcept with gil:
    """Store the error of the abort record, as every further call does; return its code."""
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
        return refuse(b"plan must not be NULL")
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
        return refuse(b"plan must not be NULL")
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


# ---- the table -------------------------------------------------------------------------------------------------------

cdef shmring_api api

api.struct_size = sizeof(shmring_api)
api.version = SHMRING_API_VERSION
api.last_error = last_error
api.comm_open = comm_open
api.comm_release = comm_release
api.comm_rank = comm_rank
api.comm_size = comm_size
api.comm_abort = comm_abort
api.comm_close = comm_close
api.comm_dup = comm_dup
api.comm_split = comm_split
api.collective = collective
api.plan_make = plan_make
api.plan_run = plan_run
api.plan_release = plan_release
add_messages(&api)

_C_API = PyCapsule_New(&api, b"shmring.capi._C_API", NULL)


def table_address():
    """Return the address of the table, for C code that does not include ``Python.h`` (``shmring_table()``).

    Returns
    -------
    int
        Equal in every call; valid until the process ends.

    Examples
    --------
    ``library.start(ctypes.c_void_p(shmring.capi.table_address()), ctypes.py_object(comm))`` with `ctypes.PyDLL`
    """
    return <uintptr_t> &api
