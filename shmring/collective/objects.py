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

from shmring.base.arguments import checked_rank
from shmring.base.timeouts import timeout_ns
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


def broadcast_object(comm: Any, obj: Any, root: int, timeout) -> Any:
    """See `Communicator.broadcast_object`."""
    _check_call(comm, timeout)
    root = checked_rank(root, comm.size, "root")
    is_root = comm.rank == root
    own, packed, cause = _pack_all(comm, ObjectCall.BROADCAST, [obj] if is_root else [], root)
    raw = own if is_root else np.empty((1, OBJECT_HEADER_NBYTES), np.uint8)

    def exchange() -> tuple[ObjectHeader, Any, Sequence]:
        comm.broadcast(raw, root=root, timeout=timeout)
        (header,) = _read(comm, raw, [root], ObjectCall.BROADCAST, root)
        if header.failed:
            return header, None, ()
        stream = packed[0].header if is_root else header.inline
        if header.nbytes.stream > INLINE_NBYTES:
            stream = np.frombuffer(stream, np.uint8) if is_root else np.empty(header.nbytes.stream, np.uint8)
            comm.broadcast(stream, root=root, timeout=timeout)
        buffers = [np.frombuffer(b, np.uint8) for b in packed[0].buffers] if is_root else empty_buffers(stream)
        for buffer in buffers:
            comm.broadcast(buffer, root=root, timeout=timeout)
        return header, stream, buffers

    header, stream, buffers = _in_turn(comm, exchange)
    raise_failed([header], [root], cause)
    return obj if is_root else load(stream, buffers, root)


def gather_object(comm: Any, obj: Any, root: int, timeout) -> list | None:
    """See `Communicator.gather_object`."""
    _check_call(comm, timeout)
    root = checked_rank(root, comm.size, "root")
    own, packed, cause = _pack_all(comm, ObjectCall.GATHER, [obj], root)
    everyone = range(comm.size)

    def move(block, _sent, counts):
        return comm.gather(block, root=root, counts=counts, timeout=timeout)

    def exchange() -> tuple[list[ObjectHeader], list]:
        headers = _read(comm, comm.all_gather(own[0], timeout=timeout), everyone, ObjectCall.GATHER, root)
        if any(header.failed for header in headers):
            return headers, []
        sizes = [header.nbytes if r != root else NOTHING for r, header in enumerate(headers)]
        wanted = headers if comm.rank == root else []
        sent = [packed[0] if comm.rank != root else None]
        return headers, carry(sent, [sizes[comm.rank]], wanted, sizes, longest_of(sizes), move)

    headers, received = _in_turn(comm, exchange)
    raise_failed(headers, everyone, cause)
    return _unpack_all(comm, received, obj) if comm.rank == root else None


def all_gather_object(comm: Any, obj: Any, timeout) -> list:
    """See `Communicator.all_gather_object`."""
    _check_call(comm, timeout)
    own, packed, cause = _pack_all(comm, ObjectCall.ALL_GATHER, [obj], -1)
    everyone = range(comm.size)

    def move(block, _sent, counts):
        return comm.all_gather(block, counts=counts, timeout=timeout)

    def exchange() -> tuple[list[ObjectHeader], list]:
        headers = _read(comm, comm.all_gather(own[0], timeout=timeout), everyone, ObjectCall.ALL_GATHER, -1)
        if any(header.failed for header in headers):
            return headers, []
        sizes = [header.nbytes for header in headers]
        longest = longest_of(sizes)
        by_broadcast = longest.buffers > PIECE_NBYTES
        if by_broadcast:
            longest = longest._replace(buffers=0)
        received = carry(packed, [sizes[comm.rank]], headers, sizes, longest, move)
        for r, (_, buffers) in enumerate(received if by_broadcast else ()):
            if r == comm.rank:
                buffers = [np.frombuffer(buffer, np.uint8) for buffer in packed[0].buffers]
            for buffer in buffers:
                comm.broadcast(buffer, root=r, timeout=timeout)
        return headers, received

    headers, received = _in_turn(comm, exchange)
    raise_failed(headers, everyone, cause)
    return _unpack_all(comm, received, obj)


