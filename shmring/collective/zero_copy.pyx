"""Agreements: how the ranks find out that a large collective can do without staging.

A plan on shared arrays reaches into buffers of other ranks. All ranks must take it or none, and of the places of the
buffers each knows only its own. So once a communicator has shared arrays, each large collective that has such a plan
begins with a talk of one line a rank: the places of my buffers. From one table all conclude the same.

A process can reach an allocation only while it has views of it. A rank that names an allocation has it; where some
rank has not named all that the plan needs, a second talk asks whether everybody has them.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from shmring.collective.registry cimport NOWHERE, Allocation, entry_t
from shmring._c.faults cimport fault_point
from shmring.engine.signature cimport (KIND_ALL_GATHER, KIND_ALL_REDUCE, KIND_ALL_TO_ALL, KIND_BROADCAST, KIND_GATHER,
                                KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_SCATTER)
from shmring.engine.eager cimport eager_t

from shmring.plan.choose import choose
from shmring.plan.zero_copy import entered


# How a collective goes: over slots; on shared arrays; on them, with one array as everybody's OUT.
cdef enum:
    STAGED = 0
    MAPPED = 1
    ONE_RESULT = 2

# Whose buffers a plan reaches from other ranks; only these need to be shared.
cdef enum:
    NOBODYS = 0
    ROOTS = 1
    EVERYBODYS = 2


# ---- what the plans of shmring.plan.zero_copy reach, and what the buffers measure ---------------------------------------

cdef int reach_of_inputs(int kind, int way) noexcept:
    if kind in (KIND_ALL_REDUCE, KIND_REDUCE, KIND_REDUCE_SCATTER, KIND_ALL_TO_ALL):
        return EVERYBODYS
    if kind == KIND_ALL_GATHER:
        return EVERYBODYS if way == MAPPED else NOBODYS
    return ROOTS if kind in (KIND_BROADCAST, KIND_SCATTER) else NOBODYS


cdef int reach_of_outputs(int kind, int way) noexcept:
    if kind == KIND_ALL_REDUCE or way == ONE_RESULT:
        return EVERYBODYS
    return ROOTS if kind in (KIND_REDUCE, KIND_GATHER) else NOBODYS


cdef inline bint has_one_result(int kind) noexcept:
    return kind in (KIND_ALL_REDUCE, KIND_ALL_GATHER)


cdef inline size_t parts_of_input(int kind, int size) noexcept:
    return size if kind in (KIND_REDUCE_SCATTER, KIND_SCATTER, KIND_ALL_TO_ALL) else 1


cdef inline size_t parts_of_output(int kind, int size) noexcept:
    return size if kind in (KIND_ALL_GATHER, KIND_GATHER, KIND_ALL_TO_ALL) else 1


# ---- one communicator's part -----------------------------------------------------------------------------------------

cdef class Sharing:
    """A communicator's shared arrays, and room for one agreement at a time.

    ``nmapped`` counts the collectives that needed no staging. Broadcasts, gathers and scatters of fewer than
    ``rooted_nbytes`` are staged in any case: there a root that waits for nobody is worth more than the bytes saved.

    Parameters
    ----------
    size : int
        How many ranks there are.
    """

    def __cinit__(self, int size):
        self.directory = Directory()
        self.rooted_nbytes = 1 << 20
        self.size = size
        self.pins = []
        self.table = <word_t *> calloc(size, sizeof(word_t))
        self.answers = <char *> calloc(size, 1)
        self.ins = <char **> calloc(size, sizeof(char *))
        self.outs = <char **> calloc(size, sizeof(char *))
        if self.table == NULL or self.answers == NULL or self.ins == NULL or self.outs == NULL:
            raise MemoryError(f"no memory for agreements between {size} ranks")

    def __dealloc__(self):
        free(self.table)
        free(self.answers)
        free(self.ins)
        free(self.outs)

    def enlist(self, list segments, size_t nbytes):
        """The next allocation, made of mapped segments with ``nbytes`` of data each.

        All ranks enlist the same allocations in the same order.
        """
        allocation = Allocation(self.directory, self.nallocations + 1, segments, self.size, nbytes)
        self.nallocations += 1
        self.nresults += allocation.is_result
        return allocation


cdef inline bint is_worth_asking(Sharing s, int kind, size_t nbytes) noexcept:
    if reach_of_inputs(kind, MAPPED) == EVERYBODYS:
        return s.size > 1 and nbytes > 0
    if reach_of_inputs(kind, MAPPED) == NOBODYS and reach_of_outputs(kind, MAPPED) == NOBODYS:
        return False
    nbytes *= max(parts_of_input(kind, s.size), parts_of_output(kind, s.size))
    return s.size > 1 and nbytes > 0 and nbytes >= s.rooted_nbytes


# ---- reading the table: the same on all ranks ------------------------------------------------------------------------

cdef inline place_t *reached_input(Sharing s, int kind, int way, int who, int root) noexcept:
    """That rank's input, if others reach into it; else NULL."""
    cdef int reach = reach_of_inputs(kind, way)
    return &s.table[who].input if reach == EVERYBODYS or (reach == ROOTS and who == root) else NULL


