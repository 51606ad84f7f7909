"""Channels and queues of shmring beside those of other libraries: the tables of docs/figures/channels.md.

    python bench/bench_channel_peers.py
    python bench/bench_channel_peers.py --only message round_trip --libraries channel mp-pipe pyzmq --seconds 5
    python bench/bench_channel_peers.py --only death

Two processes on two processors have both ends of every library at once, and use the calls that its documentation shows;
libraries take turns, in an order drawn anew in each cycle, while the others sleep. What is not installed is left out.
The receiver owns what it gets (bytes, an array). Each direction has 4 MiB of buffer where a library has such a setting;
what arrives is compared before the clock starts. ``message`` and ``array``: one way, microseconds each, of the slower
process; ``records``: batches of 256 records of 32 bytes; ``round_trip``, ``think`` (1 ms between two): each is timed;
``idle``: processor microseconds a second of a waiting receiver; ``death``: microseconds from the SIGKILL of the sender
to an error of the receiver.
"""

import argparse
import ctypes
import importlib.util
import math
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import time
from contextlib import suppress

import numpy as np
from turns import PROCESSORS, calls_in, pin, pinned, summary, take_turns, warmup_of

import shmring

CAPACITY_NBYTES = 4 << 20
BATCH = 256
RECORD = np.dtype([("time", "f8"), ("price", "f8"), ("volume", "i8"), ("symbol", "i4"), ("side", "i4")])
ROWS = {
    "message": (8, 64, 1 << 10, 16 << 10, 64 << 10),
    "array": (1 << 20, 16 << 20),
    "records": (BATCH * RECORD.itemsize,),
    "round_trip": (64,),
    "think": (64,),
    "idle": (64,),
    "death": (64,),
}
SLICE_S, THINK_S, IDLE_S, DEATH_S = 0.03, 0.001, 1.0, 2.0


# ---- the libraries ----


class Library:
    """Both directions between two processes, made before the fork; ``open(side)`` in each; the first sends on 0."""

    module = ""

    def __init__(self, op, nbytes, folder):
        self.ends = self.pair(op, nbytes)

    def pair(self, op, nbytes):
        """What both processes inherit."""

    def open(self, side):
        """Set ``send`` and ``recv``."""

    def recv_within(self, seconds):
        """Receive; `queue.Empty` if nothing comes."""
        return self.recv(timeout=seconds)

    def send_records(self, records):
        self.send(records.view("u1"))

    def recv_records(self):
        return np.frombuffer(self.recv(), RECORD)


class Queue(Library):
    """`shmring.Queue`."""

    def pair(self, op, nbytes):
        return [shmring.Queue(capacity_nbytes=CAPACITY_NBYTES) for _ in range(2)]

    def open(self, side):
        self.send, self.recv = self.ends[side].put, self.ends[1 - side].get

    def send_records(self, records):
        self.send(records)

    def recv_records(self):
        return self.recv()


class Channel(Library):
    """`shmring.channel`; records by a channel of records."""

    def pair(self, op, nbytes):
        return [shmring.channel(CAPACITY_NBYTES, dtype=RECORD if op == "records" else None) for _ in range(2)]

    def open(self, side):
        self.sender, self.receiver = self.ends[side][0].take(), self.ends[1 - side][1].take()
        self.send, self.recv = self.sender.send, self.receiver.recv

    def send_records(self, records):
        self.sender.send_many(records)

    def recv_records(self):
        found = self.receiver.recv_many(BATCH)
        while len(found) < BATCH:
            found = np.concatenate([found, self.receiver.recv_many(BATCH - len(found))])
        return found


