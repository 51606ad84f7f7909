"""Plans over several nodes as programs: compiled from their steps once, executed without Python in between.

Memory is a buffer and a place in it, messages are structures with room for their work, and which message is the first
from a rank in the call is known beforehand.
"""

import zlib

import numpy as np

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t
from libc.string cimport memmove

from shmring.arrays cimport numpy_api as cnp
from shmring.nodes.flat cimport fold, set_operation
from shmring.nodes.transfers cimport bytes_at
from shmring.nodes.trials cimport WIRE, Trials
from shmring.sync.backoff cimport now_ns

from shmring.nodes.exchange import header_text
from shmring.nodes.local_call import LocalCall
from shmring.nodes.plan.steps import OUT, Await, Copy, Fold, Recv, Send, Settle, X

cnp.import_array()

cdef enum:
    NONE, AT_X, AT_OUT, OWN
    SEND = 0, RECV, AWAIT, SETTLE, FOLD, COPY, LOCAL
    ALIGNMENT = 64          # of the buffers of a plan
    NSTREAMS = 1 << 14      # also of the numbers made of calls

_KINDS = {Send: SEND, Recv: RECV, Await: AWAIT, Settle: SETTLE, Fold: FOLD, Copy: COPY}


cdef class Program:
    """A plan with its memory.

    Parameters
    ----------
    plan : Plan
    operand : Operand
    what : str
        The call and its arguments, as far as all ranks must agree. At most 140 ASCII characters.
    exchange : Exchange
    local : Communicator
        The ranks of the node.
    form : Form or None
        For the wire's own collective; None if that will not do.
    trials : Trials or None
        Of that collective beside the plan.

    Attributes
    ----------
    what : str
    digest : int
        Of it, 32 bits.
    nbytes : int
        Of the plan's own memory.
    is_retired : bool
        Whether it has none any more.
    """

    def __cinit__(self, plan, operand, str what not None, Exchange exchange not None, local, form, Trials trials):
        if form is not None:
            self.collective = exchange.transfers.collective(form)
        self.trials = trials
        self.what, self.exchange, self.is_passive = what, exchange, exchange.transfers.wire.is_passive
        self.digest = zlib.crc32(what.encode())
        self.texts, self.locals = [], []
        nfolded = [len(step.sources) for step in plan.steps if isinstance(step, Fold)]
        nmessages = len(plan.steps) + 1
        self.steps = <step_t *> PyMem_Calloc(nmessages, sizeof(step_t))
        self.sends = <message_t *> PyMem_Calloc(nmessages, sizeof(message_t))
        self.recvs = <message_t *> PyMem_Calloc(nmessages, sizeof(message_t))
        self.sources = <place_t *> PyMem_Calloc(sum(nfolded) + 1, sizeof(place_t))
        self.pointers = <const void **> PyMem_Calloc(max(nfolded, default=0) + 1, sizeof(void *))
        if (self.steps == NULL or self.sends == NULL or self.recvs == NULL or self.sources == NULL
                or self.pointers == NULL):
            raise MemoryError
        if nfolded:
            set_operation(&self.operation, operand.op, operand.code)
        Compiler(self, plan, operand, local)

    def __dealloc__(self):
        PyMem_Free(self.steps)
        PyMem_Free(self.sends)
        PyMem_Free(self.recvs)
        PyMem_Free(self.sources)
        PyMem_Free(self.pointers)

    def run(self, uint64_t number, cnp.ndarray x, cnp.ndarray out, deadline):
        """Execute the steps in call ``number``, with these arrays as X and OUT; None where the rank has none."""
        cdef char *buffers[4]
        buffers[NONE] = buffers[AT_X] = buffers[AT_OUT] = NULL
        if x is not None:
            buffers[AT_X] = <char *> cnp.PyArray_DATA(x)
        if out is not None:
            buffers[AT_OUT] = <char *> cnp.PyArray_DATA(out)
        buffers[OWN] = <char *> cnp.PyArray_DATA(<cnp.ndarray> self.memory)
        owners = [None, x, out, self]
        self.exchange.transfers.history.note(number, self.what, self.digest)
        try:
            if self.collective is None:
                self.perform(number, owners, buffers, deadline)
            else:
                self.choose(number, owners, buffers, deadline)
        except BaseException:
            self.exchange.transfers.wire.abandon(owners)
            raise

    def retire(self):
        """Give the memory up; the program cannot be executed again."""
        self.is_retired, self.memory = True, None

    cdef int choose(self, uint64_t number, list owners, char **buffers, object deadline) except -1:
        """Make the call by the plan or by the wire, as all ranks do."""
        cdef Trials trials = self.trials
        cdef int64_t ended_ns
        if trials.begin() == WIRE:
            self.collective.run(buffers[AT_X], buffers[AT_OUT], deadline)
        else:
            self.perform(number, owners, buffers, deadline)
        ended_ns, trials.ended_ns = trials.ended_ns, now_ns()
        if trials.note(trials.ended_ns - ended_ns):
            trials.conclude(self.exchange.transfers.find_most(trials.least(), deadline))
        return 0

    cdef int perform(self, uint64_t number, list owners, char **buffers, object deadline) except -1:
        cdef uint32_t tag = (self.digest + <uint32_t> number) % NSTREAMS * NSTREAMS
        cdef step_t *step
        cdef char *data
        cdef int i
        self.nsent = self.nsettled = 0
        for i in range(self.nsteps):
            step = &self.steps[i]
            data = buffers[step.out.buffer] + step.out.start
            owner = owners[step.out.buffer]
            if step.kind == SEND:
                self.exchange.send(&self.sends[step.index], data, step.out.nbytes, owner, number, tag)
                self.nsent += 1
            elif step.kind == RECV:
                self.exchange.recv(&self.recvs[step.index], data, step.out.nbytes, owner, tag)
            elif step.kind == AWAIT:
                self.exchange.await_received(&self.recvs[step.index], data, step.out.nbytes, number, deadline)
            elif step.kind == SETTLE:
                self.settle(step.n, deadline)
            elif step.kind == FOLD:
                self.add_up(step, buffers)
            elif step.kind == COPY:
                memmove(data, buffers[step.source.buffer] + step.source.start, step.out.nbytes)
            else:
                self.call_local(step, owners, buffers, deadline)
        return self.finish(deadline)

    cdef int settle(self, int n, object deadline) except -1:
        """Wait until everything sent may be overwritten, or the next ``n`` messages."""
        cdef message_t *m
        cdef int last = min(self.nsettled + n, self.nsent) if n else self.nsent
        while self.nsettled < last:
            m = &self.sends[self.nsettled]
            self.exchange.transfers.wait(&m.content, m.peer, deadline)
            self.nsettled += 1
        return 0

    cdef int finish(self, object deadline) except -1:
        """Wait until everything sent has left."""
        cdef message_t *m
        cdef int i
        self.settle(0, deadline)
        for i in range(self.nsent):
            m = &self.sends[i]
            if m.is_first:
                self.exchange.transfers.wait(&m.header, m.peer, deadline)
        return 0

    cdef int call_local(self, step_t *step, list owners, char **buffers, object deadline) except -1:
        call = self.locals[step.index]
        if call.is_after and self.is_passive:  # what has not left would wait for this rank, which is to sleep
            self.finish(deadline)
        call(_array(&step.source, owners, buffers), _array(&step.out, owners, buffers), deadline)
        return 0

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


