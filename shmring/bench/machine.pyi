from collections.abc import Sequence
from typing import Any

APART: int

def copy(y: Any, x: Any, times: int) -> None: ...
def round_trips(words: Any, rank: int, size: int, times: int) -> Sequence[float]: ...
