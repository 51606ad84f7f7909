"""Types for annotations, as `numpy.typing` has them: what calls take. No other module loads this one at run time.

    def mean(comm: shmring.Communicator, x: shmring.typing.Array) -> None: ...

Classes with a type parameter are `Queue`, `JoinableQueue`, `Receiver` and `Latest` (what they carry), `Work` and `Plan`
(what they return): ``shmring.Queue[bytes]``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

import numpy as np

__all__ = [
    "Array",
    "Counts",
    "Number",
    "Op",
    "OpName",
    "Role",
    "Settings",
    "Shape",
    "StartMethod",
    "Timeout",
    "WhenFull",
]


class SupportsBuffer(Protocol):
    """An object with the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...


class SupportsDLPack(Protocol):
    """An object with DLPack."""

    @property
    def __dlpack__(self) -> Callable[..., Any]: ...


Array: TypeAlias = SupportsBuffer | SupportsDLPack
"""An array on the CPU: of NumPy, of torch, ``bytearray``, ..."""

Number: TypeAlias = int | float | complex | np.number[Any] | np.bool_
"""A number, which reductions take as an array without dimensions."""

OpName: TypeAlias = Literal[
    "sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "absmax", "add", "product",
    "multiply", "minimum", "maximum", "mean", "SUM", "PROD", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR",
    "LAND", "LOR", "ABSMAX", "ADD", "PRODUCT", "MULTIPLY", "MINIMUM", "MAXIMUM", "MEAN",
]  # fmt: skip
"""The name of an operation."""

Op: TypeAlias = OpName | Callable[[Any, Any], Any]
"""An operation: its name, a ufunc, or a function of two arrays."""

Counts: TypeAlias = Sequence[int] | np.ndarray[Any, np.dtype[np.integer[Any]]] | None
"""Rows for each rank; None: equally many."""

Shape: TypeAlias = int | Sequence[int]

Timeout: TypeAlias = float | EllipsisType | None
"""Seconds; None: no limit; ``...``: the communicator's."""

WhenFull: TypeAlias = Literal["wait", "drop_newest"]
"""The policy of a channel without room."""

Role: TypeAlias = Literal["sender", "receiver"]
"""An end of a channel."""


StartMethod: TypeAlias = Literal["spawn", "forkserver", "fork"]
"""How `multiprocessing` makes processes."""


class Settings(TypedDict, total=False):
    """The settings of a communicator, as keywords: see `shmring.config.Config` and `shmring.config.Internals`."""

    slot_nbytes: int
    nslots: int
    timeout: float | None
    spin_us: float
    huge_pages: int
    placement: str
    threads: int
    allow_pickle: bool
    eager_nbytes: int
    pair_queue_nbytes: int
    one_shot_nbytes: int
    flat_reduce_nbytes: int
    hierarchical_nbytes: int
    round_nbytes: int
    nearness: int
    latency_us: float
    touch_gbs: float
    tick_ms: float
    stores: int
    direct: int
    past_cache_nbytes: int
    split_nbytes: int
