from collections.abc import Sequence
from typing import Any

APART: int
WAYS: tuple[str, ...]

def copy(y: Any, x: Any, times: int, way: str = "memcpy") -> None: ...
def round_trips(words: Any, rank: int, size: int, times: int) -> Sequence[float]: ...
