from shmring.collective.registry import Allocation, AllocationRegistry
from shmring.memory.segment import Segment

class Sharing:
    registry: AllocationRegistry
    nallocations: int
    nresults: int
    rooted_nbytes: int
    nzero_copy: int
    def __init__(self, size: int) -> None: ...
    def add_allocation(self, segments: list[Segment], nbytes: int) -> Allocation: ...