class StandardQueue(Library):
    """`multiprocessing.Queue`, bounded as the others are: else it would time a copy into its feeder's buffer."""

    def pair(self, op, nbytes):
        return [multiprocessing.Queue(max(2, CAPACITY_NBYTES // max(nbytes, 1024))) for _ in range(2)]

    def open(self, side):
        self.send, self.recv = self.ends[side].put, self.ends[1 - side].get


class SimpleQueue(StandardQueue):
    """`multiprocessing.SimpleQueue`."""

    def pair(self, op, nbytes):
        return [multiprocessing.SimpleQueue() for _ in range(2)]

    def recv_within(self, seconds):
        return self.recv()


class Pipe(Library):
    """`multiprocessing.Pipe`."""

    def pair(self, op, nbytes):
        return multiprocessing.Pipe()

    def open(self, side):
        self.ends[1 - side].close()
        self.end = self.ends[side]
        self.send, self.recv = self.end.send_bytes, self.end.recv_bytes

    def recv_within(self, seconds):
        if not self.end.poll(seconds):
            raise queue.Empty
        return self.recv()


class FasterFifo(Library):
    """`faster_fifo.Queue`, without pickle, which bytes do not need."""

    module = "faster_fifo"

    def pair(self, op, nbytes):
        import faster_fifo

        capacity = max(CAPACITY_NBYTES, 2 * nbytes + 4096)  # what is longer than its ring never fits
        return [faster_fifo.Queue(capacity, loads=bytes, dumps=bytes) for _ in range(2)]

    def open(self, side):
        self.out, self.back = self.ends[side], self.ends[1 - side]

    def send(self, message):
        self.out.put(message.view("u1") if isinstance(message, np.ndarray) else message, timeout=1000)

    def recv(self, timeout=1000):
        return self.back.get(timeout=timeout)


class ZeroMq(Library):
    """PAIR sockets over ipc."""

    module = "zmq"

    def __init__(self, op, nbytes, folder):
        self.address = f"ipc://{folder}/{op}-{nbytes}"

    def open(self, side):
        import zmq

        self.socket = zmq.Context().socket(zmq.PAIR)
        self.socket.setsockopt(zmq.LINGER, 0)
        (self.socket.connect if side else self.socket.bind)(self.address)
        self.send, self.recv = self.socket.send, self.socket.recv

    def recv_within(self, seconds):
        if not self.socket.poll(int(seconds * 1000)):
            raise queue.Empty
        return self.recv()


class Iceoryx(Library):
    """iceoryx2: a publisher and a subscriber of byte slices, with an event to wake the receiver."""

    module = "iceoryx2"

    def __init__(self, op, nbytes, folder):
        self.name, self.nbytes = f"{folder}/{op}", nbytes

    def open(self, side):
        import iceoryx2 as iox

        iox.set_log_level(iox.LogLevel.Fatal)
        self.node, self.tick = iox.NodeBuilder.new().create(iox.ServiceType.Ipc), iox.Duration.from_millis(100)
        ports = [self._service(iox, direction) for direction in range(2)]
        (service, event), (back, back_event) = ports[side], ports[1 - side]
        builder = service.publisher_builder().initial_max_slice_len(max(self.nbytes, 64))
        self.publisher = builder.backpressure_strategy(iox.BackpressureStrategy.RetryUntilDelivered).create()
        self.notifier, self.listener = event.notifier_builder().create(), back_event.listener_builder().create()
        self.subscriber = back.subscriber_builder().create()

    def _service(self, iox, direction):
        name = iox.ServiceName.new(f"{self.name}/{self.nbytes}/{direction}")
        depth = max(2, min(256, CAPACITY_NBYTES // max(self.nbytes, 64)))
        service = self.node.service_builder(name).publish_subscribe(iox.Slice[ctypes.c_uint8])
        service = service.enable_safe_overflow(False).subscriber_max_buffer_size(depth).open_or_create()
        return service, self.node.service_builder(name).event().open_or_create()

    def send(self, message):
        array = np.frombuffer(message, np.uint8)
        loan = self.publisher.loan_slice_uninit(array.nbytes)
        ctypes.memmove(loan.payload_ptr, array.ctypes.data, array.nbytes)
        loan.assume_init().send()
        self.notifier.notify()

    def recv(self, timeout=math.inf):
        until = time.monotonic() + timeout
        while (sample := self.subscriber.receive()) is None:
            if time.monotonic() > until:
                raise queue.Empty
            self.listener.timed_wait(self.tick)
        return bytes(sample.payload().as_memory_view())


LIBRARIES = {
    "channel": Channel,
    "queue": Queue,
    "mp-queue": StandardQueue,
    "mp-simplequeue": SimpleQueue,
    "mp-pipe": Pipe,
    "faster-fifo": FasterFifo,
    "pyzmq": ZeroMq,
    "iceoryx2": Iceoryx,
}


# ---- what both processes do; the orders go through a pipe ----


class Side:
    """One of the two processes: side 0 leads and sends."""

    def __init__(self, one, side, op, nbytes, orders):
        self.one, self.side, self.op, self.orders, self.trips = one, side, op, orders, []
        one.open(side)
        self.x = np.arange(nbytes, dtype=np.uint8)
        self.message = self.x if op == "array" else self.x.tobytes()
        self.records = self.x.view(RECORD) if op == "records" else None

    def run(self, times):
        """Seconds of so many, on the slower side: the other one has been told."""
        start = time.perf_counter()
        if self.op == "records":
            step = self.one.recv_records if self.side else (lambda: self.one.send_records(self.records))
        elif self.op in ("round_trip", "think"):
            step = (lambda: self.one.send(self.one.recv())) if self.side else self.trip
        else:
            step = self.one.recv if self.side else (lambda: self.one.send(self.message))
        for _ in range(times):
            step()
        return time.perf_counter() - start

    def trip(self):
        """There and back, timed."""
        if self.op == "think":
            time.sleep(THINK_S)
        start = time.perf_counter_ns()
        self.one.send(self.message)
        self.one.recv()
        self.trips.append((time.perf_counter_ns() - start) / 1e3)

    def arrived(self):
        """Whether what the sender has is what the receiver gets."""
        if self.op == "records":
            return bool((np.asarray(self.one.recv_records()).view(RECORD) == self.records).all())
        return bool((np.frombuffer(self.one.recv(), np.uint8) == self.x).all())

    def lead(self, times):
        """Microseconds each, of so many, on the slower side."""
        self.orders.send(times)
        self.orders.recv()
        own = self.run(times)
        return 1e6 * max(own, self.orders.recv()) / times

    def follow(self):
        """Do as side 0 says."""
        while (order := self.orders.recv()) != "end":
            if order == "check":
                self.orders.send(self.arrived())
            elif order == "idle":
                used, start = time.process_time(), time.perf_counter()
                self.one.recv()
                self.orders.send(1e6 * (time.process_time() - used) / (time.perf_counter() - start))
            else:
                self.orders.send("ready")
                self.orders.send(self.run(order))


def row(op, nbytes, names, seconds):
    """Print one row: all libraries in turns."""
    with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
        sides, children = {}, []
        for name in names:
            os.mkdir(f"{folder}/{name}")
            one = LIBRARIES[name](op, nbytes, f"{folder}/{name}")
            orders, theirs = multiprocessing.Pipe()
            pid = os.fork()
            if pid == 0:
                with suppress(EOFError):
                    pin(1)
                    orders.close()
                    Side(one, 1, op, nbytes, theirs).follow()
                os._exit(0)
            children.append(pid)
            theirs.close()
            sides[name] = Side(one, 0, op, nbytes, orders)
        with pinned(0):
            us = (idle if op == "idle" else turns)(sides, seconds)
        for side in sides.values():
            side.orders.send("end")
        for pid in children:
            os.waitpid(pid, 0)
    for name, found in us.items():
        spread = summary(found)
        if trips := sides[name].trips:
            spread = dict(zip(("p50", "p99", "p99.9"), np.percentile(trips, (50, 99, 99.9)), strict=True))
        shown = "  ".join(f"{key} {value:.4g}" for key, value in spread.items())
        print(f"{op:<10} {nbytes:>9} {name:<15} {shown}", flush=True)


def turns(sides, seconds):
    """Name -> microseconds each, one for each cycle."""
    slices = {}
    for name, side in sides.items():
        side.orders.send("check")
        side.one.send_records(side.records) if side.op == "records" else side.one.send(side.message)
        assert side.orders.recv(), f"{name}: what arrived is not what was sent"
        times = calls_in(SLICE_S, side.lead)
        side.trips.clear()
        slices[name] = lambda side=side, times=times: [side.lead(warmup_of(times)), side.lead(times)][1]
    until = time.monotonic() + seconds
    return take_turns(slices, lambda cycle: cycle >= 3 and time.monotonic() > until)


def idle(sides, seconds):
    """Name -> processor microseconds a second of a receiver that waits."""
    found = {}
    for name, side in sides.items():
        side.orders.send("idle")
        time.sleep(IDLE_S)
        side.one.send(side.message)
        found[name] = [side.orders.recv()]
    return found


def death(names, cycles):
    """Print after how long a receiver sees that its sender was killed, or that it does not."""
    for name in names:
        us, seen = [], ""
        for _ in range(cycles):
            with tempfile.TemporaryDirectory(prefix="shmring-bench-") as folder:
                one, (reading, writing) = LIBRARIES[name]("death", 64, folder), os.pipe()
                pid = os.fork()
                if pid == 0:
                    one.open(0)
                    one.send(b"x" * 64)
                    time.sleep(0.1)
                    os.write(writing, time.perf_counter_ns().to_bytes(8, "little"))
                    os.kill(os.getpid(), signal.SIGKILL)
                one.open(1)
                seen = f"no error within {DEATH_S:g} s"
                signal.setitimer(signal.ITIMER_REAL, 2 * DEATH_S)  # of a library whose calls have no timeout
                try:
                    one.recv()
                    one.recv_within(DEATH_S)
                except (queue.Empty, TimeoutError):
                    pass
                except Exception as error:
                    us.append((time.perf_counter_ns() - int.from_bytes(os.read(reading, 8), "little")) / 1e3)
                    seen = f"{type(error).__name__}: {error}".partition("\n")[0]
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    os.waitpid(pid, 0)
        print(f"death {name:<15} {summary(us)['median'] if us else math.nan:.4g} us, {seen}", flush=True)


def main():
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--sizes", nargs="+", type=int, help="bytes of messages and arrays")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--cycles", type=int, default=8, help="of death")
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, lambda number, frame: (_ for _ in ()).throw(TimeoutError("no error")))
    is_here = {name: not one.module or importlib.util.find_spec(one.module) for name, one in LIBRARIES.items()}
    for name in args.libraries:
        if not is_here[name]:
            print(f"{name}: not installed")
    names = [name for name in args.libraries if is_here[name]]
    print(f"microseconds; processors {PROCESSORS[0]} and {PROCESSORS[1 % len(PROCESSORS)]}")
    for op in args.only:
        if op == "death":
            death(names, args.cycles)
            continue
        for nbytes in args.sizes if args.sizes and op in ("message", "array") else ROWS[op]:
            row(op, nbytes, names, args.seconds)


if "pytest" in sys.modules:
    from sides import output_of

    def test_every_row_of_the_libraries_that_are_here(benchmark, tmp_path):
        """Once each, for a moment."""
        command = [sys.executable, __file__, "--seconds", "0.01", "--sizes", "64", "--cycles", "1"]
        text = benchmark.pedantic(output_of, (tmp_path, *command), rounds=1)
        assert "death mp-pipe" in text


if __name__ == "__main__":
    main()
