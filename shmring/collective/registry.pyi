from shmring.memory.segment import Segment

class AllocationRegistry:
    def locate(self, address: int) -> tuple[Allocation, int, int] | None: ...
    def allocations(self) -> list[Allocation]: ...
    def __len__(self) -> int: ...

class Allocation:
    segments: list[Segment]
    number: int
    size: int
    nbytes: int
    is_result: bool
    def __init__(
        self, registry: AllocationRegistry, number: int, segments: list[Segment], size: int, nbytes: int
    ) -> None: ...
    def area(self, rank: int) -> Area: ...

class Area:
    allocation: Allocation
    rank: int
    def __buffer__(self, flags: int, /) -> memoryview: ...
