"""joblib with a backend whose arguments and results go through shared-memory rings, beside its own backend "loky".

pip install joblib
python examples/joblib_backend.py [number of arrays, 60]
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase, register_parallel_backend

from shmring.multiprocessing import ProcessPoolExecutor, get_context


class RingBackend(ParallelBackendBase):
    """Gives batches of joblib's calls to an executor."""

    supports_retrieve_callback = True

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """So many calls run at once."""
        return int(joblib.cpu_count()) if n_jobs is None or n_jobs == -1 else n_jobs

    def configure(self, n_jobs: int | None = 1, parallel: Any = None, **_: Any) -> int:
        """Make the executor of a `Parallel`."""
        self.parallel = parallel
        self.executor = ProcessPoolExecutor(self.effective_n_jobs(n_jobs), get_context("fork"))
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        """Run a batch; joblib wants the callback when it is done."""
        future = self.executor.submit(func)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The results of a batch that is done."""
        return out.result()

    def terminate(self) -> None:
        """End the executor of a `Parallel`."""
        self.executor.shutdown(cancel_futures=True)


register_parallel_backend("shmring", RingBackend)


def total(x: np.ndarray) -> float:
    return float(x.sum())


def main() -> None:
    arrays = [np.full(100_000, float(i)) for i in range(int((sys.argv[1:] or ["60"])[0]))]
    for backend in ("loky", "shmring"):
        with joblib.Parallel(2, backend) as parallel:
            parallel(joblib.delayed(total)(x) for x in arrays[:4])
            began = time.perf_counter()
            totals = parallel(joblib.delayed(total)(x) for x in arrays)
            assert totals == [total(x) for x in arrays]
            print(f"{backend}: {len(arrays)} arrays of 0.8 MB in {time.perf_counter() - began:.2f} s", flush=True)


if __name__ == "__main__":
    main()
