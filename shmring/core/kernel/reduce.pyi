from typing import TypedDict

class _Kernels(TypedDict):
    built: tuple[str, ...]
    runnable: tuple[str, ...]
    chosen: str

STORES: tuple[str, ...]

def stores_named(name: str) -> int: ...
def kernels() -> _Kernels: ...
def use_kernel(name: str) -> None: ...
