"""Plans over several nodes as programs: compiled from their steps once, executed without Python in between.

Memory is a buffer and a place in it, messages are structures with room for their work, and which message is the first
from a rank in the call is known beforehand. Reductions have the bits of one machine: its kernels, in parts.

The first message from one rank to another in each call has a *header* that describes the call, and the content behind
it if that is short. Long content travels beside the header, under a number made from the call, so that it never meets a
receive of another call: an engine may require that both sides agree on the length (gloo ends the process otherwise). So
the check that both are in the same call costs no round trip.
"""

import zlib

import numpy as np

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove

from shmring._c.layout cimport SHMRING_ORDINARY
from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.array_view cimport array_t
from shmring.base.heap cimport Heap
from shmring.collective.local cimport payload_of
from shmring.engine.call cimport Executor, call_t, check_call, elements_of_x, open_call, refuse_call, without_arrays
from shmring.engine.kinds cimport KIND, KIND_BROADCAST, KIND_SCATTER, has_root, is_receiver, is_sender
from shmring.engine.signature cimport NO_ROOT
from shmring.kernel.reduce cimport find_carrier, find_kernel, fold_t, reduce_into
from shmring.nodes.transfers cimport WIRE, Transfers, Trials
from shmring.sync.backoff cimport now_ns

from shmring.dtypes import DTYPE_CODES, DTYPES, OP_CODES, widening
from shmring.engine.kinds import COLLECTIVES
from shmring.errors import MismatchError
from shmring.nodes.plan.steps import OUT, Await, Copy, Fold, Local, Recv, Send, Settle, X
from shmring.nodes.wire import AFTER_S, Channel, WireError

cnp.import_array()

cdef enum:
    NONE, AT_X, AT_OUT, OWN
    SEND = 0, RECV, AWAIT, SETTLE, FOLD, COPY, LOCAL
    ALIGNMENT = 64          # of the buffers of a plan
    NSTREAMS = 1 << 14      # also of the numbers made of calls
    NUMBER_NBYTES = 8       # of a header: the call's number, before its description
    TEXT_NBYTES = 184
    HEADER_NBYTES = NUMBER_NBYTES + TEXT_NBYTES

cdef int64_t AFTER_NS = <int64_t> (1e9 * <double> AFTER_S)
cdef int HEADER = Channel.HEADER, CONTENT = Channel.CONTENT
cdef int UINT8 = DTYPE_CODES["uint8"], SUM = OP_CODES["sum"], AVG = OP_CODES["avg"]

_KINDS = {Send: SEND, Recv: RECV, Await: AWAIT, Settle: SETTLE, Fold: FOLD, Copy: COPY, Local: LOCAL}


