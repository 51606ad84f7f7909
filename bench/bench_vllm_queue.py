"""vLLM's message queue, as it is, with a short spin, and on our channel, in turns: latency, and processor time.

    python bench/bench_vllm_queue.py [--rows 2x1048576 4x1024] [--minutes 7.5]

A row is a number of workers, which read, and the bytes of an array that the engine puts. Each round measures all rows,
each with the queues in an order drawn anew; rounds follow as long as one more fits. All items of all rounds count.

Latency is from `enqueue` to the return of `dequeue` in the slowest worker: `hot` with 0.2 ms between items, and 1 ns
for each byte; `after silence` with 100 ms. Processor time is in percent of one processor, the median of rounds: in
`steps`, one every 50 ms, each worker gets an item, sleeps for 20 ms in place of work, and answers by a queue of its
own, for which the engine waits, as vLLM's do; `idle` is a worker in the two seconds after its last item.
"""

import argparse
import functools
import multiprocessing
import sys
import time
from collections import defaultdict
from statistics import median

import numpy as np
import pytest

pytest.importorskip("vllm")  # pytest looks into this file, though it is a program

from bench_collectives import follow, round_trip_us
from sides import ranks
from turns import take_turns
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

from shmring.vllm.queue import ShmringQueue

CONTEXT = multiprocessing.get_context("fork")
OWN_INIT = shm_broadcast.SpinCondition.__init__
WORK_S, STEP_S, SILENCE_S, IDLE_S = 0.02, 0.05, 0.1, 2.0
ROWS = [(nworkers, nbytes) for nworkers in (1, 2, 4) for nbytes in (1 << 10, 1 << 20, 64 << 20)]
LEAST = 3  # items of a stage, however long they take


def vllm_queue(busy_loop_s, readers):
    """That of vLLM."""
    shm_broadcast.SpinCondition.__init__ = functools.partialmethod(OWN_INIT, busy_loop_s=busy_loop_s)
    return MessageQueue(readers, readers)


WAYS = {
    "vLLM": functools.partial(vllm_queue, 1),
    "vLLM, 2 ms": functools.partial(vllm_queue, 0.002),
    "shmring": lambda readers: ShmringQueue(readers, readers),
}


def end_of(handle, rank):
    """The end of a reader."""
    make = ShmringQueue.of_reader if "channel-vllm" in handle.buffer_handle[3] else MessageQueue.create_from_handle
    return make(handle, rank)


class Share:
    """The share of a processor that this process takes from now on."""

    def __init__(self):
        self._began, self._used = time.monotonic(), time.process_time()

    def percent(self):
        return 100 * (time.process_time() - self._used) / (time.monotonic() - self._began)


def work(way, handle, rank, pipe):
    """A worker: receive until None; at the end of each stage send the latencies in ns, and the share of a processor."""
    queue, answers = end_of(handle, rank), WAYS[way](1)
    pipe.send(answers.export_handle())
    queue.wait_until_ready()
    answers.wait_until_ready()
    while True:
        latencies, share = [], Share()
        while (item := queue.dequeue(indefinite=True)) != "end":
            if item is None:
                return
            latencies.append(time.monotonic_ns() - item[0])
            if item[2]:
                time.sleep(WORK_S)
                answers.enqueue(rank)
        pipe.send((latencies, share.percent()))


