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
def reduce_part(
    sources: Sequence[NDArray[Any]],
    op: str,
    *,
    prefix: NDArray[Any] | None = None,
    total: int | None = None,
    kernel: str | None = None,
    streaming: bool = False,
) -> NDArray[Any]: ...
def copy_array(dst: NDArray[Any], src: NDArray[Any], *, streaming: bool = False) -> None: ...
def _words_of_c() -> tuple[list[tuple[str, int]], list[str], set[tuple[str, str, str]]]: ...
