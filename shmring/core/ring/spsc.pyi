from shmring.typing import Array

CONTROL_NBYTES: int
HEAD_NBYTES: int

END_STATES: tuple[str, ...]

def ring_nbytes(nslots: int, slot_nbytes: int) -> int: ...
def format_ring(buffer: Array, nslots: int, slot_nbytes: int, *, start: int = 0, nheads: int = 1) -> None: ...
