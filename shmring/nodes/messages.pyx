"""Messages between the ranks of several nodes: all of them by the wire, also those between ranks of one node.

A message is an *envelope*, of a fixed maximal size: five integers, then the content if that is short. Long content
stays with its sender until a receive matches the envelope; then the wire stores it straight into the array, and the
receiver acknowledges it. Envelopes of one rank arrive in the order in which they were sent, and are matched in that
order. A message that does not fit its receive stays where it is.

As on one machine, messages progress while a thread is in a call of messages, and requests are those of
`shmring.p2p.requests`. Any number of messages can be under way; a short one is done at once while its receiver has few
envelopes to read, else when that has read some: each rank sends a *credit* for 32 envelopes (`Mailbox`).
"""

import copy
import os
import time
from contextlib import suppress

import numpy as np

cimport cython
from libc.stdint cimport int64_t, uint64_t

from shmring.arrays cimport numpy_api as cnp
from shmring.arrays.array_view cimport array_t, copy_back, source_array, target_array
from shmring.nodes.transfers cimport ACK, CREDIT, LEAVING, MESSAGE, NFIELDS, Mailbox, bytes_at, left_s
from shmring.p2p.requests cimport (ANY, OBJECT_STREAM, PROBE, RECV, SEND, Message, Messages, Request, begin_wait,
                                   can_hold, check_apart, check_tag, is_for, is_late, message_of, misfit, request_of,
                                   run_callbacks, wait_t)
from shmring.sync.backoff cimport now_ns
from shmring.sync.long_waits cimport is_note_due, notes_t, write_note
from shmring.sync.turn cimport Turn

from shmring.base.arguments import checked_rank
from shmring.errors import AbortedError, MessageError, MessageTimeoutError, PeerLostError, ShmringError
from shmring.nodes.wire import SHORT_NBYTES, Channel, WireError
from shmring.objects.codec import OUT_OF_BAND_OF_BLOCK_NBYTES, block_of, dump, load, parts_of, require_pickle

cnp.import_array()

cdef enum:
    YIELD_NS = 2_000_000                # a thread that waits lets others run so long before it sleeps between two looks
    LONGEST_NS = 1_000_000              # sleep
    PER_LOOK_NS = 20_000_000            # between two looks at the ranks of this node

cdef int64_t LINGER_NS = 5_000_000_000  # for how long a rank that leaves waits for its envelopes to be received


@cython.final
cdef class Arrived:
    """A message that no receive has matched."""
    cdef Message message
    cdef uint64_t number
    cdef object content            # None if the sender still has it


