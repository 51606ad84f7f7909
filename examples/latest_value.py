"""A sensor that writes its newest reading, and readers that come late and look whenever they like.

python examples/latest_value.py [READINGS]
"""

import multiprocessing
import sys
import time

import numpy as np

import shmring

READING = np.dtype([("number", "i8"), ("position", "f8", 3)])


def sense(latest: shmring.Latest, count: int) -> None:
    """A new reading a millisecond. It knows of no reader."""
    for number in range(1, count + 1):
        latest.write((number, np.full(3, number / 1000)))
        time.sleep(0.001)


def look(latest: shmring.Latest, count: int, results: shmring.Queue[list[int]]) -> None:
    """Read the newest whenever there is a newer one than the last, until the last of all."""
    seen: list[int] = []
    version = 0
    while version < count:
        reading, version = latest.read_version(timeout=60, after=version)
        assert (reading["position"] == reading["number"] / 1000).all()  # never torn
        seen.append(int(reading["number"]))
        time.sleep(0.005)  # slower than the sensor: the readings in between are passed over
    results.put(seen)


def main(count: int) -> None:
    """One sensor, and three readers, of which each starts later than the one before."""
    context = multiprocessing.get_context("spawn")
    latest, results = shmring.Latest(dtype=READING), shmring.Queue[list[int]]()
    sensor = context.Process(target=sense, args=(latest, count))
    readers = [context.Process(target=look, args=(latest, count, results)) for _ in range(3)]
    sensor.start()
    for reader in readers:
        reader.start()
    for _ in readers:
        seen = results.get(timeout=120)
        assert seen == sorted(set(seen))
        print(f"a reader saw {len(seen)} of {count} readings, the first was {seen[0]}, the last {seen[-1]}")
    for process in (sensor, *readers):
        process.join()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
