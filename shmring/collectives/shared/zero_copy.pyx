"""The zero-copy path: how the ranks agree that a large collective can do without staging.

A plan on shared arrays accesses buffers of other ranks. Either all ranks must use it or none, and each rank knows only
where its own buffers are. So once a communicator has shared arrays, each large collective that has such a plan begins
with an eager exchange of one cache line per rank: the locations of this rank's buffers. All ranks decide from the same
table, so they decide alike.

A process can access an allocation only while it has views of it. A rank that names an allocation has it. If some rank
has not named all allocations that the plan needs, a second exchange asks each rank whether it has them.

The location of a private array is its address in its process. Ranks that are threads of one process access it there.
Ranks of several processes can have the kernel copy from it, if it lets each read the memory of all others
(core/c/peer_memory.h). So large collectives that only move data may be direct on private arrays, too. That is one copy
instead of two, but one in which the kernel looks up every page: such calls begin staged. Each rank first tries to read
both ends of every array, and tells the others whether it could.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from shmring.core.c.atomics cimport full_fence, load_acquire_u32, store_relaxed_u32, store_release_u32
from shmring.core.c.faults cimport fault_point
from shmring.core.c.layout cimport SHMRING_ORDINARY, shmring_outbox
from shmring.core.c.peer_memory cimport read_peer_memory
from shmring.core.base.learner cimport extend_offer, values_of
from shmring.collectives.engine.compiled_plan cimport PATH, call_learner_t
from shmring.collectives.engine.eager cimport eager_t, open_eager
from shmring.collectives.engine.kinds cimport (
    KIND, KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, OF_ALL, OF_NO_RANK, OF_ROOT, nblocks_in, nblocks_out,
)
from shmring.collectives.engine.variants cimport is_next_staged
from shmring.collectives.shared.moved cimport MovedArray
from shmring.collectives.shared.registry cimport ANYWHERE, NOWHERE, Allocation, AllocationRegistry
from shmring.core.sync.abort cimport in_trouble, wake_all
from shmring.core.sync.backoff cimport back_off, be_patient, end_wait, patience_t, sleeper_t
from shmring.core.sync.group cimport CONSUMED
from shmring.core.sync.wait_graph cimport wait_word

from shmring.collectives.plan.choose import build_plan
from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.collectives.plan.zero_copy import entered

cdef uint64_t NEVER = ((<uint64_t>1) << 46) - 1      # a round that no counter reaches: only `wake_all` ends such a wait

# Through slots; on shared arrays; on shared arrays with one output for all ranks.
cdef enum:
    STAGED = 0
    ZERO_COPY = 1
    ONE_RESULT = 2


cdef inline int shared_inputs(int kind, int path) noexcept nogil:
    return OF_NO_RANK if kind == KIND_ALL_GATHER and path != ZERO_COPY else KIND[kind].shared_inputs


cdef inline int shared_outputs(int kind, int path) noexcept nogil:
    return OF_ALL if path == ONE_RESULT else KIND[kind].shared_outputs


cdef inline bint has_one_result(int kind) noexcept nogil:
    return kind in (KIND_ALL_REDUCE, KIND_ALL_GATHER)


# ---- the state of a communicator -------------------------------------------------------------------------------------

cdef class Sharing:
    """A communicator's shared arrays, and the state of one agreement at a time.

    ``nzero_copy`` counts the collectives without staging. Broadcasts, gathers and scatters of fewer than
    ``rooted_nbytes`` are always staged: the root then returns without waiting, which saves more than the copy costs.

    Parameters
    ----------
    size : int
        Number of ranks.
    is_one_process : bool
        Whether these are threads of this process.
    readable : sequence of int
        By rank: the process whose memory the kernel lets this one read; empty if not all ranks can read all others'.
    """

    def __cinit__(self, int size, bint is_one_process=False, readable=()):
        self.registry = AllocationRegistry()
        self.rooted_nbytes = 1 << 20
        self.is_one_process = self.registry.is_one_process = is_one_process
        self.private_nbytes = 1 << 15 if is_one_process else 1 << 20
        self.reads_others = len(readable) == size and not is_one_process
        self.size = size
        self.pins = []
        self.table = <buffers_t *> calloc(size, sizeof(buffers_t))
        self.answers = <char *> calloc(size, 1)
        self.ins = <char **> calloc(size, sizeof(char *))
        self.outs = <char **> calloc(size, sizeof(char *))
        self.pids = <int32_t *> calloc(2 * size, sizeof(int32_t))
        self.readable = self.pids + size
        if NULL in (self.table, self.answers, self.ins, self.outs, self.pids):
            raise MemoryError(f"no memory for the zero-copy tables of {size} ranks")
        for rank, pid in enumerate(readable):
            self.pids[rank] = pid

    def __dealloc__(self):
        free(self.table)
        free(self.answers)
        free(self.ins)
        free(self.outs)
        free(self.pids)

    def stats(self):
        """The numbers of calls without staging, and how large calls are made; see `Communicator.stats`."""
        return {
            "zero_copy_calls": self.nzero_copy,
            "shared_nbytes": sum([array.nbytes for array in self.registry.moved_arrays()]),
        }

    def takes_private(self, str kind, size_t nbytes):
        """Whether a collective accesses private arrays of all ranks; ``nbytes`` as for its plan."""
        return self.is_one_process and may_be_zero_copy(self, COLLECTIVES[kind].code, nbytes)

    def reads_private(self, str kind, size_t nbytes):
        """Whether the kernel may copy from private arrays of other ranks; ``nbytes`` as for its plan."""
        return may_read_private(self, COLLECTIVES[kind].code, nbytes)

    def add_allocation(self, list segments, size_t nbytes, offsets=None):
        """The next allocation, made of mapped segments with ``nbytes`` of data each, at ``offsets`` by rank.

        All ranks add the same allocations in the same order.
        """
        allocation = Allocation(self.registry, self.nallocations + 1, segments, self.size, nbytes, offsets)
        self.nallocations += 1
        if allocation.is_result:
            self.nresults += 1
        return allocation


cdef Sharing sharing_of(Engine e):
    """Before the first shared array: what ranks have from the start that can access private arrays; else None."""
    if e.thresholds is None or not (e.thresholds.is_one_process or e.thresholds.readable):
        return None
    return Sharing(e.c.group.size, e.thresholds.is_one_process, e.thresholds.readable)


cdef inline size_t largest_nbytes(Sharing s, int kind, size_t nbytes) noexcept nogil:
    """The bytes of the larger array of a rank; ``nbytes``: of its plan."""
    return nbytes * max(nblocks_in(kind, s.size), nblocks_out(kind, s.size))


cdef inline bint may_read_private(Sharing s, int kind, size_t nbytes) noexcept nogil:
    """Whether the kernel may copy from the private arrays of other ranks: where every rank reads all others' and
    nothing is computed."""
    return (s.reads_others and shared_inputs(kind, ZERO_COPY) == OF_ALL and not KIND[kind].takes_op
            and largest_nbytes(s, kind, nbytes) >= s.private_nbytes)


cdef bint may_be_zero_copy(Sharing s, int kind, size_t nbytes) noexcept nogil:
    cdef bint all_send = shared_inputs(kind, ZERO_COPY) == OF_ALL
    cdef size_t largest = largest_nbytes(s, kind, nbytes)
    if shared_inputs(kind, ZERO_COPY) == OF_NO_RANK and shared_outputs(kind, ZERO_COPY) == OF_NO_RANK:
        return False
    return (s.size > 1 and largest > 0 and (all_send or largest >= s.rooted_nbytes)
            and (s.nallocations > 0 or (s.is_one_process and largest >= s.private_nbytes)
                 or may_read_private(s, kind, nbytes)))


# ---- decisions from the table: the same on all ranks -----------------------------------------------------------------

cdef inline place_t *needed_input(Sharing s, int kind, int path, int rank, int root) noexcept:
    """The input of ``rank``, if other ranks access it; else NULL."""
    cdef int shared = shared_inputs(kind, path)
    return &s.table[rank].input if shared == OF_ALL or (shared == OF_ROOT and rank == root) else NULL


cdef inline place_t *needed_output(Sharing s, int kind, int path, int rank, int root) noexcept:
    cdef int shared = shared_outputs(kind, path)
    return &s.table[rank].output if shared == OF_ALL or (shared == OF_ROOT and rank == root) else NULL


cdef inline bint is_missing(place_t *place) noexcept:
    return place != NULL and place.allocation == NOWHERE


cdef bint is_possible(Sharing s, int kind, int path, int root) noexcept:
    cdef place_t *first = &s.table[0].output
    cdef place_t *other
    cdef int r
    for r in range(s.size):
        if is_missing(needed_input(s, kind, path, r, root)) or is_missing(needed_output(s, kind, path, r, root)):
            return False
        if kind == KIND_ALL_TO_ALL and s.table[r].is_in_place:
            return False        # a block would be overwritten before its reader has read it
        other = &s.table[r].output
        if path == ONE_RESULT and (other.allocation != first.allocation or other.owner != first.owner
                                  or other.offset != first.offset):
            return False
    return True


cdef int best_path(Sharing s, int kind, int root) noexcept:
    if has_one_result(kind) and is_possible(s, kind, ONE_RESULT, root):
        return ONE_RESULT
    return ZERO_COPY if is_possible(s, kind, ZERO_COPY, root) else STAGED


cdef inline bint is_read_by_kernel(Sharing s, place_t *place) noexcept:
    return place != NULL and place.allocation == ANYWHERE and not s.is_one_process


cdef bint has_private(Sharing s, int kind, int root) noexcept:
    """Whether the kernel copies for some rank."""
    cdef int r
    for r in range(s.size):
        if is_read_by_kernel(s, needed_input(s, kind, ZERO_COPY, r, root)):
            return True
    return False


cdef bint all_name(Sharing s, place_t *place) noexcept:
    """Whether every rank is known to be able to access a place."""
    cdef uint32_t allocation = place.allocation if place != NULL else NOWHERE
    cdef int r
    if place == NULL or allocation == ANYWHERE:
        return not is_read_by_kernel(s, place)
    for r in range(s.size):
        if s.table[r].input.allocation != allocation and s.table[r].output.allocation != allocation:
            return False
    return True


cdef bint all_name_all_needed(Sharing s, int kind, int path, int root) noexcept:
    cdef int r
    for r in range(s.size):
        if not all_name(s, needed_input(s, kind, path, r, root)):
            return False
        if not all_name(s, needed_output(s, kind, path, r, root)):
            return False
    return True


# ---- addresses in this process ---------------------------------------------------------------------------------------

cdef char *pin(Sharing s, place_t *place, size_t nbytes) except? NULL:
    """The address of a place in this process, valid until ``pins`` is cleared.

    NULL if it is not mapped any more, or if ``nbytes`` from there on exceed the allocation: a peer wrote the place, so
    it is checked.
    """
    cdef Allocation allocation
    if place == NULL:
        return NULL
    if place.allocation == ANYWHERE and s.is_one_process:
        return <char *> place.offset
    allocation = s.registry.allocation_of(place.allocation)
    if allocation is None or place.owner >= <uint32_t> s.size:
        return NULL
    if place.offset > allocation.nbytes or nbytes > allocation.nbytes - place.offset:
        return NULL
    if not s.pins or s.pins[len(s.pins) - 1] is not allocation:
        s.pins.append(allocation)
    return allocation.bases[place.owner] + place.offset


cdef bint find_readable(Sharing s, int kind, place_t *place, int r, int rank, size_t nbytes) noexcept:
    """Find the private input of rank ``r`` in the memory of its process; whether this rank can read both ends."""
    cdef char *start = <char *> place.offset
    cdef char byte
    if not may_read_private(s, kind, nbytes):      # what a peer wrote
        return False
    s.ins[r] = start
    if r == rank:
        return True
    s.readable[r] = s.pids[r]
    nbytes *= nblocks_in(kind, s.size)
    return read_peer_memory(s.pids[r], &byte, start, 1) and read_peer_memory(s.pids[r], &byte, start + nbytes - 1, 1)


cdef int pin_all(Sharing s, int kind, int path, int root, int rank, size_t nbytes) except -2:
    """Look up and keep mapped all buffers that the plan needs; a rank with one that cannot be accessed here, or -1."""
    cdef place_t *input
    cdef place_t *output
    cdef int r
    for r in range(s.size):
        input = needed_input(s, kind, path, r, root)
        output = needed_output(s, kind, path, r, root)
        s.readable[r] = 0
        if is_read_by_kernel(s, input):
            if not find_readable(s, kind, input, r, rank, nbytes):
                return r
        else:
            s.ins[r] = pin(s, input, nbytes * nblocks_in(kind, s.size))
        s.outs[r] = pin(s, output, nbytes * nblocks_out(kind, s.size))
        if (input != NULL and s.ins[r] == NULL) or (output != NULL and s.outs[r] == NULL):
            return r
    return -1


# ---- private arrays with pages that were moved into a segment (`collectives/shared/share.py`) ------------------------

cdef char *open_own(Sharing s, char *address, size_t nbytes) except? NULL:
    """A buffer of this rank as it lies in the segment, its ends staged there; NULL if it is not in a moved array.

    The array stays shared until the call has ended (`shmring.collectives.shared.moved`)."""
    cdef MovedArray array = <MovedArray> s.registry.moved_at(address)
    if array is None or nbytes > <size_t> (array.end - address):
        return NULL
    array.stage_ends(address, nbytes)
    return array.image + (address - array.start)


cdef void open_buffers(Sharing s, execution_t *j, int kind, bint is_root) except *:
    """Stage the ends of the buffers that this rank's part in a collective uses."""
    s.in_image = s.out_image = NULL
    if is_root or shared_inputs(kind, ZERO_COPY) != OF_ROOT:
        s.in_image = open_own(s, j.in_base, j.nbytes * nblocks_in(kind, s.size))
    if is_root or shared_outputs(kind, ZERO_COPY) != OF_ROOT:
        s.out_image = open_own(s, j.out_base, j.nbytes * nblocks_out(kind, s.size))