cdef class Program:
    """A plan with its memory. Made by `make_program`.

    Attributes
    ----------
    what : str
        The call and its arguments, as far as all ranks must agree.
    algorithm : str
    digest : int
        Of ``what``, 32 bits.
    nbytes : int
        Bytes of the plan's own memory.
    is_retired : bool
        Whether it has none any more.
    """

    cdef int run(self, uint64_t number, call_t *c, int64_t deadline_ns) except -1:
        """Make call ``number``."""
        cdef char *buffers[4]
        cdef tuple arrays = (<object> c.held if c.held != NULL else None, <object> c.kept if c.kept != NULL else None)
        buffers[NONE] = buffers[AT_X] = buffers[AT_OUT] = NULL
        if c.kind == KIND_BROADCAST or is_sender(c.kind, self.rank, c.root):
            buffers[AT_X] = payload_of(&c.x)
        if c.kind != KIND_BROADCAST and is_receiver(c.kind, self.rank, c.root):
            buffers[AT_OUT] = payload_of(&c.out)
        buffers[OWN] = <char *> cnp.PyArray_DATA(<cnp.ndarray> self.memory)
        self.transfers.history.note(number, self.what, self.digest)
        try:
            if self.collective is None:
                self.perform(number, arrays, buffers, deadline_ns)
            else:
                self.choose(number, arrays, buffers, deadline_ns)
        except BaseException:
            self.transfers.wire.abandon((arrays, self))
            raise
        return 0

    def retire(self):
        """Give the memory up; the program cannot be executed again."""
        self.is_retired, self.memory = True, None

    cdef int choose(self, uint64_t number, tuple arrays, char **buffers, int64_t deadline_ns) except -1:
        """Make the call by the plan or by the wire, as all ranks do."""
        cdef Trials trials = self.trials
        cdef int64_t ended_ns
        if trials.begin() == WIRE:
            self.collective.run(buffers[AT_X], buffers[AT_OUT], deadline_ns)
        else:
            self.perform(number, arrays, buffers, deadline_ns)
        ended_ns, trials.ended_ns = trials.ended_ns, now_ns()
        if trials.note(trials.ended_ns - ended_ns):
            trials.conclude(self.transfers.find_most(trials.least(), deadline_ns))
        return 0

    cdef int perform(self, uint64_t number, tuple arrays, char **buffers, int64_t deadline_ns) except -1:
        cdef uint32_t tag = (self.digest + <uint32_t> number) % NSTREAMS * NSTREAMS
        cdef step_t *step
        cdef char *data
        cdef int i
        self.nsent = self.nsettled = 0
        for i in range(self.nsteps):
            step = &self.steps[i]
            data = buffers[step.out.buffer] + step.out.start
            owner = self if step.out.buffer == OWN else arrays
            if step.kind == SEND:
                self.send(&self.sends[step.index], data, step.out.nbytes, owner, number, tag)
                self.nsent += 1
            elif step.kind == RECV:
                self.recv(&self.recvs[step.index], data, step.out.nbytes, owner, tag)
            elif step.kind == AWAIT:
                self.await_received(&self.recvs[step.index], data, step.out.nbytes, number, deadline_ns)
            elif step.kind == SETTLE:
                self.settle(step.n, deadline_ns)
            elif step.kind == FOLD:
                self.add_up(step, buffers)
            elif step.kind == COPY:
                memmove(data, buffers[step.source.buffer] + step.source.start, step.out.nbytes)
            else:
                self.call_local(step, buffers, deadline_ns)
        return self.finish(deadline_ns)

    cdef int settle(self, int n, int64_t deadline_ns) except -1:
        """Wait until everything sent may be overwritten, or the next ``n`` messages."""
        cdef message_t *m
        cdef int last = min(self.nsettled + n, self.nsent) if n else self.nsent
        while self.nsettled < last:
            m = &self.sends[self.nsettled]
            self.transfers.wait(&m.content, m.peer, deadline_ns)
            self.nsettled += 1
        return 0

    cdef int finish(self, int64_t deadline_ns) except -1:
        """Wait until everything sent has left."""
        cdef message_t *m
        cdef int i
        self.settle(0, deadline_ns)
        for i in range(self.nsent):
            m = &self.sends[i]
            if m.is_first:
                self.transfers.wait(&m.header, m.peer, deadline_ns)
        return 0

    # ---- messages ----

    cdef int send(self, message_t *m, const char *data, size_t nbytes, object owner, uint64_t number,
                  uint32_t tag) except -1:
        """Begin to send; the data must not change until the content is done, the room until the header is."""
        cdef size_t beside = nbytes if nbytes <= self.transfers.short_nbytes else 0
        m.content.is_pending = False
        if m.is_first:
            memcpy(m.room, &number, NUMBER_NBYTES)
            memcpy(m.room + NUMBER_NBYTES, m.text, TEXT_NBYTES)
            memcpy(m.room + HEADER_NBYTES, data, beside)
            self.transfers.send(m.room, HEADER_NBYTES + beside, self.transfers.rooms, m.peer, HEADER, 0, &m.header)
            if beside == nbytes:
                return 0
        return self.transfers.send(data, nbytes, owner, m.peer, CONTENT, tag + m.stream, &m.content)

    cdef int recv(self, message_t *m, char *data, size_t nbytes, object owner, uint32_t tag) except -1:
        """Begin to receive exactly this."""
        cdef size_t short_nbytes = self.transfers.short_nbytes
        m.content.is_pending = False
        if m.is_first:
            self.transfers.recv(
                m.room, HEADER_NBYTES + short_nbytes, self.transfers.rooms, m.peer, HEADER, 0, &m.header)
            if nbytes <= short_nbytes:
                return 0
        return self.transfers.recv(data, nbytes, owner, m.peer, CONTENT, tag + m.stream, &m.content)

    cdef int await_received(self, message_t *m, char *data, size_t nbytes, uint64_t number,
                            int64_t deadline_ns) except -1:
        """Wait for it."""
        if m.is_first:
            self.transfers.wait(&m.header, m.peer, deadline_ns)
            if memcmp(m.room, &number, NUMBER_NBYTES) or memcmp(m.room + NUMBER_NBYTES, m.text, TEXT_NBYTES):
                raise self.mismatch(m, number)
            if nbytes <= self.transfers.short_nbytes:
                memcpy(data, m.room + HEADER_NBYTES, nbytes)
        return self.transfers.wait(&m.content, m.peer, deadline_ns)

    cdef object mismatch(self, message_t *m, uint64_t number):
        cdef uint64_t their_number
        memcpy(&their_number, m.room, NUMBER_NBYTES)
        here = _text_of(number, m.text)
        there = _text_of(their_number, m.room + NUMBER_NBYTES)
        name = self.transfers.wire.name
        text = f"{name}: the ranks disagree: rank {self.rank} is in {here}, rank {m.peer} in {there}"
        return WireError(MismatchError(text, (self.rank, m.peer)))

    # ---- other steps ----

    cdef int call_local(self, step_t *step, char **buffers, int64_t deadline_ns) except -1:
        """Make a collective of the node's ranks."""
        cdef call_t *c = &self.locals[step.index]
        cdef int rank = self.local.rank, size = self.local.size, mistake
        if step.is_after and self.is_passive:  # messages that have not left would wait for this rank, which now sleeps
            self.finish(deadline_ns)
        c.timeout_ns = -1
        if deadline_ns >= 0:
            c.timeout_ns = max(0, deadline_ns - now_ns() + (AFTER_NS if step.is_after else 0))
        set_array(&c.x, &step.source, buffers)
        set_array(&c.out, &step.out, buffers)
        if not is_sender(c.kind, rank, c.root):
            c.x = c.out
            if c.kind == KIND_SCATTER:
                c.x.count = size * c.out.count if c.counts == NULL else elements_of_x(c, c.root, size)
                c.x.nbytes = c.x.count * c.x.itemsize
        elif c.kind == KIND_BROADCAST or not is_receiver(c.kind, rank, c.root):
            c.out = c.x
        mistake = check_call(c, rank, size)
        if mistake:
            refuse_call(mistake, c, rank, size)
        return self.local.run(c)

    cdef int add_up(self, step_t *step, char **buffers) except -1:
        cdef place_t *place
        cdef const void *before = NULL
        cdef size_t itemsize = self.operation.itemsize if step.total else self.operation.wide
        cdef int i
        if step.source.buffer != NONE:
            before = buffers[step.source.buffer] + step.source.start
        for i in range(step.n):
            place = &self.sources[step.index + i]
            self.pointers[i + 1] = buffers[place.buffer] + place.start
        return fold(&self.operation, buffers[step.out.buffer] + step.out.start, step.out.nbytes // itemsize,
                    self.pointers, step.n, before, step.total)


