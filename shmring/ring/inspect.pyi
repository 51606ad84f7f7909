from typing import Any, NamedTuple

class EndLook(NamedTuple):
    state: str
    pid: int
    asleep: bool
    position: int
    messages: int
    dropped: int
    waits: int
    sleeps: int

class RingLook(NamedTuple):
    nslots: int
    slot_nbytes: int
    producer: EndLook
    consumer: EndLook
    @property
    def fill(self) -> float: ...

def look(buffer: Any) -> RingLook: ...