cdef inline place_t *reached_output(Sharing s, int kind, int way, int who, int root) noexcept:
    cdef int reach = reach_of_outputs(kind, way)
    return &s.table[who].output if reach == EVERYBODYS or (reach == ROOTS and who == root) else NULL


cdef inline bint is_missing(place_t *place) noexcept:
    return place != NULL and place.allocation == NOWHERE


cdef bint is_possible(Sharing s, int kind, int way, int root) noexcept:
    cdef place_t *first = &s.table[0].output
    cdef place_t *other
    cdef int r
    for r in range(s.size):
        if is_missing(reached_input(s, kind, way, r, root)) or is_missing(reached_output(s, kind, way, r, root)):
            return False
        if kind == KIND_ALL_TO_ALL and s.table[r].is_in_place:
            return False        # blocks would swap under their readers
        other = &s.table[r].output
        if way == ONE_RESULT and (other.allocation != first.allocation or other.owner != first.owner
                                  or other.offset != first.offset):
            return False
    return True


cdef int way_for(Sharing s, int kind, int root) noexcept:
    if has_one_result(kind) and is_possible(s, kind, ONE_RESULT, root):
        return ONE_RESULT
    return MAPPED if is_possible(s, kind, MAPPED, root) else STAGED


cdef bint everybody_names(Sharing s, place_t *place) noexcept:
    cdef uint32_t allocation = place.allocation if place != NULL else NOWHERE
    cdef int r
    for r in range(s.size if place != NULL else 0):
        if s.table[r].input.allocation != allocation and s.table[r].output.allocation != allocation:
            return False
    return True


cdef bint everybody_names_all(Sharing s, int kind, int way, int root) noexcept:
    cdef int r
    for r in range(s.size):
        if not everybody_names(s, reached_input(s, kind, way, r, root)):
            return False
        if not everybody_names(s, reached_output(s, kind, way, r, root)):
            return False
    return True


# ---- what this rank alone knows --------------------------------------------------------------------------------------

cdef char *pin(Sharing s, place_t *place, size_t nbytes) except? NULL:
    """The address of a place in this process, where it stays until `let_go`.

    NULL if it is not mapped any more, or if ``nbytes`` from there on are not inside: a peer has only said so.
    """
    cdef entry_t *entry
    cdef Allocation allocation
    if place == NULL:
        return NULL
    entry = s.directory.entry_of(place.allocation)
    if entry == NULL:
        return NULL
    allocation = <Allocation> entry.object
    if place.owner >= <uint32_t> s.size:
        return NULL
    if place.offset > allocation.nbytes or nbytes > allocation.nbytes - place.offset:
        return NULL
    if not s.pins or s.pins[len(s.pins) - 1] is not allocation:
        s.pins.append(allocation)
    return entry.bases[place.owner] + place.offset


cdef int pin_all(Sharing s, int kind, int way, int root, size_t nbytes) except -2:
    """Look up and keep mapped all that the plan reaches; a rank whose buffers are not mapped here, -1 if all are."""
    cdef place_t *input
    cdef place_t *output
    cdef int r
    for r in range(s.size):
        input = reached_input(s, kind, way, r, root)
        output = reached_output(s, kind, way, r, root)
        s.ins[r] = pin(s, input, nbytes * parts_of_input(kind, s.size))
        s.outs[r] = pin(s, output, nbytes * parts_of_output(kind, s.size))
        if (input != NULL and s.ins[r] == NULL) or (output != NULL and s.outs[r] == NULL):
            return r
    return -1


cdef inline int let_go(Sharing s) except -1:
    s.pins.clear()
    return 0