class Engine:
    """The queue to the workers, and those from them."""

    def __init__(self, way, nworkers):
        self._queue = WAYS[way](nworkers)
        self._pipes, self._processes = [], []
        for rank in range(nworkers):
            own, its = CONTEXT.Pipe()
            process = CONTEXT.Process(target=work, args=(way, self._queue.export_handle(), rank, its), daemon=True)
            process.start()
            self._pipes.append(own)
            self._processes.append(process)
        self._answers = [end_of(pipe.recv(), 0) for pipe in self._pipes]
        self._queue.wait_until_ready()
        for answers in self._answers:
            answers.wait_until_ready()

    def stage(self, data, seconds, pause_s, with_answers=False):
        """Put an item after each pause; the latencies in us, and the shares of the engine and of the busiest worker."""
        share, until, count = Share(), time.monotonic() + seconds, 0
        while time.monotonic() < until or count < LEAST:
            time.sleep(pause_s)
            self._queue.enqueue((time.monotonic_ns(), data, with_answers))
            for answers in self._answers if with_answers else ():
                answers.dequeue()
            count += 1
        own = share.percent()
        latencies, busiest = self._end_stage()
        return list(np.max(latencies, axis=0) / 1000), own, busiest

    def idle(self):
        """The share of a worker that gets nothing."""
        time.sleep(IDLE_S)
        return self._end_stage()[1]

    def _end_stage(self):
        self._queue.enqueue("end")
        found = [pipe.recv() for pipe in self._pipes]
        return [latencies for latencies, _ in found], max(share for _, share in found)

    def close(self):
        self._queue.enqueue(None)
        for process in self._processes:
            process.join()


def measure(way, nworkers, nbytes, seconds):
    """One turn of a queue."""
    engine, data = Engine(way, nworkers), np.zeros(nbytes, np.uint8)
    engine.stage(data, 0.1 * seconds, 0.001)
    hot, *_ = engine.stage(data, 0.25 * seconds, 0.0002 + nbytes / 1e9)
    silent, *_ = engine.stage(data, 2 * seconds, SILENCE_S)
    _, own, worker = engine.stage(data, seconds, STEP_S - WORK_S, with_answers=True)
    idle = engine.idle()
    engine.close()
    return {"hot": hot, "silent": silent, "worker": worker, "engine": own, "idle": idle}


def trip_us():
    """The round trip between two ranks, now."""
    with ranks(follow) as comm:
        found = round_trip_us(comm)
        comm.broadcast(np.zeros(3, np.int64))
    return found


def rounds(rows, minutes, seconds):
    """The turns of each row, by queue, and the round trip before each round."""
    found, trips, ends = {row: defaultdict(list) for row in rows}, [], [time.monotonic()]
    until = ends[0] + 60 * minutes
    while len(ends) == 1 or 2 * ends[-1] - ends[-2] < until:
        trips.append(trip_us())
        for row in rows:
            turn = {way: functools.partial(measure, way, *row, seconds) for way in WAYS}
            for way, results in take_turns(turn, lambda cycle: cycle > 0, seed=(len(ends), row)).items():
                found[row][way] += results
        ends.append(time.monotonic())
        print(f"round {len(trips)}: trip {trips[-1]:.2f} us, {ends[-1] - ends[-2]:.0f} s", file=sys.stderr, flush=True)
    return found, trips


def row_of(text):
    nworkers, nbytes = text.split("x")
    return int(nworkers), int(nbytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rows",
        type=row_of,
        nargs="+",
        default=ROWS,
        help="WORKERSxBYTES; default: 1, 2 and 4 workers, 1 KiB, 1 MiB and 64 MiB",
    )
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--seconds", type=float, default=1.5, help="of the stage of steps")
    args = parser.parse_args()
    found, trips = rounds(args.rows, args.minutes, args.seconds)
    print(f"round trip {min(trips):.2f} to {max(trips):.2f} us, {len(trips)} rounds\n")
    print(
        "| queue | workers | bytes | hot, p50, us | p99 | after silence, p50, us | p99 "
        "| steps: worker, % | engine, % | idle worker, % |"
    )
    print("| --- " * 10 + "|")
    for (nworkers, nbytes), ways in found.items():
        for way in WAYS:
            turns = ways[way]
            latencies = [np.concatenate([turn[name] for turn in turns]) for name in ("hot", "silent")]
            times = [f"{np.percentile(some, q):.0f}" for some in latencies for q in (50, 99)]
            shares = [f"{median(turn[name] for turn in turns):.1f}" for name in ("worker", "engine", "idle")]
            print("|", " | ".join([way, str(nworkers), str(nbytes), *times, *shares]), "|")


if __name__ == "__main__":
    main()
