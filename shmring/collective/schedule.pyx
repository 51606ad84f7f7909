"""Requests of collectives: an eager exchange for a small payload, a compiled plan for a large one.

For each collective one function fills in a request: an eager one-round exchange if the payload of a rank fits in one
eager message, otherwise the execution of the compiled plan that the function returns. Both give the same bits, because
both reduce in rank order. All ranks must choose alike, so the choice depends on the size of the message alone. Nothing
is sent yet, and a request can be run repeatedly.

The caller has checked the arguments.
"""

from libc.string cimport memset

from shmring.collective.zero_copy cimport refuse_result, execute_shared
from shmring.arrays.reduce cimport find_carrier
from shmring.engine.signature cimport (KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BARRIER, KIND_BROADCAST,
                                KIND_EXSCAN, KIND_GATHER, KIND_NONE, KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCAN,
                                KIND_SCATTER, NO_OP, NO_ROOT, pack_signature)
from shmring.dtypes import widening
from shmring.plan.choose import choose
from shmring.plan.thread_shares import cut, spaced
from shmring.engine.signature import MAX_COUNT

# A signature has room for counts below this.
cdef uint64_t COUNTS = MAX_COUNT + 1

# By the 8 bits of a signature that hold operation and dtype: how many times wider a partial result is than its dtype,
# between locality domains.
cdef tuple WIDENINGS = tuple([widening(word >> 4, word & 15) for word in range(256)])


# ---- eager exchanges -------------------------------------------------------------------------------------------------

cdef inline void start_eager(eager_t *t, int kind, int op, int root, array_t *x, char *payload, size_t nbytes) noexcept:
    open_eager(t, pack_signature(kind, op, x.dtype, root, x.count), payload, nbytes)


cdef inline void receive_from_all(eager_t *t, Engine e, size_t offset, size_t part_nbytes) noexcept:
    t.last = e.c.group.size
    t.offset = offset
    t.part_nbytes = part_nbytes


cdef inline void receive_from(eager_t *t, int rank, size_t offset, size_t part_nbytes) noexcept:
    t.first = rank
    t.last = rank + 1
    t.offset = offset
    t.part_nbytes = part_nbytes


cdef inline void reduce_into(eager_t *t, array_t *out, reduce_kernel kernel) noexcept:
    t.kernel = kernel
    t.count = out.count
    t.out = <char *> out.data


cdef inline void copy_into(eager_t *t, array_t *out, size_t stride) noexcept:
    t.out = <char *> out.data
    t.stride = stride


# ---- plans -----------------------------------------------------------------------------------------------------------

cdef Program plan_execution(Engine e, int kind, str name, size_t nbytes, array_t *x, array_t *out, int root, int op,
                          reduce_kernel kernel, request_t *request):
    """The execution of a plan for ``nbytes``: of the vector, or of one block where there is one per rank."""
    if x.count >= COUNTS:
        raise ValueError(f"{x.count} elements in one call: at most {COUNTS - 1} are supported; make several calls")
    cdef Program program = follow_plan(e, name, nbytes, pack_signature(kind, op, x.dtype, root, x.count), x, out, root,
                                       kernel, request)
    request.execution.kind = kind
    request.execution.root = root
    request.execution.nbytes = nbytes
    return program


cdef Program program_for(Engine e, str name, nbytes, int itemsize, int root, int wide):
    """The compiled plan of this rank; if its work is split, those of its threads, of which the first is returned."""
    cdef int rank = e.c.group.rank, size = e.c.group.size
    cdef Program first
    cdef dict domains = {}
    if e.hierarchy is not None:
        domains = {"hierarchy": e.hierarchy, "costs": e.thresholds.costs, "wide": wide}
    shares = None
    if e.team is not None and isinstance(nbytes, int):
        shares = cut(name, size, nbytes, e.team.nthreads(), e.team.split_nbytes)
    if shares is None:
        return Program(choose(name, rank, size, nbytes, itemsize, root=root, limits=e.limits, **domains), e.limits)
    plans = [choose(name, rank, size, n, itemsize, root=root, limits=e.team.limits, **domains) for n in shares]
    first, last = [Program(spaced(plan, n, nbytes), e.team.limits) for plan, n in zip(plans, shares, strict=True)]
    first.last = last
    first.share_nbytes = shares.nbytes
    return first


