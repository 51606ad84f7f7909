from collections.abc import Sequence
from typing import Any

from shmring.collective.base import _Array, _Timeout
from shmring.collective.reductions import Reductions

class DataMovement(Reductions):
    # With async_op the calls return a shmring.Work, else what their docstrings say.
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