cdef object _array(const place_t *place, list owners, char **buffers):
    if place.buffer == NONE:
        return None
    return bytes_at(buffers[place.buffer] + place.start, place.nbytes, owners[place.buffer])


cdef class Compiler:
    """Fills a program with the steps of a plan."""
    cdef Program program
    cdef dict itemsizes, starts
    cdef object operand, local
    cdef set sent_to, received_from
    cdef dict awaited           # (peer, stream): the places of what has not been awaited, with the messages
    cdef int nsources

    def __init__(self, Program program not None, plan, operand, local):
        self.program, self.operand, self.local = program, operand, local
        self.sent_to, self.received_from, self.awaited, self.starts = set(), set(), {}, {}
        self.itemsizes = {name: operand.partial_itemsize if name in plan.partials else operand.itemsize
                          for name in (X, OUT, *plan.temps)}
        cdef size_t end = 0
        for name, count in plan.temps.items():
            self.starts[name] = end
            end += (<size_t> count * <size_t> self.itemsizes[name] + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        program.memory, program.nbytes = np.empty(end, np.uint8), end
        for step in plan.steps:
            self.add(&program.steps[program.nsteps], step)
            program.nsteps += 1

    cdef int add(self, step_t *to, step) except -1:
        cdef Program program = self.program
        to.kind = _KINDS.get(type(step), LOCAL)
        if to.kind == SEND:
            self.place(&to.out, step.span)
            to.index, program.nsends = program.nsends, program.nsends + 1
            self.set_message(&program.sends[to.index], step, self.sent_to, True, to.out.nbytes)
        elif to.kind == RECV:
            self.place(&to.out, step.span)
            to.index, program.nrecvs = program.nrecvs, program.nrecvs + 1
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
                to.index = len(program.locals)
                program.locals.append(LocalCall(self.local, step, self.operand))
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
            text = header_text(self.program.what, nbytes)
            self.program.texts.append(text)
            m.room, m.text = self.program.exchange.find_room(m.peer, is_sent), <const char *> text
        return 0
