"""vLLM's message queue, as it is, with a short spin, and on our channel: latency, and processor time of readers.

    python bench/bench_vllm_queue.py [--readers 1 2] [--sizes 1024 1048576] [--seconds 3]

Latency is from `enqueue` in the writer to the return of `dequeue` in the slowest reader: `hot` with a pause of 0.2 ms
between items, `after silence` with 100 ms. Processor time is that of one reader fed every 50 ms, in percent of one
processor.
"""

import argparse
import functools
import multiprocessing
import time

import numpy as np
import pytest

pytest.importorskip("vllm")  # pytest looks into this file, though it is a program

from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from shmring.vllm.queue import ShmringQueue

CONTEXT = multiprocessing.get_context("fork")
OWN_INIT = shm_broadcast.SpinCondition.__init__


def vllm_queue(busy_loop_s, readers):
    """That of vLLM."""
    shm_broadcast.SpinCondition.__init__ = functools.partialmethod(OWN_INIT, busy_loop_s=busy_loop_s)
    return MessageQueue(readers, readers)


WAYS = {
    "vllm": functools.partial(vllm_queue, 1),
    "vllm, 2 ms": functools.partial(vllm_queue, 0.002),
    "shmring": lambda readers: ShmringQueue(readers, readers),
}


def read(handle, rank, results):
    """Receive until None; send the latencies in ns, and the share of a processor in percent."""
    make = ShmringQueue.of_reader if "channel-vllm" in handle.buffer_handle[3] else MessageQueue.create_from_handle
    queue = make(handle, rank)
    queue.wait_until_ready()
    while True:
        latencies, began, used = [], time.monotonic(), time.process_time()
        while (item := queue.dequeue(indefinite=True)) != "end":
            if item is None:
                return
            latencies.append(time.monotonic_ns() - item[0])
        results.send((latencies, 100 * (time.process_time() - used) / (time.monotonic() - began)))


def stage(queue, pipes, data, count, pause_s):
    """Send so many items; the latencies to the slowest reader, and the largest share of a processor."""
    for _ in range(count):
        time.sleep(pause_s)
        queue.enqueue((time.monotonic_ns(), data))
    queue.enqueue("end")
    found = [pipe.recv() for pipe in pipes]
    return np.max([latencies for latencies, _ in found], axis=0) / 1000, max(share for _, share in found)


def measure(way, readers, sizes, seconds):
    """Print the rows of one way."""
    queue = WAYS[way](readers)
    ends = [CONTEXT.Pipe(duplex=False) for _ in range(readers)]
    processes = [
        CONTEXT.Process(target=read, args=(queue.export_handle(), rank, ends[rank][1]), daemon=True)
        for rank in range(readers)
    ]
    for process in processes:
        process.start()
    queue.wait_until_ready()
    pipes = [receiving for receiving, _ in ends]
    for nbytes in sizes:
        data = np.zeros(nbytes, np.uint8)
        stage(queue, pipes, data, 20, 0.001)
        pause_s = 0.0002 + nbytes / 1e9
        hot, _ = stage(queue, pipes, data, max(20, int(seconds / pause_s / 4)), pause_s)
        silent, _ = stage(queue, pipes, data, int(10 * seconds), 0.1)
        _, share = stage(queue, pipes, data, int(20 * seconds), 0.05)
        figures = [np.percentile(some, q) for some in (hot, silent) for q in (50, 99)]
        print(f"| {way} | {readers} | {nbytes} |", *(f"{x:.0f} |" for x in figures), f"{share:.1f} |", flush=True)
    queue.enqueue(None)
    for process in processes:
        process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << 10, 1 << 20, 64 << 20])
    parser.add_argument("--seconds", type=float, default=3)
    args = parser.parse_args()
    print("| queue | readers | bytes | hot p50, us | p99 | after silence p50, us | p99 | processor, % |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for readers in args.readers:
        for way in WAYS:
            measure(way, readers, args.sizes, args.seconds)


if __name__ == "__main__":
    main()
