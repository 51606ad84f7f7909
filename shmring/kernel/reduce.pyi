from collections.abc import Sequence
from typing import Any, TypedDict

from numpy.typing import NDArray

class _Kernels(TypedDict):
    built: tuple[str, ...]
    runnable: tuple[str, ...]
    chosen: str

STORES: tuple[str, ...]

def stores_named(name: str) -> int: ...
def kernels() -> _Kernels: ...
def use_kernel(name: str) -> None: ...
def reduce_arrays(
    sources: Sequence[NDArray[Any]],
    op: str,
    out: NDArray[Any] | None = None,
    *,
    also: NDArray[Any] | None = None,
    kernel: str | None = None,
    stores: str | tuple[str, str] = "ordinary",
) -> NDArray[Any]: ...
