from typing_extensions import Buffer

WHEN_FULL: dict[str, int]
WHEN_SLOW: dict[str, int]
CONTROL_NBYTES: int
WAITER_NBYTES: int
QUEUE_NBYTES: int

def format_common_waiter(buffer: Buffer) -> None: ...
def format_shared_slots(buffer: Buffer, count: int, nslots: int, slot_nbytes: int, drops: bool) -> None: ...
def format_queue(buffer: Buffer) -> None: ...