# ---- talking about it ------------------------------------------------------------------------------------------------

cdef int exchange(Engine e, uint64_t signature, int speaker, const void *words, size_t nbytes, char *heard,
                  int64_t timeout_ns) except -1:
    """Let ``speaker``, or everybody if it is -1, say ``nbytes`` to all; heard[rank * nbytes] is what that rank said."""
    cdef eager_t t
    memset(&t, 0, sizeof(eager_t))
    t.signature = signature
    t.nbytes = t.part_nbytes = t.stride = nbytes
    t.last = e.c.group.size
    if speaker >= 0:
        t.first = speaker
        t.last = speaker + (e.c.group.rank != speaker)      # the speaker hears nobody, so it waits for nobody
    if speaker < 0 or speaker == e.c.group.rank:
        t.words = <const char *> words
    t.out = heard + t.first * nbytes
    return e.exchange_eager(&t, timeout_ns)


cdef int agree(Engine e, Sharing s, execution_t *j, int kind, int root, int64_t timeout_ns) except -1:
    """The way that all ranks take; if not STAGED, what it reaches is pinned, and all ranks are in this call."""
    cdef bint all_speak = reach_of_inputs(kind, MAPPED) == EVERYBODYS
    cdef int rank = e.c.group.rank, r
    cdef int way, lacking
    cdef char answer
    cdef word_t word
    word.input = s.directory.place_of(j.in_base, j.nbytes * parts_of_input(kind, s.size))
    word.output = s.directory.place_of(j.out_base, j.nbytes * parts_of_output(kind, s.size))
    word.is_in_place = j.in_base == j.out_base
    memset(s.table, 0, s.size * sizeof(word_t))
    if rank == root:
        s.table[rank] = word
    # Where only the root's buffers are reached it alone speaks, and waits for nobody if they are not shared.
    exchange(e, j.signature, -1 if all_speak else root, &word, sizeof(word_t), <char *> s.table, timeout_ns)
    fault_point("agree")
    way = way_for(s, kind, root)
    if way == STAGED:
        return STAGED
    lacking = pin_all(s, kind, way, root, j.nbytes)
    if everybody_names_all(s, kind, way, root):
        if lacking >= 0:      # what this rank, too, has named is mapped here: it was told of more than there is
            e.disagree(lacking, j.signature, f"rank {lacking} named a place outside of the shared array")
        return way
    answer = lacking < 0
    exchange(e, j.signature, -1, &answer, 1, s.answers, timeout_ns)
    fault_point("agreed")
    for r in range(s.size):
        if not s.answers[r]:
            return STAGED
    return way


cdef Program mapped_program(Engine e, Program staged, execution_t *j, int kind, int root, int way):
    key = (kind, j.nbytes, j.itemsize, root, way)
    found = e.programs.get(key)
    if found is None:
        plan = choose(staged.plan.kind, e.c.group.rank, e.c.group.size, j.nbytes, j.itemsize, root=max(root, 0),
                      limits=e.limits, shared_arrays=True, one_result=way == ONE_RESULT)
        found = e.remember(key, Program(entered(plan), e.limits))
    return found


cdef int execute_shared(Engine e, Program staged, execution_t *j, int64_t timeout_ns) except -1:
    """Take the execution ``j`` without staging if all buffers allow it, else by the program ``staged``."""
    cdef Sharing s = e.sharing
    cdef int kind = j.kind, root = j.root
    cdef int way
    if not is_worth_asking(s, kind, j.nbytes):
        return e.execute(staged, j, timeout_ns)
    try:
        way = agree(e, s, j, kind, root, timeout_ns)
        if way != STAGED:
            staged = mapped_program(e, staged, j, kind, root, way)
            j.ins = s.ins
            j.outs = s.outs
            s.nmapped += 1
        return e.execute(staged, j, timeout_ns)
    finally:
        let_go(s)


cdef int refuse_result(Engine e, array_t *x, array_t *out) except -1:
    """Raise if a reduction is to work in place on what is everybody's: one rank would read what another has written."""
    cdef Sharing s = e.sharing
    cdef place_t place
    if s.nresults and x.data == out.data:
        place = s.directory.place_of(x.data, x.nbytes)
        if place.allocation != NOWHERE and (<Allocation> s.directory.entry_of(place.allocation).object).is_result:
            raise ValueError("x lies in a shared result, which all ranks write: pass it as out, and another array as x")
    return 0
