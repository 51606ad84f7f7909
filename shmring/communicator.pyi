import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from typing_extensions import Self, Unpack

from shmring.collectives.calls.async_work import Work
from shmring.collectives.calls.plan import Plan
from shmring.collectives.calls.tracing import Timeline
from shmring.collectives.engine.engine import Engine
from shmring.collectives.p2p.requests import Message, Request
from shmring.collectives.shared.share import Shared
from shmring.config import Config
from shmring.core.sync.turn import Turn
from shmring.typing import Array, Counts, Number, Op, OpName, Settings, Shape, Timeout

_A = TypeVar("_A", bound=Array)
_N = TypeVar("_N", bound=np.ndarray[Any, Any])
_S = TypeVar("_S", bound=np.generic)
_T = TypeVar("_T")
_Operand: TypeAlias = Array | Number
_Sync: TypeAlias = Literal[False]
_Async: TypeAlias = Literal[True]

class Communicator:
    # All are read-only.
    _engine: Engine
    _object_turn: Turn
    rank: int
    size: int
    name: str
    config: Config
    @property
    def nodes(self) -> list[list[int]] | None: ...
    closed: bool
    is_broken: bool
    parent_ranks: tuple[int, ...] | None
    def __init__(self, engine: Engine, parent_ranks: tuple[int, ...] | None = None) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def abort(self, reason: object = "") -> None: ...
    def close(self) -> None: ...

    # With async_op the calls return a shmring.Work of what they return without.
    @overload
    def all_reduce(
        self, x: Number, out: None = None, op: Op = "sum", *, timeout: Timeout = ..., async_op: _Sync = False
    ) -> NDArray[Any]: ...
    @overload
    def all_reduce(
        self, x: _A, out: None = None, op: Op = "sum", *, timeout: Timeout = ..., async_op: _Sync = False
    ) -> _A: ...
    @overload
    def all_reduce(
        self, x: _Operand, out: _A, op: Op = "sum", *, timeout: Timeout = ..., async_op: _Sync = False
    ) -> _A: ...
    @overload
    def all_reduce(
        self, x: Number, out: None = None, op: Op = "sum", *, timeout: Timeout = ..., async_op: _Async
    ) -> Work[NDArray[Any]]: ...
    @overload
    def all_reduce(
        self, x: _A, out: None = None, op: Op = "sum", *, timeout: Timeout = ..., async_op: _Async
    ) -> Work[_A]: ...
    @overload
    def all_reduce(
        self, x: _Operand, out: _A, op: Op = "sum", *, timeout: Timeout = ..., async_op: _Async
    ) -> Work[_A]: ...
    @overload
    def all_reduce(
        self, x: _Operand, out: Array | None = None, op: Op = "sum", *, timeout: Timeout = ..., async_op: bool
    ) -> Any: ...

    scan = all_reduce
    exscan = all_reduce

    @overload
    def reduce(
        self,
        x: Number,
        out: None = None,
        op: Op = "sum",
        root: int = 0,
        *,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> NDArray[Any] | None: ...
    @overload
    def reduce(
        self, x: _A, out: None = None, op: Op = "sum", root: int = 0, *, timeout: Timeout = ..., async_op: _Sync = False
    ) -> _A | None: ...
    @overload
    def reduce(
        self, x: _Operand, out: _A, op: Op = "sum", root: int = 0, *, timeout: Timeout = ..., async_op: _Sync = False
    ) -> _A | None: ...
    @overload
    def reduce(
        self, x: Number, out: None = None, op: Op = "sum", root: int = 0, *, timeout: Timeout = ..., async_op: _Async
    ) -> Work[NDArray[Any] | None]: ...
    @overload
    def reduce(
        self, x: _A, out: None = None, op: Op = "sum", root: int = 0, *, timeout: Timeout = ..., async_op: _Async
    ) -> Work[_A | None]: ...
    @overload
    def reduce(
        self, x: _Operand, out: _A, op: Op = "sum", root: int = 0, *, timeout: Timeout = ..., async_op: _Async
    ) -> Work[_A | None]: ...
    @overload
    def reduce(
        self,
        x: _Operand,
        out: Array | None = None,
        op: Op = "sum",
        root: int = 0,
        *,
        timeout: Timeout = ...,
        async_op: bool,
    ) -> Any: ...
    @overload
    def reduce_scatter(
        self,
        x: NDArray[_S],
        out: None = None,
        op: Op = "sum",
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> NDArray[_S]: ...
    @overload
    def reduce_scatter(
        self,
        x: Array,
        out: _A,
        op: Op = "sum",
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> _A: ...
    @overload
    def reduce_scatter(
        self,
        x: NDArray[_S],
        out: None = None,
        op: Op = "sum",
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Async,
    ) -> Work[NDArray[_S]]: ...
    @overload
    def reduce_scatter(
        self, x: Array, out: _A, op: Op = "sum", *, counts: Counts = None, timeout: Timeout = ..., async_op: _Async
    ) -> Work[_A]: ...
    @overload
    def reduce_scatter(
        self,
        x: Array,
        out: Array | None = None,
        op: Op = "sum",
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    @overload
    def all_gather(
        self,
        x: NDArray[_S],
        out: None = None,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> NDArray[_S]: ...
    @overload
    def all_gather(
        self, x: Array, out: _A, *, counts: Counts = None, timeout: Timeout = ..., async_op: _Sync = False
    ) -> _A: ...
    @overload
    def all_gather(
        self, x: NDArray[_S], out: None = None, *, counts: Counts = None, timeout: Timeout = ..., async_op: _Async
    ) -> Work[NDArray[_S]]: ...
    @overload
    def all_gather(
        self, x: Array, out: _A, *, counts: Counts = None, timeout: Timeout = ..., async_op: _Async
    ) -> Work[_A]: ...
    @overload
    def all_gather(
        self,
        x: Array,
        out: Array | None = None,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    @overload
    def gather(
        self,
        x: NDArray[_S],
        out: None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> NDArray[_S] | None: ...
    @overload
    def gather(
        self,
        x: Array,
        out: _A,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> _A | None: ...
    @overload
    def gather(
        self,
        x: NDArray[_S],
        out: None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Async,
    ) -> Work[NDArray[_S] | None]: ...
    @overload
    def gather(
        self, x: Array, out: _A, root: int = 0, *, counts: Counts = None, timeout: Timeout = ..., async_op: _Async
    ) -> Work[_A | None]: ...
    @overload
    def gather(
        self,
        x: Array,
        out: Array | None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    @overload
    def scatter(
        self,
        x: NDArray[_S],
        out: None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> NDArray[_S]: ...
    @overload
    def scatter(
        self,
        x: Array | None,
        out: _A,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> _A: ...
    @overload
    def scatter(
        self,
        x: NDArray[_S],
        out: None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Async,
    ) -> Work[NDArray[_S]]: ...
    @overload
    def scatter(
        self,
        x: Array | None,
        out: _A,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Async,
    ) -> Work[_A]: ...
    @overload
    def scatter(
        self,
        x: Array | None,
        out: Array | None = None,
        root: int = 0,
        *,
        counts: Counts = None,
        timeout: Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    @overload
    def all_to_all(
        self,
        x: NDArray[_S],
        out: None = None,
        *,
        counts: Counts = None,
        out_counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> NDArray[_S]: ...
    @overload
    def all_to_all(
        self,
        x: Array,
        out: _A,
        *,
        counts: Counts = None,
        out_counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Sync = False,
    ) -> _A: ...
    @overload
    def all_to_all(
        self,
        x: NDArray[_S],
        out: None = None,
        *,
        counts: Counts = None,
        out_counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Async,
    ) -> Work[NDArray[_S]]: ...
    @overload
    def all_to_all(
        self,
        x: Array,
        out: _A,
        *,
        counts: Counts = None,
        out_counts: Counts = None,
        timeout: Timeout = ...,
        async_op: _Async,
    ) -> Work[_A]: ...
    @overload
    def all_to_all(
        self,
        x: Array,
        out: Array | None = None,
        *,
        counts: Counts = None,
        out_counts: Counts = None,
        timeout: Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    @overload
    def broadcast(self, x: _A, root: int = 0, *, timeout: Timeout = ..., async_op: _Sync = False) -> _A: ...
    @overload
    def broadcast(self, x: _A, root: int = 0, *, timeout: Timeout = ..., async_op: _Async) -> Work[_A]: ...
    @overload
    def broadcast(self, x: Array, root: int = 0, *, timeout: Timeout = ..., async_op: bool) -> Any: ...
    @overload
    def barrier(self, *, timeout: Timeout = ..., async_op: _Sync = False) -> None: ...
    @overload
    def barrier(self, *, timeout: Timeout = ..., async_op: _Async) -> Work[None]: ...
    @overload
    def barrier(self, *, timeout: Timeout = ..., async_op: bool) -> Work[None] | None: ...
    @overload
    def all_reduce_many(
        self, arrays: Sequence[_A], op: Op = "sum", *, timeout: Timeout = ..., async_op: _Sync = False
    ) -> list[_A]: ...
    @overload
    def all_reduce_many(
        self, arrays: Sequence[_A], op: Op = "sum", *, timeout: Timeout = ..., async_op: _Async
    ) -> Work[list[_A]]: ...
    @overload
    def all_reduce_many(
        self, arrays: Sequence[Array], op: Op = "sum", *, timeout: Timeout = ..., async_op: bool
    ) -> Any: ...
    @overload
    def plan(
        self,
        collective: Literal["all_reduce", "scan", "exscan"],
        x: _A,
        out: None = None,
        op: Op = "sum",
        *,
        timeout: Timeout = ...,
    ) -> Plan[_A]: ...
    @overload
    def plan(
        self,
        collective: Literal["all_reduce", "scan", "exscan"],
        x: _Operand,
        out: _A,
        op: Op = "sum",
        *,
        timeout: Timeout = ...,
    ) -> Plan[_A]: ...
    @overload
    def plan(
        self,
        collective: Literal["reduce"],
        x: _A,
        out: None = None,
        op: Op = "sum",
        root: int = 0,
        *,
        timeout: Timeout = ...,
    ) -> Plan[_A | None]: ...
    @overload
    def plan(
        self,
        collective: Literal["reduce"],
        x: _Operand,
        out: _A,
        op: Op = "sum",
        root: int = 0,
        *,
        timeout: Timeout = ...,
    ) -> Plan[_A | None]: ...
    @overload
    def plan(self, collective: Literal["broadcast"], x: _A, root: int = 0, *, timeout: Timeout = ...) -> Plan[_A]: ...
    @overload
    def plan(self, collective: Literal["barrier"], *, timeout: Timeout = ...) -> Plan[None]: ...
    @overload
    def plan(
        self, collective: Literal["all_reduce_many"], arrays: Sequence[_A], op: Op = "sum", *, timeout: Timeout = ...
    ) -> Plan[list[_A]]: ...
    # The others, with the arguments of the method.
    @overload
    def plan(
        self,
        collective: Literal["reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"],
        *args: Any,
        **kwargs: Any,
    ) -> Plan[Any]: ...
    def send(self, x: Array, dst: int | None, tag: int = 0, *, timeout: Timeout = ...) -> None: ...
    def recv(
        self, x: Array | None = None, src: int | None = -1, tag: int = -1, *, timeout: Timeout = ...
    ) -> Message | None: ...
    def sendrecv(
        self,
        x: Array,
        dst: int | None,
        out: Array,
        src: int | None = -1,
        *,
        tag: int = 0,
        out_tag: int = -1,
        timeout: Timeout = ...,
    ) -> Message | None: ...
    def isend(self, x: Array, dst: int | None, tag: int = 0) -> Request: ...
    def irecv(self, x: Array, src: int | None = -1, tag: int = -1) -> Request: ...
    def probe(self, src: int = -1, tag: int = -1, *, timeout: Timeout = ...) -> Message | None: ...
    def iprobe(self, src: int = -1, tag: int = -1) -> Message | None: ...
    def send_object(self, obj: Any, dst: int | None, tag: int = 0, *, timeout: Timeout = ...) -> None: ...
    def recv_object(self, src: int | None = -1, tag: int = -1, *, timeout: Timeout = ...) -> Any: ...
    # The objects of other ranks are of the type of this one's; where a rank passes None, the caller knows it.
    @overload
    def broadcast_object(self, obj: None = None, root: int = 0, *, timeout: Timeout = ...) -> Any: ...
    @overload
    def broadcast_object(self, obj: _T | None, root: int = 0, *, timeout: Timeout = ...) -> _T: ...
    def gather_object(self, obj: _T, root: int = 0, *, timeout: Timeout = ...) -> list[_T] | None: ...
    def all_gather_object(self, obj: _T, *, timeout: Timeout = ...) -> list[_T]: ...
    def reduce_object(self, obj: _T, op: Op = "sum", root: int = 0, *, timeout: Timeout = ...) -> _T | None: ...
    def all_reduce_object(self, obj: _T, op: Op = "sum", *, timeout: Timeout = ...) -> _T: ...
    @overload
    def scatter_object(self, objs: None = None, root: int = 0, *, timeout: Timeout = ...) -> Any: ...
    @overload
    def scatter_object(self, objs: Sequence[_T] | None, root: int = 0, *, timeout: Timeout = ...) -> _T: ...
    def all_to_all_object(self, objs: Sequence[_T], *, timeout: Timeout = ...) -> list[_T]: ...
    @overload
    def empty(self, shape: Shape, dtype: type[_S] | np.dtype[_S]) -> NDArray[_S]: ...
    @overload
    def empty(self, shape: Shape, dtype: DTypeLike = float) -> NDArray[Any]: ...
    @overload
    def array(self, x: NDArray[_S]) -> NDArray[_S]: ...
    @overload
    def array(self, x: ArrayLike) -> NDArray[Any]: ...
    def share(self, *arrays: Array) -> Shared: ...
    @overload
    def shared_result(self, shape: Shape, dtype: type[_S] | np.dtype[_S], root: int = 0) -> NDArray[_S]: ...
    @overload
    def shared_result(self, shape: Shape, dtype: DTypeLike = float, root: int = 0) -> NDArray[Any]: ...
    def shared_view(self, array: _N, rank: int) -> _N: ...
    def split(
        self,
        color: int | None,
        key: int | None = None,
        *,
        rendezvous_timeout: float | None = 300.0,
        **settings: Unpack[Settings],
    ) -> Communicator | None: ...
    def subgroup(
        self, ranks: Iterable[int], *, rendezvous_timeout: float | None = 300.0, **settings: Unpack[Settings]
    ) -> Communicator: ...
    def dup(self, *, rendezvous_timeout: float | None = 300.0, **settings: Unpack[Settings]) -> Communicator: ...
    def shrink(self, *, rendezvous_timeout: float | None = 300.0, **settings: Unpack[Settings]) -> Communicator: ...
    def stats(self) -> dict[str, Any]: ...
    def explain(
        self, collective: str, nbytes: int, op: OpName = "sum", root: int = 0, dtype: str = "float32"
    ) -> str: ...
    def trace(self, directory: str | os.PathLike[str], *, calls: int = ...) -> Timeline: ...
