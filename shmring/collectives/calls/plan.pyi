from typing import Any, Generic

from typing_extensions import TypeVar

from shmring.collectives.calls.async_work import Work

_T_co = TypeVar("_T_co", covariant=True, default=Any)

class PREPARE: ...

class Plan(Generic[_T_co]):
    # Read-only, both.
    name: str
    label: int | str
    def __call__(self) -> _T_co: ...
    def start(self) -> Work[_T_co]: ...
    def describe(self) -> str: ...
