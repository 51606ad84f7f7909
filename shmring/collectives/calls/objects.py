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
from functools import reduce
from typing import Any

import numpy as np

from shmring.collectives.calls.object_transfer import (
    INLINE_NBYTES,
    NOTHING,
    OBJECT_HEADER_NBYTES,
    PIECE_NBYTES,
    ObjectCall,
    ObjectHeader,
    PackedSize,
    Received,
    carry,
    longest_of,
    read_headers,
    size_of,
    write_header,
)
from shmring.core.base.arguments import checked_rank
from shmring.core.base.timeouts import timeout_ns
from shmring.core.objects.codec import Dumped, dump, empty_buffers, load, require_pickle
from shmring.core.objects.open_files import NOT_ONE, STRANGERS, OpenFileError
from shmring.dtypes import OP_ROWS, OPS, op_code
from shmring.errors import ObjectError

_ON_OBJECTS = {row.name: row.on_objects for row in OP_ROWS if row.on_objects}
_LOGICAL = tuple(row.on_objects for row in OP_ROWS if row.is_logical)


def broadcast_object(comm: Any, obj: Any, root: int, timeout) -> Any:
    """See `Communicator.broadcast_object`."""
    _check_call(comm, timeout)
    root = checked_rank(root, comm.size, "root")
    is_root = comm.rank == root

    def follow(packed, headers):
        stream = packed[0].header if is_root else headers[0].inline
        if headers[0].nbytes.stream > INLINE_NBYTES:
            stream = np.frombuffer(stream, np.uint8) if is_root else np.empty(headers[0].nbytes.stream, np.uint8)
            comm.broadcast(stream, root=root, timeout=timeout)
        buffers = packed[0].buffers if is_root else empty_buffers(stream, root)
        _broadcast_all(comm, buffers, root, timeout)
        return stream, buffers

    received = _transfer(comm, ObjectCall.BROADCAST, [obj] if is_root else [], root, timeout, follow)
    return obj if is_root else _load(received, root)


def gather_object(comm: Any, obj: Any, root: int, timeout) -> list | None:
    """See `Communicator.gather_object`."""
    _check_call(comm, timeout)
    root = checked_rank(root, comm.size, "root")
    is_root = comm.rank == root

    def move(block, _counts, received_counts):
        return comm.gather(block, root=root, counts=received_counts, timeout=timeout)

    def follow(packed, headers):
        sizes = [header.nbytes if r != root else NOTHING for r, header in enumerate(headers)]
        wanted = headers if is_root else []
        return carry([None] if is_root else packed, [sizes[comm.rank]], wanted, sizes, longest_of(sizes), move)

    received = _transfer(comm, ObjectCall.GATHER, [obj], root, timeout, follow)
    return _load_all(comm, received, obj) if is_root else None


def _function_of(op: Any) -> Callable[[Any, Any], Any]:
    """The operation on two objects; `ValueError` for an unknown name."""
    if callable(op) and op is not sum:
        return op
    name = "sum" if op is sum else OPS[op_code(op)]
    if name not in _ON_OBJECTS:
        raise ValueError(f"op {op!r} is not defined on objects; known: {', '.join(_ON_OBJECTS)}, or a function f(a, b)")
    return _ON_OBJECTS[name]


def _reduced(function: Callable[[Any, Any], Any], objs: list) -> Any:
    """The objects combined in rank order; a single one is what it would be among others."""
    return bool(reduce(function, objs)) if function in _LOGICAL else reduce(function, objs)


def reduce_object(comm: Any, obj: Any, op: Any, root: int, timeout) -> Any:
    """See `Communicator.reduce_object`."""
    function = _function_of(op)
    objs = gather_object(comm, obj, root, timeout)
    return None if objs is None else _reduced(function, objs)


def all_reduce_object(comm: Any, obj: Any, op: Any, timeout) -> Any:
    """See `Communicator.all_reduce_object`."""
    function = _function_of(op)
    return _reduced(function, all_gather_object(comm, obj, timeout))


def all_gather_object(comm: Any, obj: Any, timeout) -> list:
    """See `Communicator.all_gather_object`."""
    _check_call(comm, timeout)

    def move(block, _counts, received_counts):
        return comm.all_gather(block, counts=received_counts, timeout=timeout)

    def follow(packed, headers):
        sizes = [header.nbytes for header in headers]
        longest = longest_of(sizes)
        if longest.buffers <= PIECE_NBYTES:
            return carry(packed, [sizes[comm.rank]], headers, sizes, longest, move)
        received = carry(packed, [sizes[comm.rank]], headers, sizes, longest._replace(buffers=0), move)
        for r, (_, buffers) in enumerate(received):
            _broadcast_all(comm, packed[0].buffers if r == comm.rank else buffers, r, timeout)
        return received

    return _load_all(comm, _transfer(comm, ObjectCall.ALL_GATHER, [obj], -1, timeout, follow), obj)


def scatter_object(comm: Any, objs: Any, root: int, timeout) -> Any:
    """See `Communicator.scatter_object`."""
    _check_call(comm, timeout)
    root = checked_rank(root, comm.size, "root")
    is_root = comm.rank == root
    objs = _one_per_rank(comm, objs) if is_root else []

    def move(block, counts, received_counts):
        out = np.empty(sum(received_counts), np.uint8)
        return comm.scatter(block if is_root else None, out, root=root, counts=counts, timeout=timeout)

    def follow(packed, headers):
        sizes = [header.nbytes for header in headers]
        return carry(packed, sizes, [headers[comm.rank]], [sizes[comm.rank]], longest_of(sizes), move)

    received = _transfer(comm, ObjectCall.SCATTER, objs, root, timeout, follow)
    return objs[root] if is_root else _load(received[0], root)


