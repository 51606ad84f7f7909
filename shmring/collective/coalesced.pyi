from collections.abc import Sequence
from typing import Any

from shmring.collective.base import _Array, _Op, _Timeout

class CoalescedCalls:
    def all_reduce_many(
        self, arrays: Sequence[_Array], *, op: _Op = "sum", timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
    def broadcast_many(
        self, arrays: Sequence[_Array], *, root: int = 0, timeout: _Timeout = ..., async_op: bool = False
    ) -> Any: ...
