"""A pool whose tasks and results are large arrays: one word differs from the standard library.

python examples/pool_over_arrays.py [ARRAYS]
"""

import multiprocessing
import sys
import time
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

import shmring.multiprocessing


def spectrum(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """What a worker does: an array comes, an array goes."""
    return np.abs(np.fft.rfft(signal))


def seconds(library: ModuleType, signals: list[NDArray[np.float64]]) -> tuple[float, float]:
    """For all arrays through a pool of two workers, and the sum of what came back."""
    with library.get_context("fork").Pool(2) as pool:
        pool.map(spectrum, signals[:2])  # the workers are running now
        began = time.perf_counter()
        total = sum(float(found.sum()) for found in pool.imap(spectrum, signals))
        return time.perf_counter() - began, total


def main(count: int) -> None:
    """Compare both."""
    signals = [np.random.default_rng(i).standard_normal(1 << 20) for i in range(count)]  # 8 MB each
    times = {}
    for library in (shmring.multiprocessing, multiprocessing):
        times[library.__name__], total = seconds(library, signals)
    print(", ".join(f"{name}: {taken:.2f} s" for name, taken in times.items()), f"(sum {total:.6g})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
