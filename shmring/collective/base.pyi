from collections.abc import Callable
from types import EllipsisType, TracebackType
from typing import Any, TypeVar

from shmring.config import Config
from shmring.engine.engine import Engine
from shmring.sync.turn import Turn

# An array is any object on the CPU with the buffer protocol or DLPack; typing has no name for that.
_Array = Any
_Op = str | Callable[[Any, Any], Any]
_Timeout = float | EllipsisType | None
_Self = TypeVar("_Self", bound="CollectiveBase")

class CollectiveBase:
    # All are read-only.
    engine: Engine
    object_turn: Turn
    rank: int
    size: int
    name: str
    config: Config
    is_closed: bool
    is_broken: bool
    def __init__(self, engine: Engine, *args: Any, **kwargs: Any) -> None: ...
    def __enter__(self: _Self) -> _Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def _checked_rank(self, number: Any, name: str) -> int: ...
    def abort(self, reason: object = "") -> None: ...
    def close(self) -> None: ...