cdef Program follow_plan(Engine e, str name, nbytes, uint64_t signature, array_t *x, array_t *out, int root,
                         reduce_kernel kernel, request_t *request):
    """The execution of a plan, which is compiled once for these sizes. ``nbytes``: an int; tuples if blocks differ."""
    cdef execution_t *j = &request.execution
    cdef Program program
    cdef int wide = 1, word
    key = (name, nbytes, x.itemsize, root)
    if e.hierarchy is not None:
        word = signature >> 50 & 255
        wide = WIDENINGS[word]
        key = (name, nbytes, x.itemsize, root, wide)
        j.carrier = find_carrier(word >> 4, word & 15)
    found = e.programs.get(key)
    if found is None:
        found = e.remember(key, program_for(e, name, nbytes, x.itemsize, max(root, 0), wide))
    program = found
    j.signature = signature
    j.kind = KIND_NONE      # blocks of different sizes are always staged: no agreement about shared arrays
    j.in_base = <char *> x.data
    j.out_base = <char *> out.data
    j.kernel = kernel
    j.itemsize = x.itemsize
    j.out_streaming = outgrows_cache(e, x, out, name == "broadcast")
    return program


cdef bint outgrows_cache(Engine e, array_t *x, array_t *out, bint is_blind) noexcept:
    """Whether the output is better stored past the cache.

    In place, the lines to be stored have just been read and are in the cache, unless the array is larger than it.
    Otherwise an ordinary store must first fetch the line from memory, once the arrays and outboxes of all ranks exceed
    half the cache: eviction depends on addresses, and other processes use the cache, too. ``is_blind``: the call writes
    its array without reading it, although it is input and output.
    """
    cdef bint is_in_place = x.data <= out.data < <void *> (<char *> x.data + x.nbytes)
    cdef size_t arrays = x.nbytes if is_in_place else x.nbytes + out.nbytes
    if is_in_place and not is_blind:
        return out.nbytes >= e.c.output_streaming_nbytes
    return 2 * (e.c.group.size * arrays + 2 * e.c.nslots * e.c.slot_nbytes) >= e.c.output_streaming_nbytes


# ---- the collectives -------------------------------------------------------------------------------------------------

cdef Program barrier(Engine e, request_t *request):
    cdef eager_t *t = &request.eager
    cdef array_t nothing
    cdef Program program
    memset(&nothing, 0, sizeof(array_t))
    if e.hierarchical_barriers:
        program = plan_execution(e, KIND_BARRIER, "barrier", 0, &nothing, &nothing, NO_ROOT, NO_OP, NULL, request)
        request.execution.kind = KIND_NONE      # no arrays to agree about
        return program
    start_eager(t, KIND_BARRIER, NO_OP, NO_ROOT, &nothing, b"", 0)
    receive_from_all(t, e, 0, 0)
    return None


cdef Program all_reduce(Engine e, array_t *x, array_t *out, int op, reduce_kernel kernel, request_t *request):
    cdef eager_t *t = &request.eager
    if e.sharing is not None:
        refuse_result(e, x, out)
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_ALL_REDUCE, "all_reduce", x.nbytes, x, out, NO_ROOT, op, kernel, request)
    start_eager(t, KIND_ALL_REDUCE, op, NO_ROOT, x, payload_of(x), x.nbytes)
    receive_from_all(t, e, 0, x.nbytes)
    reduce_into(t, out, kernel)
    return None


cdef Program reduce(Engine e, array_t *x, array_t *out, int root, int op, reduce_kernel kernel, request_t *request):
    """Only the root uses ``out``."""
    cdef eager_t *t = &request.eager
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_REDUCE, "reduce", x.nbytes, x, out, root, op, kernel, request)
    start_eager(t, KIND_REDUCE, op, root, x, payload_of(x), x.nbytes)
    if e.c.group.rank == root:
        receive_from_all(t, e, 0, x.nbytes)
        reduce_into(t, out, kernel)
    return None


cdef Program broadcast(Engine e, array_t *x, int root, request_t *request):
    cdef eager_t *t = &request.eager
    cdef bint is_root = e.c.group.rank == root
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_BROADCAST, "broadcast", x.nbytes, x, x, root, NO_OP, NULL, request)
    start_eager(t, KIND_BROADCAST, NO_OP, root, x, payload_of(x) if is_root else NULL, x.nbytes)
    if not is_root:
        receive_from(t, root, 0, x.nbytes)
        copy_into(t, x, 0)
    return None


cdef Program all_gather(Engine e, array_t *x, array_t *out, request_t *request):
    cdef eager_t *t = &request.eager
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_ALL_GATHER, "all_gather", x.nbytes, x, out, NO_ROOT, NO_OP, NULL, request)
    start_eager(t, KIND_ALL_GATHER, NO_OP, NO_ROOT, x, payload_of(x), x.nbytes)
    receive_from_all(t, e, 0, x.nbytes)
    copy_into(t, out, x.nbytes)
    return None


