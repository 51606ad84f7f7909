from shmring.collective.registry import Allocation, Directory
from shmring.memory.segment import Segment

class Sharing:
    directory: Directory
    nallocations: int
    nresults: int
    rooted_nbytes: int
    nmapped: int
    def __init__(self, size: int) -> None: ...
    def enlist(self, segments: list[Segment], nbytes: int) -> Allocation: ...