def scatter_object(comm: Any, objs: Any, root: int, timeout) -> Any:
    """See `Communicator.scatter_object`."""
    _check_call(comm, timeout)
    root = checked_rank(root, comm.size, "root")
    is_root = comm.rank == root
    objs = _one_per_rank(comm, objs) if is_root else []
    own, packed, cause = _pack_all(comm, ObjectCall.SCATTER, objs, root)

    def move(block, counts, received_counts):
        out = np.empty(sum(received_counts), np.uint8)
        return comm.scatter(block if is_root else None, out, root=root, counts=counts, timeout=timeout)

    def exchange() -> tuple[ObjectHeader, list]:
        raw = np.empty((1, OBJECT_HEADER_NBYTES), np.uint8)
        comm.scatter(own if is_root else None, raw[0], root=root, timeout=timeout)
        (header,) = _read(comm, raw, [root], ObjectCall.SCATTER, root)
        if header.failed:
            return header, []
        sizes = [header.nbytes] * comm.size
        if exceeds_header(header.longest):
            table = np.array([size_of(p) for p in packed] if is_root else sizes, np.int64)
            sizes = [PackedSize(*row) for row in comm.broadcast(table, root=root, timeout=timeout).tolist()]
        return header, carry(packed, sizes, [header], [sizes[comm.rank]], header.longest, move)

    header, received = _in_turn(comm, exchange)
    raise_failed([header], [root], cause)
    if is_root:
        return objs[root]
    stream, buffers = received[0]
    return load(stream, buffers, root)


def all_to_all_object(comm: Any, objs: Any, timeout) -> list:
    """See `Communicator.all_to_all_object`."""
    _check_call(comm, timeout)
    objs = _one_per_rank(comm, objs)
    own, packed, cause = _pack_all(comm, ObjectCall.ALL_TO_ALL, objs, -1)
    everyone = range(comm.size)

    def move(block, counts, received_counts):
        return comm.all_to_all(block, counts=counts, out_counts=received_counts, timeout=timeout)

    def exchange() -> tuple[list[ObjectHeader], list]:
        headers = _read(comm, comm.all_to_all(own, timeout=timeout), everyone, ObjectCall.ALL_TO_ALL, -1)
        if any(header.failed for header in headers):
            return headers, []
        longest = longest_of([header.longest for header in headers])
        sizes = [header.nbytes for header in headers]
        return headers, carry(packed, [size_of(p) for p in packed], headers, sizes, longest, move)

    headers, received = _in_turn(comm, exchange)
    raise_failed(headers, everyone, cause)
    return _unpack_all(comm, received, objs[comm.rank])


# ---- what the calls share -------------------------------------------------------------------------------------------


def _check_call(comm: Any, timeout) -> None:
    """Refuse a bad timeout, and any call where pickle is not allowed, before anything is packed or sent."""
    if timeout is not ...:
        timeout_ns(timeout)
    require_pickle(comm.config.allow_pickle)


def _one_per_rank(comm: Any, objs) -> Sequence:
    if not isinstance(objs, Sequence) or isinstance(objs, (str, bytes)):
        raise TypeError(f"objs must be a sequence of one object per rank, not {type(objs).__name__}")
    if len(objs) != comm.size:
        raise ValueError(f"objs has {len(objs)} objects; it must have one per rank, {comm.size}")
    return objs


def _pack_all(comm: Any, call: ObjectCall, objs: Sequence, root: int) -> tuple[np.ndarray, list, BaseException | None]:
    """(headers, packed objects, None); if pickling fails: (headers that say so, nothing, the error).

    An object that this rank scatters to itself is not packed; its header is empty.
    """
    keeps_own = call in (ObjectCall.SCATTER, ObjectCall.ALL_TO_ALL)
    try:
        packed = [None if keeps_own and r == comm.rank else dump(o, comm.rank) for r, o in enumerate(objs)]
    except ObjectError as error:
        text = str(error).encode()
        header = write_header(call, root, True, PackedSize(len(text), 0), NOTHING, text)
        return np.stack([header] * len(objs)), [], error.__cause__
    sizes = [size_of(p) for p in packed]
    headers = np.empty((len(packed), OBJECT_HEADER_NBYTES), np.uint8)
    for row, p, nbytes in zip(headers, packed, sizes, strict=True):
        row[:] = write_header(call, root, False, nbytes, longest_of(sizes), p.header if p else b"")
    return headers, packed, None


def _read(comm: Any, raw: np.ndarray, ranks: Sequence[int], call: ObjectCall, root: int) -> list[ObjectHeader]:
    return read_headers(comm.rank, raw, ranks, call, root)


def _unpack_all(comm: Any, received: Sequence, own: object) -> list:
    return [own if r == comm.rank else load(stream, buffers, r) for r, (stream, buffers) in enumerate(received)]


def _in_turn(comm: Any, exchange: Callable[[], Any]) -> Any:
    """Make the collectives of one call on objects, one such call at a time; return what ``exchange`` returns.

    An exception between two of its collectives aborts the communicator: the ranks would be out of step otherwise,
    since the others wait in a collective that this rank will not call.
    """

    def exchange_or_abort() -> Any:
        try:
            return exchange()
        except BaseException as error:
            if not comm.is_closed and not comm.is_broken:
                comm.abort(f"{type(error).__name__}: {error}")
            raise

    comm.engine.check_usable()  # in a forked child another thread of the parent may have had the turn
    return comm.object_turn.run(exchange_or_abort)