cdef Program reduce_scatter(Engine e, array_t *x, array_t *out, int op, reduce_kernel kernel, request_t *request):
    cdef eager_t *t = &request.eager
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_REDUCE_SCATTER, "reduce_scatter", out.nbytes, x, out, NO_ROOT, op, kernel,
                              request)
    start_eager(t, KIND_REDUCE_SCATTER, op, NO_ROOT, x, payload_of(x), x.nbytes)
    receive_from_all(t, e, e.c.group.rank * out.nbytes, out.nbytes)
    reduce_into(t, out, kernel)
    return None


cdef Program gather(Engine e, array_t *x, array_t *out, int root, request_t *request):
    """Only the root uses ``out``."""
    cdef eager_t *t = &request.eager
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_GATHER, "gather", x.nbytes, x, out, root, NO_OP, NULL, request)
    start_eager(t, KIND_GATHER, NO_OP, root, x, payload_of(x), x.nbytes)
    if e.c.group.rank == root:
        receive_from_all(t, e, 0, x.nbytes)
        copy_into(t, out, x.nbytes)
    return None


cdef Program scatter(Engine e, array_t *x, array_t *out, int root, request_t *request):
    """Only the root reads ``x``; on the others it has the root's size and dtype, and no data."""
    cdef eager_t *t = &request.eager
    cdef bint is_root = e.c.group.rank == root
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_SCATTER, "scatter", out.nbytes, x, out, root, NO_OP, NULL, request)
    start_eager(t, KIND_SCATTER, NO_OP, root, x, payload_of(x) if is_root else NULL, x.nbytes)
    receive_from(t, root, e.c.group.rank * out.nbytes, out.nbytes)
    copy_into(t, out, 0)
    return None


cdef Program all_to_all(Engine e, array_t *x, array_t *out, request_t *request):
    cdef eager_t *t = &request.eager
    cdef size_t part = x.nbytes // e.c.group.size
    if x.nbytes > e.eager_limit:
        return plan_execution(e, KIND_ALL_TO_ALL, "all_to_all", part, x, out, NO_ROOT, NO_OP, NULL, request)
    start_eager(t, KIND_ALL_TO_ALL, NO_OP, NO_ROOT, x, payload_of(x), x.nbytes)
    receive_from_all(t, e, e.c.group.rank * part, part)
    copy_into(t, out, part)
    return None


cdef Program scan(Engine e, array_t *x, array_t *out, bint inclusive, int op, reduce_kernel kernel,
                  request_t *request):
    cdef eager_t *t = &request.eager
    cdef int kind = KIND_SCAN if inclusive else KIND_EXSCAN
    if x.nbytes > e.eager_limit:
        return plan_execution(e, kind, "scan" if inclusive else "exscan", x.nbytes, x, out, NO_ROOT, op, kernel,
                              request)
    start_eager(t, kind, op, NO_ROOT, x, payload_of(x), x.nbytes)
    receive_from_all(t, e, 0, x.nbytes)
    t.last = e.c.group.rank + inclusive
    reduce_into(t, out, kernel)
    return None


# ---- any collective --------------------------------------------------------------------------------------------------

cdef Program prepare_request(Engine e, int kind, array_t *x, array_t *out, int root, int op, reduce_kernel kernel,
                            request_t *request):
    """The request of the collective ``kind``; it ignores arguments that do not apply (a root, a kernel)."""
    if kind == KIND_ALL_REDUCE:
        return all_reduce(e, x, out, op, kernel, request)
    if kind == KIND_REDUCE:
        return reduce(e, x, out, root, op, kernel, request)
    if kind == KIND_BROADCAST:
        return broadcast(e, x, root, request)
    if kind == KIND_ALL_GATHER:
        return all_gather(e, x, out, request)
    if kind == KIND_REDUCE_SCATTER:
        return reduce_scatter(e, x, out, op, kernel, request)
    if kind == KIND_GATHER:
        return gather(e, x, out, root, request)
    if kind == KIND_SCATTER:
        return scatter(e, x, out, root, request)
    if kind == KIND_ALL_TO_ALL:
        return all_to_all(e, x, out, request)
    if kind == KIND_SCAN or kind == KIND_EXSCAN:
        return scan(e, x, out, kind == KIND_SCAN, op, kernel, request)
    return barrier(e, request)


cdef int run_request(Engine e, Program program, request_t *request, int64_t timeout_ns) except -1:
    """Run a request. The caller has entered the engine."""
    if program is None:
        return e.exchange_eager(&request.eager, timeout_ns)
    if e.sharing is not None and request.execution.kind != KIND_NONE:
        return execute_shared(e, program, &request.execution, timeout_ns)
    return e.execute(program, &request.execution, timeout_ns)
