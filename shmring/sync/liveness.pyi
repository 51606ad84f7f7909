from typing import Any, Literal, NamedTuple

LIVENESS_NBYTES: int

class Liveness(NamedTuple):
    state: Literal["alive", "dead", "dropped"]
    pid: int
    start_time: int
    pid_ns: int
    method: int

def hold(buffer: Any, offset: int = 0) -> None: ...
def drop(buffer: Any, offset: int = 0) -> None: ...
def probe(buffer: Any, offset: int = 0) -> Liveness: ...