cdef int execute_in_place(Engine e, Program staged, Program direct, execution_t *j, int64_t timeout_ns) except -1:
    """Execute a zero-copy plan: on the segments where this rank's buffers were moved into some, as peers do."""
    cdef Sharing s = e.sharing
    cdef char *in_base = j.in_base
    cdef char *out_base = j.out_base
    cdef int usual_stores = j.usual_stores
    j.ins, j.outs, j.readable, j.direct = s.ins, s.outs, s.readable, &direct.code
    s.nzero_copy += 1
    if s.is_one_process:
        begin_access(e)
    try:
        if s.in_image != NULL:
            j.in_base = s.in_image
        if s.out_image != NULL:
            j.out_base = s.out_image
        if j.kind == KIND_ALL_REDUCE and in_base == out_base:
            # By rule to lines that have just been read, however large the array.
            j.usual_stores = SHMRING_ORDINARY
        e.run(NULL, &staged.code, j, timeout_ns)
    finally:
        if s.is_one_process:
            end_access(e)
        # A plan of the user executes it again.
        j.in_base, j.out_base, j.usual_stores, j.direct = in_base, out_base, usual_stores, NULL
    if s.out_image != NULL:
        (<MovedArray> s.registry.moved_at(out_base)).fetch_ends(out_base, j.nbytes * nblocks_out(j.kind, s.size))
    return 0


