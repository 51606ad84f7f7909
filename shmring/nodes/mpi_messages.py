"""Messages between the ranks of several nodes: MPI's own, also within a node.

They are bytes to MPI: a message has the dtype of the array that receives it. Objects have a communicator of their own,
so they and arrays never meet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from shmring.collectives.p2p.requests import ANY_SOURCE, Messages, make_message
from shmring.core.base.future import Future
from shmring.core.base.timeouts import timeout_ns as in_ns
from shmring.core.objects.codec import OUT_OF_BAND_OF_BLOCK_NBYTES, block_of, dump, load, parts_of, require_pickle
from shmring.core.objects.open_files import STRANGERS
from shmring.core.sync.turn import Turn
from shmring.errors import BrokenError, ClosedError, MessageTimeoutError, MessageTooLongError
from shmring.nodes.executor import memory_of

ANY = ANY_SOURCE  # or tag
OPAQUE, OBJECT = -1, -2  # codes of messages


class MpiRequest(Future):
    """A request of mpi4py, whose wait ends if a rank fails or this one closes the communicator. It has no callbacks."""

    def __init__(self, messages: MpiMessages, name: str, work: MPI.Request, memory: np.ndarray) -> None:
        self._messages, self._name, self._work, self._memory = messages, name, work, memory
        self._message: Any = None  # once it is over

    def test(self) -> Any:
        """The message, once it is over; or None."""
        status = MPI.Status()
        if self._message is None and self._work.Test(status):
            self._message = make_message(status.source, status.tag, status.count, OPAQUE)
        return self._message

    def done(self) -> bool:
        """Whether it is over, with or without success."""
        try:
            self._settle(0)
        except MessageTimeoutError:
            return False
        return True

    def _settle(self, timeout: float | None) -> BaseException | None:
        try:
            if self._message is None:
                self._messages.wait(self.test, in_ns(timeout), self._name)
        except (BrokenError, ClosedError) as error:
            return error
        return None

    def _value(self) -> Any:
        return None if "send" in self._name else self._message


class MpiMessages(Messages):
    """`shmring.collectives.p2p.point_to_point.PointToPoint` of a `NodesGroup`.

    ``arrays`` and ``objects`` are communicators of mpi4py, on which nobody else sends messages.
    """

    def __init__(self, group: Any, arrays: MPI.Intracomm, objects: MPI.Intracomm) -> None:
        self.group, self.arrays, self.objects = group, arrays, objects
        self.most_tag = arrays.Get_attr(MPI.TAG_UB)
        self.turn = Turn(
            group.name, is_reentrant=True
        )  # of the thread in a call of MPI; a signal handler may call, too
        self.works: list[MpiRequest] = []  # under way: their memory is kept

    def isend(self, x, dst, tag):
        return self._begin(f"isend to rank {dst}", self.arrays.Isend, memory_of(x, False), *self._checked(dst, tag, 0))

    def irecv(self, x, src, tag):
        if src == ANY:
            # Over UCX, MPICH 5.0 never completes one whose message came before it.
            raise TypeError("over several machines irecv() needs a source: pass src, or call recv()")
        return self._begin(f"irecv from rank {src}", self.arrays.Irecv, memory_of(x, True), *self._checked(src, tag))

    def send(self, x, dst, tag, timeout_ns):
        self.wait(self.isend(x, dst, tag).test, timeout_ns, f"send to rank {dst}")

    def recv(self, x, src, tag, timeout_ns):
        return self._receive(self.arrays, src, tag, timeout_ns, memory_of(x, True))[0]

    def sendrecv(self, x, dst, tag, out, src, out_tag, timeout_ns):
        memory = memory_of(out, True)
        if np.shares_memory(memory_of(x, False), memory):
            raise ValueError("x and out overlap: the received message would overwrite the one being sent")
        self._checked(src, out_tag)
        sent = self.isend(x, dst, tag)
        message, _ = self._receive(self.arrays, src, out_tag, timeout_ns, memory)
        self.wait(sent.test, timeout_ns, f"send to rank {dst}")
        return message

    def probe(self, src, tag, timeout_ns):
        source, its_tag = self._checked(src, tag)
        status = MPI.Status()

        def look() -> Any:
            for comm, code in ((self.arrays, OPAQUE), (self.objects, OBJECT)):
                if comm.Iprobe(source, its_tag, status):
                    return make_message(status.source, status.tag, status.count, code)
            return None

        try:
            return self.wait(look, timeout_ns, "probe")
        except MessageTimeoutError:
            return None

    def send_object(self, obj, dst, tag, timeout_ns):
        require_pickle(self.group.config.allow_pickle)
        where = self._checked(dst, tag, 0)
        dumped = dump(obj, self.group.rank, refusal=STRANGERS, out_of_band_nbytes=OUT_OF_BAND_OF_BLOCK_NBYTES)
        sent = self._begin("send_object", self.objects.Isend, block_of(dumped), *where)
        self.wait(sent.test, timeout_ns, f"send_object to rank {dst}")

    def recv_object(self, src, tag, timeout_ns):
        require_pickle(self.group.config.allow_pickle)
        message, block = self._receive(self.objects, src, tag, timeout_ns)
        return load(*parts_of(block, message.source), message.source)

    def wait(self, test: Callable[[], Any], timeout_ns: int, awaited: str) -> Any:
        """What ``test()`` returns once it is true, called in the turn; `MessageTimeoutError` if that is late."""

        def look() -> Any:
            self.group.check_usable()
            return test()

        try:
            found = self.turn.run(look)
            if not found and timeout_ns:
                deadline = None if timeout_ns < 0 else time.monotonic() + 1e-9 * timeout_ns
                found = self.group.await_wire(lambda: self.turn.run(look), deadline, awaited)
        except (MPI.Exception, BrokenError) as error:
            raise self.group.fail(error, awaited) from error
        if not found:
            raise MessageTimeoutError(f"{self.group.name}: {awaited}: no message arrived in time, or none was taken")
        return found

    def _checked(self, peer: int, tag: int, least: int = ANY) -> tuple[int, int]:
        """A rank and a tag for MPI."""
        if not least <= peer < self.group.size:
            raise ValueError(f"rank {peer}: must be from 0 to {self.group.size - 1}")
        if not least <= tag <= self.most_tag:
            raise ValueError(f"tag={tag}: must be from 0 to {self.most_tag} over several machines")
        return peer if peer >= 0 else MPI.ANY_SOURCE, tag if tag >= 0 else MPI.ANY_TAG

    def _begin(self, name: str, method: Callable, memory: np.ndarray, *where: int) -> MpiRequest:
        def begin() -> MpiRequest:
            self.works = [one for one in self.works if not one.test()]
            self.works.append(MpiRequest(self, name, method([memory, MPI.BYTE], *where), memory))
            return self.works[-1]

        return self.wait(begin, 0, name)

    def _receive(self, comm: MPI.Intracomm, src: int, tag: int, timeout_ns: int, memory: Any = None) -> tuple:
        """Receive a message into this memory, or new one: the message and the memory. One that is too long stays."""
        where, status = self._checked(src, tag), MPI.Status()
        name = f"recv from {'any rank' if src == ANY else f'rank {src}'}"

        def take() -> MpiRequest | None:
            if not comm.Iprobe(*where, status):
                return None
            found = status.source, status.tag, status.count
            into = np.empty(found[2], np.uint8) if memory is None else memory
            if found[2] > into.nbytes:
                raise MessageTooLongError(f"the message from rank {found[0]} has {found[2]} bytes: too long", *found)
            return self._begin(name, comm.Irecv, into, *found[:2])

        request = self.wait(take, timeout_ns, name)
        return self.wait(request.test, timeout_ns, name), request._memory
