"""Run ``threads.pyx`` under the thread sanitizer; started by ``threads.sh``."""

import sys
import threading

from shmring import threads as harness  # threads.sh puts it there and builds it


def together(*calls):
    """Run calls at once, each in a thread; what they returned."""
    results = [None] * len(calls)

    def run(i, call, args):
        results[i] = call(*args)

    workers = [threading.Thread(target=run, args=(i, *call)) for i, call in enumerate(calls)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return results


def main(count):
    """All of it, each once spinning and once asleep."""
    ring = harness.Ring()
    results = together((ring.produce, (count,)), (ring.consume, ()))
    assert results[1] == (count, 0), results
    print(f"ring: {count} messages")
    for size in (2, 3):
        for spin_ns in (0, 50_000):
            for name in ("exchange", "exchange_eager", "exchange_eager with a root"):
                group = harness.Group(size, spin_ns)
                more = () if name == "exchange" else ("root" in name,)
                call = getattr(group, name.split()[0])
                results = together(*((call, (rank, count // 10, *more)) for rank in range(size)))
                assert results == [0] * size, (name, size, spin_ns, results)
                print(f"{name}: {size} ranks, {count // 10} rounds, {'spinning' if spin_ns else 'sleeping'}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