# ---- accesses to private arrays of other ranks, where all ranks are threads of one process ---------------------------
#
# An array in a segment stays mapped as long as the call of any rank needs it. A private array does not: its owner may
# free it once its own call has ended. A call that succeeds ends after the last access to the rank's arrays. One that
# fails first waits until no rank accesses them any more: for a copy or a reduction at most, as waits of other ranks end
# with the failure. Ranks that come to the call later find the abort record before they access anything.

cdef int begin_access(Engine e) except -1:
    """Call before this rank accesses arrays of others, and `end_access` in any case after it. Raises, without that, if
    the call has failed on some rank."""
    store_relaxed_u32(&e.c.own.accesses, 1)
    # SYNC accesses (meets: give_up). Its caller sees this word, or the abort record is visible here.
    full_fence()
    if in_trouble(&e.c.group):
        end_access(e)
        e.break_down()
    return 0


cdef void end_access(Engine e) noexcept nogil:
    store_release_u32(&e.c.own.accesses, 0)      # SYNC accesses over (meets: give_up)
    # Without a fence before this look: the owner of an array that fails at this very moment finds the 0 at its tick.
    if in_trouble(&e.c.group):
        wake_all(&e.c.group)


cdef int give_up(Engine e, object error, bint has_accesses) except -1:
    """After a failure of this rank in a call that has begun: abort it on all ranks, and return when no rank accesses
    this rank's arrays, and none will any more."""
    cdef shmring_outbox *own = e.c.own
    cdef sleeper_t sleeper
    cdef patience_t patience
    cdef int j
    if not in_trouble(&e.c.group):
        e.report_abort(f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    if not has_accesses:
        return 0
    with nogil:
        full_fence()      # SYNC accesses (meets: begin_access)
        for j in range(e.c.group.size):
            be_patient(&patience, -1)
            sleeper = sleeper_t(word=&own.asleep, what=wait_word(CONSUMED, j, NEVER), wake=&own.wake, next=NULL,
                                spin_ns=0, yields=0, tick_ns=e.c.group.tick_ns, spin=NULL, looks=0)
            # SYNC accesses over (meets: end_access)
            while load_acquire_u32(&e.c.group.outbox[j].accesses):
                back_off(&patience, &sleeper)
            end_wait(&patience, &sleeper)
    return 0


# ---- the agreement ---------------------------------------------------------------------------------------------------

cdef int exchange_records(Engine e, uint64_t signature, int sender, const void *record, size_t nbytes, char *received,
                          int64_t timeout_ns) except -1:
    """Send ``record`` of rank ``sender``, of every rank if -1, to all; that of rank r goes to received[r * nbytes]."""
    cdef eager_t t
    cdef bint sends = sender < 0 or sender == e.c.group.rank
    open_eager(&t, signature, <const char *> record if sends else NULL, nbytes)
    t.part_nbytes = nbytes
    t.last = e.c.group.size
    if sender >= 0:
        t.first = sender
        t.last = sender + (e.c.group.rank != sender)      # a single sender receives nothing, so it does not wait
    t.out = received + t.first * nbytes
    return e.run(&t, NULL, NULL, timeout_ns)


cdef int name_buffers(Engine e, Sharing s, execution_t *j) except -1:
    """Enter into the table where the buffers of this rank are."""
    cdef buffers_t *own = &s.table[e.c.group.rank]
    own.input = s.registry.place_of(j.in_base, j.nbytes * nblocks_in(j.kind, s.size))
    if own.input.allocation == NOWHERE and may_read_private(s, j.kind, j.nbytes):
        own.input.allocation, own.input.offset = ANYWHERE, <uint64_t> j.in_base
    own.output = s.registry.place_of(j.out_base, j.nbytes * nblocks_out(j.kind, s.size))
    own.is_in_place = j.in_base == j.out_base
    return 0


cdef Program direct_program(Engine e, Sharing s, Program staged, execution_t *j, int path):
    """The plan of a path; None if by the buffers of this rank alone it cannot be taken."""
    cdef int rank = e.c.group.rank, root = j.root
    if is_missing(needed_input(s, j.kind, path, rank, root)) or is_missing(needed_output(s, j.kind, path, rank, root)):
        return None
    key = (j.kind, j.nbytes, j.itemsize, root, path)
    found = e.programs.get(key)
    if found is None:
        name = "zero_copy_shared" if path == ONE_RESULT else "zero_copy"
        plan = build_plan(staged.plan.kind, name, rank, s.size, j.nbytes, j.itemsize, max(root, 0), e.limits)
        found = e.keep_program(key, Program(entered(plan), e.limits))
    return found


cdef int agree(Engine e, Sharing s, execution_t *j, int64_t timeout_ns) except -1:
    """The path that all ranks take. If not STAGED, the buffers it needs are pinned, and all ranks are in this call."""
    cdef int kind = j.kind, root = j.root, rank = e.c.group.rank, r
    cdef bint all_send = shared_inputs(kind, ZERO_COPY) == OF_ALL
    cdef int path, lacking
    cdef char answer
    cdef buffers_t own = s.table[rank]
    open_buffers(s, j, kind, rank == root)
    memset(s.table, 0, s.size * sizeof(buffers_t))
    if rank == root:
        s.table[rank] = own
    # If only the root's buffers are needed, only the root sends; if they are not shared, it does not wait.
    exchange_records(e, j.signature, -1 if all_send else root, &own, sizeof(buffers_t), <char *> s.table, timeout_ns)
    fault_point("agree")
    path = best_path(s, kind, root)
    if path == STAGED:
        return STAGED
    lacking = pin_all(s, kind, path, root, rank, j.nbytes)
    if all_name_all_needed(s, kind, path, root):
        if lacking >= 0:      # this rank named the allocation, too, so it is mapped: the place exceeds it
            e.disagree(lacking, j.signature, f"rank {lacking} named a place outside of the shared array")
        return path
    answer = lacking < 0
    exchange_records(e, j.signature, -1, &answer, 1, s.answers, timeout_ns)
    fault_point("agreed")
    for r in range(s.size):
        if not s.answers[r]:
            return STAGED
    return path


cdef int execute_shared(Engine e, Program staged, execution_t *j, int64_t timeout_ns) except -1:
    """Execute ``j`` without staging if the buffers of all ranks allow it, else by the compiled plan ``staged``."""
    cdef Sharing s = e.sharing
    cdef uint64_t begun = e.c.next_round
    cdef bint is_staged, may_have_one_result, is_mixed, learns_path = e.variants.learns >> PATH & 1
    cdef int path
    cdef Program direct, of_one_result = None
    j.is_odd = j.reads_private = False
    if not may_be_zero_copy(s, j.kind, j.nbytes):
        return e.run(NULL, &staged.code, j, timeout_ns)
    may_have_one_result = s.nresults and has_one_result(j.kind)
    # Without a shared array all are private; else only an agreement shows which ones are.
    j.reads_private = learns_path and s.nallocations == 0 and not s.is_one_process
    is_mixed = learns_path and s.nallocations > 0 and may_read_private(s, j.kind, j.nbytes)
    is_staged = not is_mixed and is_next_staged(&e.c, &e.variants, &staged.code, j)
    try:
        # A call that is staged needs no agreement, unless all ranks may have passed one result.
        if is_staged and not may_have_one_result:
            e.run(NULL, &staged.code, j, timeout_ns)
            if j.reads_private:
                offer_path(j.learner)
            return 0
        # Plans are made before the ranks agree: that takes the interpreter, in which handlers of signals may raise.
        name_buffers(e, s, j)
        direct = direct_program(e, s, staged, j, ZERO_COPY)
        if may_have_one_result or (s.is_one_process and has_one_result(j.kind)):
            of_one_result = direct_program(e, s, staged, j, ONE_RESULT)
        path = agree(e, s, j, timeout_ns)
        j.is_odd = path != ZERO_COPY
        if is_mixed and path == ZERO_COPY:
            j.reads_private = has_private(s, j.kind, j.root)
            is_staged = is_next_staged(&e.c, &e.variants, &staged.code, j)
        if path == STAGED or (path == ZERO_COPY and is_staged):
            e.run(NULL, &staged.code, j, timeout_ns)
        else:
            execute_in_place(e, staged, direct if path == ZERO_COPY else of_one_result, j, timeout_ns)
        if path == ZERO_COPY and learns_path:
            offer_path(j.learner)
    except BaseException as error:
        if e.c.next_round != begun or in_trouble(&e.c.group):
            give_up(e, error, s.is_one_process)
        raise
    finally:
        s.pins.clear()
    return 0


cdef inline void offer_path(call_learner_t *learner) noexcept:
    """Have the path of a call learned, too."""
    extend_offer(&learner.learned, values_of(learner.learned.nvalues, PATH, 2))
