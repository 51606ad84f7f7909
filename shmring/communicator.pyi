import os
from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType, TracebackType
from typing import Any, TypeVar

import numpy as np

from shmring.collective.call import Call
from shmring.collective.placement_report import SegmentPlacement
from shmring.collective.tracing import Timeline
from shmring.config import Config
from shmring.engine.engine import Engine
from shmring.p2p.requests import Message, Request
from shmring.shared.share import Shared
from shmring.sync.turn import Turn

# An array is any object on the CPU with the buffer protocol or DLPack; typing has no name for that.
_Array = Any
_Op = str | Callable[[Any, Any], Any]
_Counts = Sequence[int] | None
_Timeout = float | EllipsisType | None
_Self = TypeVar("_Self", bound="Communicator")

class Communicator:
    # All are read-only.
    engine: Engine
    executor: Any
    messages: Any
    object_turn: Turn
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
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def abort(self, reason: object = "") -> None: ...
    def close(self) -> None: ...

    # With async_op the calls return a shmring.Work, else what their docstrings say.
    def all_reduce(
        self, x: _Array, out: _Array = None, op: _Op = "sum", *, timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def reduce(
        self,
        x: _Array,
        out: _Array = None,
        op: _Op = "sum",
        root: int = 0,
        *,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def reduce_scatter(
        self,
        x: _Array,
        out: _Array = None,
        op: _Op = "sum",
        *,
        counts: _Counts = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def scan(
        self, x: _Array, out: _Array = None, op: _Op = "sum", *, timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def exscan(
        self, x: _Array, out: _Array = None, op: _Op = "sum", *, timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def broadcast(self, x: _Array, root: int = 0, *, timeout: _Timeout = ..., async_op: bool = False) -> Any: ...
    def all_gather(
        self, x: _Array, out: _Array = None, *, counts: _Counts = None, timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def gather(
        self,
        x: _Array,
        out: _Array = None,
        root: int = 0,
        *,
        counts: _Counts = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def scatter(
        self,
        x: _Array,
        out: _Array = None,
        root: int = 0,
        *,
        counts: _Counts = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def all_to_all(
        self,
        x: _Array,
        out: _Array = None,
        *,
        counts: _Counts = None,
        out_counts: _Counts = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def barrier(self, *, timeout: _Timeout = ..., async_op: bool = False) -> Any: ...
    def all_reduce_many(
        self, arrays: Sequence[_Array], op: _Op = "sum", *, timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def broadcast_many(
        self, arrays: Sequence[_Array], root: int = 0, *, timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def plan(self, collective: str, *args: Any, **kwargs: Any) -> Call: ...
    def send(self, x: _Array, dst: int | None, tag: int = 0, *, timeout: _Timeout = ...) -> None: ...
    def recv(
        self, x: _Array = None, src: int | None = -1, tag: int = -1, *, timeout: _Timeout = ...
    ) -> Message | None: ...
    def sendrecv(
        self,
        x: _Array,
        dst: int | None,
        out: _Array,
        src: int | None = -1,
        *,
        tag: int = 0,
        out_tag: int = -1,
        timeout: _Timeout = ...,
    ) -> Message | None: ...
    def isend(self, x: _Array, dst: int | None, tag: int = 0) -> Request: ...
    def irecv(self, x: _Array, src: int | None = -1, tag: int = -1) -> Request: ...
    def probe(self, src: int = -1, tag: int = -1, *, timeout: _Timeout = ...) -> Message | None: ...
    def iprobe(self, src: int = -1, tag: int = -1) -> Message | None: ...
    def send_object(self, obj: Any, dst: int | None, tag: int = 0, *, timeout: _Timeout = ...) -> None: ...
    def recv_object(self, src: int | None = -1, tag: int = -1, *, timeout: _Timeout = ...) -> Any: ...
    def broadcast_object(self, obj: Any = None, root: int = 0, *, timeout: _Timeout = ...) -> Any: ...
    def gather_object(self, obj: Any, root: int = 0, *, timeout: _Timeout = ...) -> list[Any] | None: ...
    def all_gather_object(self, obj: Any, *, timeout: _Timeout = ...) -> list[Any]: ...
    def reduce_object(self, obj: Any, op: _Op = "sum", root: int = 0, *, timeout: _Timeout = ...) -> Any: ...
    def all_reduce_object(self, obj: Any, op: _Op = "sum", *, timeout: _Timeout = ...) -> Any: ...
    def scatter_object(self, objs: Sequence[Any] | None = None, root: int = 0, *, timeout: _Timeout = ...) -> Any: ...
    def all_to_all_object(self, objs: Sequence[Any], *, timeout: _Timeout = ...) -> list[Any]: ...
    def empty(self, shape: int | Sequence[int], dtype: Any = float) -> np.ndarray: ...
    def zeros(self, shape: int | Sequence[int], dtype: Any = float) -> np.ndarray: ...
    def array(self, x: Any) -> np.ndarray: ...
    def share(self, *arrays: _Array) -> Shared: ...
    def shared_result(self, shape: int | Sequence[int], dtype: Any = float, root: int = 0) -> np.ndarray: ...
    def shared_view(self, array: np.ndarray, rank: int) -> np.ndarray: ...
    def split(
        self, color: int | None, key: int | None = None, *, rendezvous_timeout: float | None = 300.0, **settings: Any
    ) -> Communicator | None: ...
    def subgroup(
        self, ranks: Iterable[int], *, rendezvous_timeout: float | None = 300.0, **settings: Any
    ) -> Communicator: ...
    def dup(self, *, rendezvous_timeout: float | None = 300.0, **settings: Any) -> Communicator: ...
    def shrink(self, *, rendezvous_timeout: float | None = 300.0, **settings: Any) -> Communicator: ...
    def stats(self) -> dict[str, Any]: ...
    def explain(
        self,
        collective: str,
        nbytes: int,
        op: str = "sum",
        root: int = 0,
        dtype: str = "float32",
    ) -> str: ...
    def placement(self) -> list[SegmentPlacement]: ...
    def trace(self, directory: str | os.PathLike[str], *, calls: int = ...) -> Timeline: ...
