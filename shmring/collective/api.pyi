from collections.abc import Callable, Sequence
from types import EllipsisType, TracebackType
from typing import Any, TypeVar

from shmring.config import Config
from shmring.engine.engine import Engine

# Arrays are anything on the CPU with the buffer protocol or DLPack, for which typing has no name.
_Array = Any
_Op = str | Callable[[Any, Any], Any]
_Timeout = float | EllipsisType | None
_Self = TypeVar("_Self", bound="Calls")

class Calls:
    # Read-only, all of them.
    engine: Engine
    rank: int
    size: int
    name: str
    config: Config
    is_closed: bool
    is_broken: bool
    def __init__(self, engine: Engine, *args: Any, **kwargs: Any) -> None: ...
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    # With async_op the calls return a shmring.Work, else what their docstrings say.
    def all_reduce(
        self, x: _Array, out: _Array = None, *, op: _Op = "sum", timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def reduce(
        self,
        x: _Array,
        out: _Array = None,
        *,
        root: int = 0,
        op: _Op = "sum",
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def reduce_scatter(
        self,
        x: _Array,
        out: _Array = None,
        *,
        op: _Op = "sum",
        counts: Sequence[int] | None = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def scan(
        self, x: _Array, out: _Array = None, *, op: _Op = "sum", timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def exscan(
        self, x: _Array, out: _Array = None, *, op: _Op = "sum", timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def broadcast(self, x: _Array, *, root: int = 0, timeout: _Timeout = ..., async_op: bool = False) -> Any: ...
    def all_gather(
        self,
        x: _Array,
        out: _Array = None,
        *,
        counts: Sequence[int] | None = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def gather(
        self,
        x: _Array,
        out: _Array = None,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def scatter(
        self,
        x: _Array,
        out: _Array = None,
        *,
        root: int = 0,
        counts: Sequence[int] | None = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def all_to_all(
        self,
        x: _Array,
        out: _Array = None,
        *,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        timeout: _Timeout = ...,
        async_op: bool = False,
    ) -> Any: ...
    def barrier(self, *, timeout: _Timeout = ..., async_op: bool = False) -> Any: ...
    def stats(self) -> dict[str, Any]: ...
    def abort(self, reason: object = "") -> None: ...
    def close(self) -> None: ...
