"""Python objects in collectives.

Every call begins with one small collective of headers. A header says how many bytes the packed object has and contains
the first bytes of its pickle stream, so a small object needs nothing more. The rest follows in collectives on bytes
with a count per rank: first the pickle streams, then the out-of-band buffers (large arrays). All ranks know the counts
from the headers, and no rank sends padding for another rank's longer object.

A rank that cannot pickle its object takes part all the same: its header carries the error text, and every rank raises
`ObjectError`. So the ranks stay in step and the communicator usable. Objects are unpickled after the last byte has
arrived, so a failure there concerns only the receiving rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shmring.base.timeouts import timeout_ns
from shmring.collective.mixin import CommunicatorMixin
from shmring.collective.object_transfer import (
    INLINE_NBYTES,
    NOTHING,
    OBJECT_HEADER_NBYTES,
    PIECE_NBYTES,
    ObjectCall,
    ObjectHeader,
    PackedSize,
    carry,
    exceeds_header,
    longest_of,
    raise_failed,
    read_headers,
    size_of,
    write_header,
)
from shmring.errors import ObjectError
from shmring.objects.codec import dump, empty_buffers, load, require_pickle


class ObjectCalls(CommunicatorMixin):
    """The calls on Python objects of `shmring.Communicator`."""

    def broadcast_object(self, obj=None, root=0, *, timeout=...):
        """Give every rank a copy of the root's object.

        Parameters
        ----------
        obj : object
            On the root: anything that can be pickled. Ignored on the others.
        root : int
        timeout : float, optional
            Seconds to wait for live peers in each collective that this call consists of; None: no limit. The
            communicator's timeout by default.

        Returns
        -------
        object
            ``obj`` itself on the root, a copy on the others.

        Raises
        ------
        TypeError, ValueError
            A bad argument, or the setting ``allow_pickle=False``. Nothing was sent; the communicator stays usable.
        ObjectError
            The root cannot pickle it (all ranks get this error), or this rank cannot unpickle it (only this rank does).
            The communicator stays usable and in step.
        PeerLostError, CollectiveTimeoutError, MismatchError, AbortedError
            The communicator is broken.

        Notes
        -----
        Collective. One round of eager messages for what pickles to some 200 bytes. Large arrays inside the object are
        not copied into the pickle: each moves from its own memory into new memory of the receiver by a `broadcast`, and
        is writable there if it was on the root. Do not change the object meanwhile. **Unpickling runs code that the
        sender chose.**
        """
        self._check_call(timeout)
        root = self._checked_rank(root, "root")
        is_root = self.rank == root
        own, packed, cause = self._pack_all(ObjectCall.BROADCAST, [obj] if is_root else [], root)
        raw = own if is_root else np.empty((1, OBJECT_HEADER_NBYTES), np.uint8)

        def exchange() -> tuple[ObjectHeader, Any, Sequence]:
            self.broadcast(raw, root=root, timeout=timeout)
            (header,) = self._read(raw, [root], ObjectCall.BROADCAST, root)
            if header.failed:
                return header, None, ()
            stream = packed[0].header if is_root else header.inline
            if header.nbytes.stream > INLINE_NBYTES:
                stream = np.frombuffer(stream, np.uint8) if is_root else np.empty(header.nbytes.stream, np.uint8)
                self.broadcast(stream, root=root, timeout=timeout)
            buffers = [np.frombuffer(b, np.uint8) for b in packed[0].buffers] if is_root else empty_buffers(stream)
            for buffer in buffers:
                self.broadcast(buffer, root=root, timeout=timeout)
            return header, stream, buffers

        header, stream, buffers = self._in_turn(exchange)
        raise_failed([header], [root], cause)
        return obj if is_root else load(stream, buffers, root)

    def gather_object(self, obj, root=0, *, timeout=...):
        """Collect the objects of all ranks, in rank order, on the root.

        Parameters
        ----------
        obj : object
            Anything that can be pickled.
        root : int
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list or None
            On the root one object per rank: copies, but for its own, which is ``obj`` itself. None on the others.

        Notes
        -----
        Collective; raises as `broadcast_object`. Headers go to all ranks; the rest goes to the root by `gather` with
        counts, large arrays in pieces.
        """
        self._check_call(timeout)
        root = self._checked_rank(root, "root")
        own, packed, cause = self._pack_all(ObjectCall.GATHER, [obj], root)
        everyone = range(self.size)

        def move(block, _sent, counts):
            return self.gather(block, root=root, counts=counts, timeout=timeout)

        def exchange() -> tuple[list[ObjectHeader], list]:
            headers = self._read(self.all_gather(own[0], timeout=timeout), everyone, ObjectCall.GATHER, root)
            if any(header.failed for header in headers):
                return headers, []
            sizes = [header.nbytes if r != root else NOTHING for r, header in enumerate(headers)]
            wanted = headers if self.rank == root else []
            sent = [packed[0] if self.rank != root else None]
            return headers, carry(sent, [sizes[self.rank]], wanted, sizes, longest_of(sizes), move)

        headers, received = self._in_turn(exchange)
        raise_failed(headers, everyone, cause)
        return self._unpack_all(received, obj) if self.rank == root else None

    def all_gather_object(self, obj, *, timeout=...):
        """Collect the objects of all ranks, in rank order, on every rank.

        Parameters
        ----------
        obj : object
            Anything that can be pickled.
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list
            One object per rank: copies, but for this rank's own, which is ``obj`` itself.

        Notes
        -----
        Collective; raises as `broadcast_object`. What does not fit in the headers goes by `all_gather` with counts; but
        if the large arrays of a rank have more than 256 KiB together, all large arrays go by one `broadcast` each, from
        their own memory into new memory of the receivers.
        """
        self._check_call(timeout)
        own, packed, cause = self._pack_all(ObjectCall.ALL_GATHER, [obj], -1)
        everyone = range(self.size)

        def move(block, _sent, counts):
            return self.all_gather(block, counts=counts, timeout=timeout)

        def exchange() -> tuple[list[ObjectHeader], list]:
            headers = self._read(self.all_gather(own[0], timeout=timeout), everyone, ObjectCall.ALL_GATHER, -1)
            if any(header.failed for header in headers):
                return headers, []
            sizes = [header.nbytes for header in headers]
            longest = longest_of(sizes)
            by_broadcast = longest.buffers > PIECE_NBYTES
            if by_broadcast:
                longest = longest._replace(buffers=0)
            received = carry(packed, [sizes[self.rank]], headers, sizes, longest, move)
            for r, (_, buffers) in enumerate(received if by_broadcast else ()):
                if r == self.rank:
                    buffers = [np.frombuffer(buffer, np.uint8) for buffer in packed[0].buffers]
                for buffer in buffers:
                    self.broadcast(buffer, root=r, timeout=timeout)
            return headers, received

        headers, received = self._in_turn(exchange)
        raise_failed(headers, everyone, cause)
        return self._unpack_all(received, obj)

    def scatter_object(self, objs=None, root=0, *, timeout=...):
        """Give rank i a copy of the root's ``objs[i]``.

        Parameters
        ----------
        objs : sequence of ``size`` objects
            On the root. Ignored on the others.
        root : int
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        object
            ``objs[root]`` itself on the root, a copy of ``objs[rank]`` on the others.

        Notes
        -----
        Collective; raises as `broadcast_object`. If the root cannot pickle one of the objects, all ranks get
        `ObjectError`. If an object does not fit in its header, a `broadcast` of all sizes follows, and the rest goes by
        `scatter` with counts, large arrays in pieces.
        """
        self._check_call(timeout)
        root = self._checked_rank(root, "root")
        is_root = self.rank == root
        objs = self._one_per_rank(objs) if is_root else []
        own, packed, cause = self._pack_all(ObjectCall.SCATTER, objs, root)

        def move(block, counts, received_counts):
            out = np.empty(sum(received_counts), np.uint8)
            return self.scatter(block if is_root else None, out, root=root, counts=counts, timeout=timeout)

        def exchange() -> tuple[ObjectHeader, list]:
            raw = np.empty((1, OBJECT_HEADER_NBYTES), np.uint8)
            self.scatter(own if is_root else None, raw[0], root=root, timeout=timeout)
            (header,) = self._read(raw, [root], ObjectCall.SCATTER, root)
            if header.failed:
                return header, []
            sizes = [header.nbytes] * self.size
            if exceeds_header(header.longest):
                table = np.array([size_of(p) for p in packed] if is_root else sizes, np.int64)
                sizes = [PackedSize(*row) for row in self.broadcast(table, root=root, timeout=timeout).tolist()]
            return header, carry(packed, sizes, [header], [sizes[self.rank]], header.longest, move)

        header, received = self._in_turn(exchange)
        raise_failed([header], [root], cause)
        return objs[root] if is_root else load(*received[0], root)

    def all_to_all_object(self, objs, *, timeout=...):
        """Rank i's ``objs[j]`` becomes element i of rank j's result: a transposition over ranks.

        Parameters
        ----------
        objs : sequence of ``size`` objects
        timeout : float, optional
            As in `broadcast_object`.

        Returns
        -------
        list
            One object from each rank: copies, but for ``objs[rank]``, which is this rank's own.

        Notes
        -----
        Collective; raises as `broadcast_object`. If a rank cannot pickle one of its objects, all ranks get
        `ObjectError`. What does not fit in the headers goes by `all_to_all` with counts, large arrays in pieces.
        """
        self._check_call(timeout)
        objs = self._one_per_rank(objs)
        own, packed, cause = self._pack_all(ObjectCall.ALL_TO_ALL, objs, -1)
        everyone = range(self.size)

        def move(block, counts, received_counts):
            return self.all_to_all(block, counts=counts, out_counts=received_counts, timeout=timeout)

        def exchange() -> tuple[list[ObjectHeader], list]:
            headers = self._read(self.all_to_all(own, timeout=timeout), everyone, ObjectCall.ALL_TO_ALL, -1)
            if any(header.failed for header in headers):
                return headers, []
            longest = longest_of([header.longest for header in headers])
            sizes = [header.nbytes for header in headers]
            return headers, carry(packed, [size_of(p) for p in packed], headers, sizes, longest, move)

        headers, received = self._in_turn(exchange)
        raise_failed(headers, everyone, cause)
        return self._unpack_all(received, objs[self.rank])

    # ---- what the calls share ----

    def _check_call(self, timeout) -> None:
        """Refuse a bad timeout, and any call where pickle is not allowed, before anything is packed or sent."""
        if timeout is not ...:
            timeout_ns(timeout)
        require_pickle(self.config.allow_pickle)

    def _one_per_rank(self, objs) -> Sequence:
        if not isinstance(objs, Sequence) or isinstance(objs, (str, bytes)):
            raise TypeError(f"objs must be a sequence of one object per rank, not {type(objs).__name__}")
        if len(objs) != self.size:
            raise ValueError(f"objs has {len(objs)} objects; it must have one per rank, {self.size}")
        return objs

    def _pack_all(self, call: ObjectCall, objs: Sequence, root: int) -> tuple[np.ndarray, list, Exception | None]:
        """(headers, packed objects, None); if pickling fails: (headers that say so, nothing, the error).

        An object that this rank scatters to itself is not packed; its header is empty.
        """
        keeps_own = call in (ObjectCall.SCATTER, ObjectCall.ALL_TO_ALL)
        try:
            packed = [None if keeps_own and r == self.rank else dump(o, self.rank) for r, o in enumerate(objs)]
        except ObjectError as error:
            text = str(error).encode()
            header = write_header(call, root, True, PackedSize(len(text), 0), NOTHING, text)
            return np.stack([header] * len(objs)), [], error.__cause__
        sizes = [size_of(p) for p in packed]
        headers = np.empty((len(packed), OBJECT_HEADER_NBYTES), np.uint8)
        for row, p, nbytes in zip(headers, packed, sizes, strict=True):
            row[:] = write_header(call, root, False, nbytes, longest_of(sizes), p.header if p else b"")
        return headers, packed, None

    def _read(self, raw: np.ndarray, ranks: Sequence[int], call: ObjectCall, root: int) -> list[ObjectHeader]:
        return read_headers(self.rank, raw, ranks, call, root)

    def _unpack_all(self, received: Sequence, own: object) -> list:
        return [own if r == self.rank else load(*parts, r) for r, parts in enumerate(received)]

    def _in_turn(self, exchange: Callable[[], Any]) -> Any:
        """Make the collectives of one call on objects, one such call at a time; return what ``exchange`` returns.

        An exception between two of its collectives aborts the communicator: the ranks would be out of step otherwise,
        since the others wait in a collective that this rank will not call.
        """

        def exchange_or_abort() -> Any:
            try:
                return exchange()
            except BaseException as error:
                if not self.is_closed and not self.is_broken:
                    self.abort(f"{type(error).__name__}: {error}")
                raise

        self.engine.check_usable()  # in a forked child another thread of the parent may have had the turn
        return self.object_turn.run(exchange_or_abort)
