"""Two processes, the work of both in Cython: numbers through a ring at tens of millions a second."""

import mmap
import os

import pump

from shmring.ring import format_ring, ring_nbytes

COUNT = 1_000_000

memory = mmap.mmap(-1, ring_nbytes(nslots=1024, slot_nbytes=8))
format_ring(memory, nslots=1024, slot_nbytes=8)
if os.fork() == 0:
    pump.push_numbers(memory, COUNT)
    os._exit(0)
count, total = pump.sum_numbers(memory)
os.wait()
assert (count, total) == (COUNT, COUNT * (COUNT - 1) // 2)
print(f"{count} numbers, their sum is {total}")