cdef object _text_of(number, const char *text):
    """The call in a header."""
    return f"call {number}: {text[:TEXT_NBYTES].decode('ascii', 'replace').strip()}"


cdef inline void set_array(array_t *a, const place_t *place, char **buffers) noexcept nogil:
    a.data, a.nbytes, a.count = buffers[place.buffer] + place.start, place.nbytes, place.nbytes // a.itemsize


# ---- reductions ------------------------------------------------------------------------------------------------------

cdef operation_t operation_of(int op, int dtype):
    cdef operation_t o
    cdef size_t wide = widening(op, dtype)
    o.kernel, o.carrier = find_kernel(op, dtype), find_carrier(op, dtype)
    o.itemsize = DTYPES[dtype].itemsize
    o.wide = o.itemsize * wide
    return o


cdef int fold(const operation_t *o, void *out, size_t count, const void **src, int n, const void *before,
              int total) except -1:
    """Reduce ``count`` elements of ``n`` sources in their order, from ``src[1]`` on; ``src[0]`` is overwritten.

    ``before`` is the partial result of the operands before these, or NULL. ``total`` is the number of operands of all
    parts if these are the last; 0: ``out`` is a partial result. ``out`` may be ``before``, or one of the sources.
    """
    cdef fold_t f
    cdef void *opened
    if o.carrier != NULL and before == NULL and total != 0 and total != n:
        # These are partial sums: the kernel of `avg` would divide them again.
        opened = PyMem_Malloc(count * o.wide + 1)
        if opened == NULL:
            raise MemoryError
        try:
            fold(o, opened, count, src, 1, NULL, 0)
            return fold(o, out, count, src + 1, n - 1, opened, total)
        finally:
            PyMem_Free(opened)
    f.kernel, f.closes, f.total = o.kernel, NULL, total
    f.itemsize = f.first_itemsize = o.itemsize
    f.dst_itemsize = o.itemsize if total else o.wide
    if before != NULL:
        f.first_itemsize = o.wide
        src[0] = before
    if o.carrier != NULL and total == 0:
        f.kernel = o.carrier.opens if before == NULL else o.carrier.carries
    elif o.carrier != NULL and before != NULL:
        f.kernel, f.closes = NULL, o.carrier.closes
    with nogil:
        reduce_into(&f, out, NULL, src + (before == NULL), n + (before != NULL), count, SHMRING_ORDINARY,
                    SHMRING_ORDINARY)
    return 0


