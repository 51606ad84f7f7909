from typing import Any

from shmring.collective.async_work import Work

COLLECTIVES: tuple[str, ...]

class PREPARE: ...

class Call:
    # Read-only, both.
    name: str
    label: int | str
    def __call__(self) -> Any: ...
    def start(self) -> Work: ...
    def describe(self) -> str: ...
