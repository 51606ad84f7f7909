from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from numpy.typing import NDArray

class _Kernels(TypedDict):
    built: tuple[str, ...]
    runnable: tuple[str, ...]
    chosen: str

def kernels() -> _Kernels: ...
def use_kernel(name: str) -> None: ...
def reduce_arrays(
    sources: Sequence[NDArray[Any]],
    op: str,
    out: NDArray[Any] | None = None,
    *,
    also: NDArray[Any] | None = None,
    kernel: str | None = None,
    streaming: bool | Literal["out", "also"] = False,
) -> NDArray[Any]: ...