# ---- compilation -----------------------------------------------------------------------------------------------------

cdef Program make_program(plan, call_t *c, str what, Transfers transfers, Executor local):
    cdef Program p = Program.__new__(Program)
    cdef size_t n = len(plan.steps) + 1
    nsources = [len(step.sources) for step in plan.steps if isinstance(step, Fold)]
    p.form = form_of(c, transfers.wire.size)
    p.signature, p.in_place, p.rank = c.signature, is_in_place(c), transfers.wire.rank
    p.what, p.algorithm, p.digest = what, plan.algorithm, zlib.crc32(what.encode())
    p.transfers, p.local, p.is_passive = transfers, local, transfers.wire.is_passive
    p.texts, p.heap = [], Heap()
    p.steps = <step_t *> p.heap.allocate(n, sizeof(step_t))
    p.sends = <message_t *> p.heap.allocate(n, sizeof(message_t))
    p.recvs = <message_t *> p.heap.allocate(n, sizeof(message_t))
    p.locals = <call_t *> p.heap.allocate(n, sizeof(call_t))
    p.sources = <place_t *> p.heap.allocate(sum(nsources) + 1, sizeof(place_t))
    p.pointers = <const void **> p.heap.allocate(max(nsources, default=0) + 1, sizeof(void *))
    if nsources:
        p.operation = operation_of(c.op, c.x.dtype)
    Compiler(p, plan)
    return p


