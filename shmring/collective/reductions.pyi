from collections.abc import Sequence
from typing import Any

from shmring.collective.base import CollectiveBase, _Array, _Op, _Timeout

class Reductions(CollectiveBase):
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