def all_to_all_object(comm: Any, objs: Any, timeout) -> list:
    """See `Communicator.all_to_all_object`."""
    _check_call(comm, timeout)
    objs = _one_per_rank(comm, objs)

    def move(block, counts, received_counts):
        return comm.all_to_all(block, counts=counts, out_counts=received_counts, timeout=timeout)

    def follow(packed, headers):
        longest = longest_of([header.longest for header in headers])
        return carry(packed, [size_of(p) for p in packed], headers, [h.nbytes for h in headers], longest, move)

    received = _transfer(comm, ObjectCall.ALL_TO_ALL, objs, -1, timeout, follow)
    return _load_all(comm, received, objs[comm.rank])


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


def _transfer(
    comm: Any,
    call: ObjectCall,
    objs: Sequence,
    root: int,
    timeout: Any,
    follow: Callable[[list, list[ObjectHeader]], Any],
) -> Any:
    """Pack ``objs`` and exchange their headers; return what ``follow`` returns, which moves what they do not hold.

    If a rank could not pickle an object, nothing follows, and all ranks raise its `ObjectError`.
    """
    own, packed, cause = _pack_all(comm, call, objs, root)

    def exchange() -> tuple[ObjectHeader | None, Any]:
        raw = _exchange_headers(comm, call, own, root, timeout)
        senders = [root] * len(raw) if call in (ObjectCall.BROADCAST, ObjectCall.SCATTER) else range(comm.size)
        headers = read_headers(comm.rank, raw, senders, call, root)
        failed = next((header for header in headers if header.failed), None)
        return failed, None if failed else follow(packed, headers)

    failed, received = _in_turn(comm, exchange)
    if failed:
        raise ObjectError(bytes(failed.inline).decode("utf-8", "replace"), failed.sender) from cause
    return received


def _exchange_headers(comm: Any, call: ObjectCall, own: np.ndarray, root: int, timeout: Any) -> np.ndarray:
    """The headers of the objects that this rank needs, by rank; of a broadcast, the header of the one object."""
    if call in (ObjectCall.GATHER, ObjectCall.ALL_GATHER):
        return comm.all_gather(own[0], timeout=timeout)
    if call is ObjectCall.ALL_TO_ALL:
        return comm.all_to_all(own, timeout=timeout)
    count = 1 if call is ObjectCall.BROADCAST else comm.size
    return comm.broadcast(own if comm.rank == root else _empty_headers(count), root=root, timeout=timeout)


def _pack_all(
    comm: Any, call: ObjectCall, objs: Sequence, root: int
) -> tuple[np.ndarray, list[Dumped | None], BaseException | None]:
    """(headers, packed objects, None); if pickling fails: (headers that say so, nothing, the error).

    An object that this rank scatters to itself is not packed; its header is empty.
    """
    keeps_own = call in (ObjectCall.SCATTER, ObjectCall.ALL_TO_ALL)
    try:
        packed = [
            None if keeps_own and r == comm.rank else _pack(comm, obj, _receiver(call, root, r))
            for r, obj in enumerate(objs)
        ]
    except ObjectError as error:
        text = str(error).encode()
        header = write_header(call, root, True, PackedSize(len(text), 0), NOTHING, text)
        return np.stack([header] * len(objs)), [], error.__cause__
    sizes = [size_of(p) for p in packed]
    headers = _empty_headers(len(packed))
    for row, p, nbytes in zip(headers, packed, sizes, strict=True):
        row[:] = write_header(call, root, False, nbytes, longest_of(sizes), p.header if p else b"")
    return headers, packed, None


def _receiver(call: ObjectCall, root: int, number: int) -> int:
    """The rank that gets the object of this number, or -1 for all."""
    if call in (ObjectCall.BROADCAST, ObjectCall.ALL_GATHER):
        return -1
    return root if call is ObjectCall.GATHER else number


def _pack(comm: Any, obj: Any, receiver: int) -> Dumped | None:
    """An object for this rank, -1 for all; None: it has open files and stays here, as that of a gather's root."""
    if receiver < 0 and comm.size == 2:
        receiver = 1 - comm.rank
    refusal = NOT_ONE if receiver in (-1, comm.rank) else None if comm._engine.family[receiver] else STRANGERS
    try:
        return dump(obj, comm.rank, refusal=refusal)
    except ObjectError as error:
        if receiver != comm.rank or not isinstance(error.__cause__, OpenFileError):
            raise
        return None


def _empty_headers(count: int) -> np.ndarray:
    return np.empty((count, OBJECT_HEADER_NBYTES), np.uint8)


def _broadcast_all(comm: Any, buffers: Sequence, root: int, timeout) -> None:
    """Each from its own memory into the new memory of the receivers."""
    for buffer in buffers:
        comm.broadcast(np.frombuffer(buffer, np.uint8), root=root, timeout=timeout)


def _load(received: Received, sender: int) -> Any:
    stream, buffers = received
    return load(stream, buffers, sender)


def _load_all(comm: Any, received: Sequence[Received], own: object) -> list:
    return [own if r == comm.rank else _load(parts, r) for r, parts in enumerate(received)]


def _in_turn(comm: Any, exchange: Callable[[], Any]) -> Any:
    """Make the collectives of one call on objects, one such call at a time; return what ``exchange`` returns.

    An exception between two of its collectives aborts the communicator: the ranks would be out of step otherwise,
    since the others wait in a collective that this rank will not call.
    """

    def exchange_or_abort() -> Any:
        try:
            return exchange()
        except BaseException as error:
            if not comm.closed and not comm.is_broken:
                comm.abort(f"{type(error).__name__}: {error}")
            raise

    comm._engine.check_usable()  # in a forked child another thread of the parent may have had the turn
    return comm._object_turn.run(exchange_or_abort)