cdef class Compiler:
    """Fills a program with the steps of a plan."""
    cdef Program program
    cdef dict itemsizes, starts
    cdef set sent_to, received_from
    cdef dict awaited           # (peer, stream): the places of what has not been awaited, with the messages
    cdef int nsources, nsends, nrecvs, nlocals

    def __init__(self, Program program not None, plan):
        cdef size_t itemsize = program.form.itemsize, end = 0
        self.program = program
        self.sent_to, self.received_from, self.awaited, self.starts = set(), set(), {}, {}
        self.itemsizes = {name: program.operation.wide if name in plan.partials else itemsize
                          for name in (X, OUT, *plan.temps)}
        for name, count in plan.temps.items():
            self.starts[name] = end
            end += (<size_t> count * <size_t> self.itemsizes[name] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        program.memory, program.nbytes = np.empty(end, np.uint8), end
        for step in plan.steps:
            self.add(&program.steps[program.nsteps], step)
            program.nsteps += 1

    cdef int add(self, step_t *to, step) except -1:
        cdef Program program = self.program
        to.kind = _KINDS[type(step)]
        if to.kind == SEND:
            self.place(&to.out, step.span)
            to.index, self.nsends = self.nsends, self.nsends + 1
            self.set_message(&program.sends[to.index], step, self.sent_to, True, to.out.nbytes)
        elif to.kind == RECV:
            self.place(&to.out, step.span)
            to.index, self.nrecvs = self.nrecvs, self.nrecvs + 1
            self.set_message(&program.recvs[to.index], step, self.received_from, False, to.out.nbytes)
            self.awaited.setdefault((step.peer, step.stream), []).append((to.index, step.span))
        elif to.kind == AWAIT:
            to.index, span = (<list> self.awaited[step.peer, step.stream]).pop(0)
            self.place(&to.out, span)
        elif to.kind == SETTLE:
            to.n = step.nmessages
        elif to.kind == FOLD:
            self.place(&to.out, step.out)
            self.place(&to.source, step.before)
            to.index, to.n, to.total = self.nsources, len(step.sources), step.total
            for span in step.sources:
                self.place(&program.sources[self.nsources], span)
                self.nsources += 1
        else:
            self.place(&to.out, step.out)
            self.place(&to.source, step.source)
            if to.kind == LOCAL:
                to.index, self.nlocals = self.nlocals, self.nlocals + 1
                to.is_after = step.is_after
                self.set_local(&program.locals[to.index], step)
        return 0

    cdef int place(self, place_t *to, span) except -1:
        to.buffer = NONE
        if span is None:
            return 0
        buffer, start, stop = span
        cdef size_t itemsize = self.itemsizes[buffer]
        to.start, to.nbytes = start * itemsize, (stop - start) * itemsize
        if buffer in self.starts:
            to.buffer, to.start = OWN, to.start + <size_t> self.starts[buffer]
        else:
            to.buffer = AT_X if buffer == X else AT_OUT
        return 0

    cdef int set_message(self, message_t *m, step, set begun, bint is_sent, size_t nbytes) except -1:
        m.peer, m.stream, m.is_first = step.peer, step.stream % NSTREAMS, step.peer not in begun
        if m.is_first:
            begun.add(step.peer)
            text = f"{self.program.what}, {nbytes} bytes first".encode("ascii", "replace")
            text = text.ljust(TEXT_NBYTES)[:TEXT_NBYTES]
            self.program.texts.append(text)
            m.room, m.text = find_room(self.program.transfers, m.peer, is_sent), <const char *> text
        return 0

    cdef int set_local(self, call_t *c, step) except -1:
        """A collective of the node's ranks: of elements if it reduces, else of bytes."""
        cdef form_t *form = &self.program.form
        cdef int kind = COLLECTIVES[step.call].code
        cdef bint reduces = KIND[kind].takes_op
        cdef int64_t unit = 1 if reduces else form.itemsize
        cdef int64_t *counts
        open_call(c, kind, step.root if has_root(kind) else NO_ROOT, -1)
        without_arrays(c)
        c.x.dtype, c.x.itemsize = UINT8, 1
        if reduces:
            c.op = SUM if form.op == AVG else form.op
            c.x.dtype, c.x.itemsize = form.dtype, form.itemsize
        c.out = c.x
        if step.counts:
            counts = <int64_t *> self.program.heap.allocate(len(step.counts), sizeof(int64_t))
            for i, count in enumerate(step.counts):
                counts[i] = count * unit
            c.counts = counts
        return 0


cdef char *find_room(Transfers transfers, int peer, bint is_sent) except NULL:
    """Memory for the first message of a call to or from a rank; the next call uses it again."""
    room = transfers.rooms.get((peer, is_sent))
    if room is None:
        room = transfers.rooms[peer, is_sent] = np.empty(HEADER_NBYTES + transfers.short_nbytes, np.uint8)
    return <char *> cnp.PyArray_DATA(room)