cdef class NodesMessages(Messages):
    """`shmring.p2p.point_to_point.PointToPoint` over several nodes.

    Parameters
    ----------
    group : NodesGroup
    wire : Wire
    """
    cdef object group, wire
    cdef readonly Turn turn
    cdef bint is_listening
    cdef list posted, arrived, finished
    cdef dict mailboxes, lost
    cdef set left

    def __init__(self, group, wire):
        self.group, self.wire = group, wire
        # A signal handler may send or receive, too.
        self.turn = Turn(group.name, is_reentrant=True)
        self.posted, self.arrived, self.finished = [], [], []
        self.lost, self.left = {}, set()
        self.mailboxes = {peer: Mailbox(wire, peer) for peer in range(group.size) if peer != group.rank}

    # ---- calls; timeouts: < 0: no limit ----

    cpdef isend(self, x, int dst, int tag):
        cdef array_t a
        self.check_peer(dst, False)
        check_tag(tag, False)
        keeper = source_array(x, &a, True)
        self.enter()
        try:
            return self.post_send(x, keeper, bytes_at(a.data, a.nbytes, keeper), a.dtype, dst, tag)
        finally:
            self.leave()

    cpdef irecv(self, x, int src, int tag):
        cdef array_t a
        self.check_peer(src, True)
        check_tag(tag, True)
        keeper = target_array(x, &a, True)
        return self.post(request_of(self, RECV, src, tag, &a, x, keeper))

    cpdef send(self, x, int dst, int tag, int64_t timeout_ns):
        cdef wait_t wait
        begin_wait(&wait, timeout_ns)
        cdef Request r = self.isend(x, dst, tag)
        self.await_message(r, &wait)

    cpdef recv(self, x, int src, int tag, int64_t timeout_ns):
        cdef wait_t wait
        begin_wait(&wait, timeout_ns)
        cdef Request r = self.irecv(x, src, tag)
        return self.await_message(r, &wait)

    cpdef sendrecv(self, x, int dst, int tag, out, int src, int out_tag, int64_t timeout_ns):
        cdef wait_t wait
        begin_wait(&wait, timeout_ns)
        cdef array_t a, b
        cdef Request s, r
        source_array(x, &a, True)
        target_array(out, &b, True)
        check_apart(&a, &b)
        self.check_peer(dst, False)
        check_tag(tag, False)
        r = self.irecv(out, src, out_tag)
        try:
            s = self.isend(x, dst, tag)
        except BaseException:
            self.turn.run(self.withdraw, r)
            raise
        message = self.await_message(r, &wait)
        self.await_message(s, &wait)
        return message

    cpdef probe(self, int src, int tag, int64_t timeout_ns):
        """None if no message arrived in time."""
        cdef wait_t wait
        begin_wait(&wait, timeout_ns)
        return self.await_probe(src, tag, &wait)

    cpdef send_object(self, obj, int dst, int tag, int64_t timeout_ns):
        cdef wait_t wait
        begin_wait(&wait, timeout_ns)
        require_pickle(self.group.config.allow_pickle)
        self.check_peer(dst, False)
        check_tag(tag, False)
        dumped = dump(obj, self.group.rank, out_of_band_nbytes=OUT_OF_BAND_OF_BLOCK_NBYTES)
        content = block_of(dumped)
        self.enter()
        try:
            r = self.post_send(None, content, content, OBJECT_STREAM, dst, tag)
        finally:
            self.leave()
        self.await_message(r, &wait)

    cpdef recv_object(self, int src, int tag, int64_t timeout_ns):
        cdef wait_t wait
        cdef Arrived found = None
        begin_wait(&wait, timeout_ns)
        require_pickle(self.group.config.allow_pickle)
        while found is None:        # or another thread has taken what came
            message = self.await_probe(src, tag, &wait)
            if message is None:
                raise MessageTimeoutError(f"{self.group.name}: no object arrived in time; nothing is lost")
            found = self.turn.run(self.take_object, message)
        data = np.empty(found.message.nbytes, np.uint8)
        self.receive_content(found, data)
        header, buffers = parts_of(data, found.message.source)
        return load(header, buffers, found.message.source)

    # ---- requests ----

    cdef Request post_send(self, object x, object keeper, object content, int code, int dst, int tag):
        cdef array_t a
        source_array(content, &a, False)
        cdef Request r = request_of(self, SEND, dst, tag, &a, x, keeper)
        cdef Mailbox box
        cdef Arrived arrived
        cdef bint is_short = a.nbytes <= <size_t> SHORT_NBYTES
        if dst in self.lost:
            raise copy.copy(self.lost[dst])
        self.turn.take()
        try:
            if dst == self.group.rank:
                arrived = Arrived.__new__(Arrived)
                arrived.message, arrived.content = message_of(dst, tag, a.nbytes, code), content.copy()
                self.arrived.append(arrived)
                self.finish(r, None, None)
                return r
            box = self.mailboxes[dst]
            box.nmessages += 1
            box.post(MESSAGE, box.nmessages, tag, a.nbytes, code, content if is_short else ())
            if not is_short:
                box.long_sends[box.nmessages] = r, self.wire.send(content, dst, Channel.MESSAGE, box.nmessages)
            elif box.has_room_for(box.nsent):
                self.finish(r, None, None)
            else:
                box.without_room.append((box.nsent, r))
        except WireError as error:
            raise self.group.fail(error) from error
        finally:
            self.turn.give()
        return r

    cdef Request post(self, Request r):
        """Post a receive or probe for matching, in the order of these calls."""
        self.enter()
        try:
            self.posted.append(r)
            self.progress()
            return r
        except BaseException:       # of a signal handler, too
            self.turn.run(self.withdraw, r)
            raise
        finally:
            self.leave()

    cdef int finish(self, Request r, Message message, object error) except -1:
        """In the turn or without."""
        with cython.critical_section(r):
            if r.is_over:
                return 0
            if error is None and r.kind == RECV:
                try:
                    copy_back(r.keeper)
                except Exception as raised:
                    error = raised
            r.message, r.error, r.is_over = message, error, True
            r.keeper = r.array = None
            if r.callbacks is not None:
                self.finished.append(r)
        return 0

    # ---- waiting ----

    cdef int enter(self) except -1:
        self.group.check_usable()
        if not self.is_listening:
            self.is_listening = True
            self.wire.listen(self.note_lost)
        return 0

    cdef void leave(self) noexcept:
        """Run the callbacks of requests that are over."""
        while self.finished:
            run_callbacks([self.finished.pop(0)])

    cdef bint await_all(self, list requests, wait_t *wait) except -1:
        cdef Request r
        for r in requests:
            if not self.await_request(r, wait):
                return False
        return True

    cdef bint await_request(self, Request r, wait_t *wait) except -1:
        cdef int64_t since_ns = now_ns()
        cdef notes_t notes = notes_t(0, 0)
        while True:
            self.progress()
            if r.is_over:
                return True
            if is_late(wait):
                return False
            self.pause(since_ns, &notes, "a message" if r.kind == PROBE else r)

    cdef Message await_message(self, Request r, wait_t *wait):
        """Wait for a request of this call. A receive that is late is withdrawn, and a probe, which then has None."""
        self.enter()
        try:
            came = self.await_request(r, wait)
            if not came and r.kind != SEND and not self.turn.run(self.withdraw, r):
                begin_wait(wait, -1)        # it was matched just now
                came = self.await_request(r, wait)
            if not came and r.kind != PROBE:
                if r.kind == RECV:
                    raise MessageTimeoutError(f"{self.group.name}: {r!r}: no message arrived in time")
                raise MessageTimeoutError(f"{self.group.name}: {r!r}: not received in time; it is still under way, so "
                                          "its memory must not be changed")
        except BaseException:
            self.turn.run(self.withdraw, r)
            raise
        finally:
            self.leave()
        if r.error is not None:
            raise r.error
        return r.message

    def withdraw(self, Request r not None):
        """In the turn: forget a receive or probe; False if it has been matched."""
        if r not in self.posted:
            return False
        self.posted.remove(r)
        return True

    cdef Message await_probe(self, int src, int tag, wait_t *wait):
        """The first message that matches, which stays where it is; None if none came in time."""
        self.check_peer(src, True)
        check_tag(tag, True)
        return self.await_message(self.post(request_of(self, PROBE, src, tag, NULL, None, None)), wait)

    def take_object(self, Message message not None):
        """In the turn: take an object that has arrived; None if another thread has taken it."""
        cdef Arrived arrived
        if not message.is_object:
            raise MessageError(f"the next message, {message!r}, is not an object: receive it with recv()")
        for arrived in self.arrived:
            if arrived.message is message:
                self.arrived.remove(arrived)
                return arrived
        return None

    cdef int pause(self, int64_t since_ns, notes_t *notes, object awaited) except -1:
        """Let others run, or sleep; note a long wait. Raises if the group is broken, or a rank of this node is dead."""
        cdef int64_t waited_ns = now_ns() - since_ns
        if waited_ns < YIELD_NS:
            os.sched_yield()
            return 0
        self.group.check_usable()
        if waited_ns // LONGEST_NS % (PER_LOOK_NS // LONGEST_NS) == 0:
            self.group.check_node()
        if is_note_due(notes, since_ns):
            write_note(f"rank {self.group.rank} of {self.group.name} waits for {awaited}", since_ns)
        time.sleep(min(LONGEST_NS, waited_ns >> 6) * 1e-9)
        return 0

    # ---- matching ----

    cdef int progress(self) except -1:
        """Take what has arrived, and fill the receives that it matches."""
        cdef list pairs = []
        cdef Request r
        cdef Arrived arrived
        try:
            self.wire.poll()
            self.turn.take()
            try:
                while self.wire.inbox:
                    envelope, source = self.wire.inbox.popleft()
                    self.note(envelope, source)
                self.match(pairs)
                if self.lost:
                    self.fail_lost()
            finally:
                self.turn.give()
            for r, arrived in pairs:
                self.receive_content(arrived, bytes_at(r.a.data, arrived.message.nbytes, r.keeper))
                self.finish(r, arrived.message, None)
        except WireError as error:
            raise self.group.fail(error) from error

    cdef int note(self, object envelope, int source) except -1:
        """In the turn."""
        cdef Mailbox box = self.mailboxes[source]
        cdef Arrived arrived
        kind, number, tag, nbytes, code = envelope[:8 * NFIELDS].view(np.int64).tolist()
        if source not in self.lost:
            box.note_read()
        if kind == MESSAGE:
            arrived = Arrived.__new__(Arrived)
            arrived.message, arrived.number = message_of(source, tag, nbytes, code), number
            arrived.content = envelope[8 * NFIELDS:][:nbytes] if nbytes <= SHORT_NBYTES else None
            self.arrived.append(arrived)
        elif kind == ACK:
            request, work = box.long_sends.pop(number)
            self.wire.wait(work, source)
            self.finish(request, None, None)
        elif kind == CREDIT:
            for request in box.take_credit():
                self.finish(request, None, None)
        else:
            self.left.add(source)
        return 0

    cdef int match(self, list pairs) except -1:
        """In the turn: append each receive and its message to ``pairs``; end probes."""
        cdef Request r
        cdef Arrived arrived
        for r in list(self.posted) if self.arrived else ():
            if r not in self.posted:        # withdrawn meanwhile
                continue
            arrived = self.find(r.peer, r.tag)
            if arrived is None:
                continue
            self.posted.remove(r)
            if r.kind == PROBE:
                self.finish(r, arrived.message, None)
            elif can_hold(&r.a, arrived.message.nbytes, arrived.message.code):
                self.arrived.remove(arrived)
                pairs.append((r, arrived))
            else:       # it stays where it is
                self.finish(r, None, misfit(self.group.name, &r.a, arrived.message))
        return 0

    cdef Arrived find(self, int src, int tag):
        cdef Arrived arrived
        for arrived in self.arrived:
            if is_for(src, tag, arrived.message.source, arrived.message.tag):
                return arrived
        return None

    cdef int receive_content(self, Arrived arrived, object data) except -1:
        cdef Message message = arrived.message
        cdef Mailbox box
        if arrived.content is not None:
            data[:] = arrived.content
            return 0
        try:
            work = self.wire.recv(data, message.source, Channel.MESSAGE, arrived.number)
            self.wire.wait(work, message.source, self.group.config.timeout)
        except WireError as error:
            raise self.group.fail(error) from error
        except BaseException as error:      # of a signal handler: the message is lost
            self.group.fail(AbortedError(f"{type(error).__name__} in a receive", self.group.local_rank))
            raise
        self.turn.take()
        try:
            box = self.mailboxes[message.source]
            box.post(ACK, arrived.number)
        finally:
            self.turn.give()

    cdef int check_peer(self, int peer, bint any_is_allowed) except -1:
        if not any_is_allowed or peer != ANY:
            checked_rank(peer, self.group.size, "src" if any_is_allowed else "dst")
        return 0

    # ---- leaving ----

    def note_lost(self, int peer, error):
        """Called by the wire when a connection has ended: the peer has left or died, or the group is broken."""
        if self.group.is_closed or self.group.is_inherited:
            return
        with suppress(ShmringError):
            self.progress()
        if self.group.is_broken or not (peer in self.left or self.wire.has_left(peer)):
            self.group.fail(error)
        else:
            self.lost[peer] = PeerLostError(f"{self.group.name}: rank {peer} has left the group", peer)

    cdef int fail_lost(self) except -1:
        """In the turn: end the requests from and to ranks that have left."""
        cdef Request r
        cdef Mailbox box
        for peer, error in self.lost.items():
            box = self.mailboxes[peer]
            requests = [r for r in self.posted if r.peer == peer and self.find(peer, r.tag) is None]
            requests += [r for r, _ in box.long_sends.values()] + [r for _, r in box.without_room]
            box.long_sends.clear()
            box.without_room.clear()
            for r in requests:
                if r.kind != SEND:
                    self.posted.remove(r)
                self.finish(r, None, error)

    def announce_leave(self):
        """Let the peers know that nothing more will follow, once they have received all that was sent before."""
        cdef int64_t deadline_ns = now_ns() + LINGER_NS
        cdef Mailbox box
        for box in self.mailboxes.values():
            with suppress(WireError):       # the peer is gone
                box.flush(left_s(deadline_ns, 0.0))
                if box.is_read:             # else the envelope might never be received
                    box.post(LEAVING)
                    box.flush(left_s(deadline_ns, 0.0))
