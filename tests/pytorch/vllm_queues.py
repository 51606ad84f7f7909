"""A program: processes that vLLM's queue connects, with ours in its place; each prints `all as wanted`."""

import gc
import itertools
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.distributed.utils import StatelessProcessGroup
from vllm.platforms.interface import set_assigned_physical_gpu_ids
from vllm.plugins import load_general_plugins

import shmring
from shmring.core.memory.spelling import user_prefix

sys.path.append(str(Path(__file__).parents[1]))
from support.interrupts import interrupt_at_line

load_general_plugins()
CONTEXT = multiprocessing.get_context("fork")
WRITER = 2


def is_ours(queue):
    return type(queue).__name__ == "ShmringQueue"


def names():
    """Of the queues of this test run; other programs make names at the same time."""
    return sorted(path.name for path in Path("/dev/shm").glob(f"{user_prefix()[1:]}*channel-vllm*"))


def queue_of(group, writer=WRITER):
    return MessageQueue.create_from_process_group(group, 40 << 10, 2, writer)


def many_arrays(rank, group):
    """10,000 arrays from one process to three, with a pause after which all sleep."""
    queue = queue_of(group)
    assert is_ours(queue)
    random = np.random.default_rng(7)
    for number in range(10_000):
        array = random.integers(0, 100, random.integers(1, 10_000), dtype=np.int32)
        if rank == WRITER and number == 50:
            time.sleep(1)
        found = queue.broadcast_object(array if rank == WRITER else None)
        assert found.dtype == array.dtype
        assert np.array_equal(found, array), number
    with pytest.raises(RuntimeError, match="Only"):
        queue.dequeue() if rank == WRITER else queue.enqueue(1)


def objects(rank, group):
    """Tensors, long items, and objects with both."""
    queue = queue_of(group)
    generator = torch.Generator().manual_seed(1)
    for count in (1, 1000, 300_000, 20_000_000):
        item = {
            "tensors": [torch.randn(count, generator=generator).bfloat16(), torch.arange(6).view(2, 3).t()],
            "array": np.arange(count),
            "text": "x" * count,
            "bytes": b"READY",
        }
        found = queue.broadcast_object(item if rank == WRITER else None)
        assert torch.equal(found["tensors"][0], item["tensors"][0])
        assert found["tensors"][1].stride() == (1, 3)
        assert np.array_equal(found["array"], item["array"])
        assert found["text"] == item["text"]
        if rank != WRITER:
            found["tensors"][0].zero_()  # its own memory, which can be written
            found["array"][:] = 0
    assert queue.broadcast_object(b"READY") == b"READY"
    queue.broadcast_object(None)


def single_reader(rank, group):
    """Each process has a queue to rank 0, which has their handles."""
    set_assigned_physical_gpu_ids(
        list(range(dist.get_world_size(group)))
    )  # by which vLLM counts processes of a machine
    queue, handles = MessageQueue.create_from_process_group_single_reader(group, 1 << 20, 2, 0)
    assert is_ours(queue)
    readers = [MessageQueue.create_from_handle(handle, 0) for handle in handles]
    ready = threading.Thread(target=queue.wait_until_ready)
    ready.start()
    for reader in readers:
        reader.wait_until_ready()
    ready.join()
    queue.enqueue(("from", rank))
    for other, reader in enumerate(readers):
        assert reader.dequeue(timeout=60) == ("from", other)
    dist.barrier(group)


def timeouts(rank, group):
    """An empty queue, a full one, and one that is shut down."""
    lines = []
    shm_broadcast.logger.info = lambda text, *values: lines.append(text % values)
    shm_broadcast.VLLM_RINGBUFFER_WARNING_INTERVAL = 0.2
    sys.modules["shmring.vllm.queue"].logger.info = shm_broadcast.logger.info
    queue = queue_of(group)
    if rank != WRITER:
        with pytest.raises(TimeoutError):
            queue.dequeue(timeout=0)
        with pytest.raises(TimeoutError):
            queue.dequeue(timeout=0.1, indefinite=True)
        assert lines == []
        with pytest.raises(TimeoutError):
            queue.dequeue(timeout=0.5)
        assert "No available shared memory broadcast block found in 0 seconds" in lines[0]
        sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        with pytest.raises(TimeoutError):
            queue.dequeue(timeout=2)
        assert 0 < resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - sleeps < 40  # one for each 0.1 s; it was 85
    dist.barrier(group)
    if rank == WRITER:
        with pytest.raises(TimeoutError):
            for _ in range(1000):
                queue.enqueue(bytes(1 << 20), timeout=0.1)
        dist.barrier(group)
        dist.barrier(group)
        return
    dist.barrier(group)  # full
    with pytest.raises(TimeoutError):
        while True:
            assert queue.dequeue(timeout=0.1) == bytes(1 << 20)
    waiting = threading.Timer(0.3, queue.shutdown)
    waiting.start()
    with pytest.raises(RuntimeError, match="cancelled"):
        queue.dequeue(indefinite=True)
    waiting.join()
    dist.barrier(group)


def dead_writer(rank, group):
    queue = queue_of(group)
    pids = [None] * dist.get_world_size(group)
    dist.all_gather_object(pids, os.getpid(), group)
    if rank == WRITER:
        queue.enqueue("last")
        os.kill(os.getpid(), signal.SIGKILL)
    assert queue.dequeue() == "last"
    with pytest.raises(shmring.PeerLostError, match=str(pids[WRITER])):
        queue.dequeue(indefinite=True)


def dead_reader(rank, group):
    queue = queue_of(group)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == WRITER:
        with pytest.raises(shmring.PeerLostError, match="reader 0 of this queue, process") as caught:
            while True:
                queue.enqueue(bytes(1000))
        assert caught.value.rank == 0
    else:
        with pytest.raises((shmring.PeerLostError, shmring.EndOfStreamError)):
            while True:
                queue.dequeue()


class LateSender:
    """A sender that returns when its readers have gone."""

    def __init__(self, sender):
        self._sender = sender

    @property
    def receivers(self):
        return self._sender.receivers

    def send_object(self, *args):
        self._sender.send_object(*args)
        while any(reader.state != "lost" for reader in self.receivers):
            time.sleep(0.001)
        return 0


def late_reader():
    """A reader that never comes is an error of the writer, and of the readers that have come; no process waits on."""
    module = sys.modules["shmring.vllm.queue"]
    limit, module.READY_S = module.READY_S, 0.5
    queue = MessageQueue(2, 2)
    reader = MessageQueue.create_from_handle(queue.handle, 0)
    with pytest.raises(shmring.RendezvousTimeoutError, match="readers 1 of this queue") as caught:
        queue.wait_until_ready()
    assert caught.value.missing == (1,)
    module.READY_S = limit
    with pytest.raises(shmring.RendezvousError, match="given up"):
        reader.wait_until_ready()
    module.READY_S, queue = 0.5, MessageQueue(1, 1)
    reader = MessageQueue.create_from_handle(queue.handle, 0)
    with pytest.raises(shmring.RendezvousTimeoutError, match="or the writer"):
        reader.wait_until_ready()
    interrupted = MessageQueue(1, 1)
    interrupted._sender = None  # whatever the error is
    with pytest.raises(AttributeError):
        interrupted.wait_until_ready()
    assert interrupted._memory.attached


def too_long_to_go_at_once():
    """Without time for it, an item that is longer than the ring is late."""
    queue = MessageQueue(1, 1)
    reader = MessageQueue.create_from_handle(queue.handle, 0)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            queue.enqueue(bytes(40 << 20), timeout=0)
    queue.enqueue("short", timeout=0)
    assert reader.dequeue(timeout=60) == "short"


def dead_after_the_last(rank, group):
    """Readers that end with an item are an error of the next one only."""
    queue = queue_of(group)
    if rank != WRITER:
        assert queue.dequeue() == "last"
        os._exit(0)
    queue._sender = LateSender(queue._sender)
    queue.enqueue("last")
    with pytest.raises(shmring.PeerLostError, match="reader 0 of this queue, process"):
        queue.enqueue("more")


def remote():
    """A queue with a reader on another machine stays vLLM's."""
    assert is_ours(MessageQueue(1, 1))
    assert not is_ours(MessageQueue(2, 1))


def dropped():
    """A queue that no reader has come to takes its name with it, and no interrupt is lost meanwhile."""
    lost = []
    sys.unraisablehook = lost.append
    for nth in itertools.count(1):
        queues = [MessageQueue(1, 1)]
        assert is_ours(queues[0])
        if not interrupt_at_line(queues.clear, nth):
            break
    assert lost == []


def in_process(rank, n, case, place):
    if case == "stateless":
        group = StatelessProcessGroup.create("127.0.0.1", int(place), rank, n)
        queue = queue_of(group)
        assert is_ours(queue)
        assert queue.broadcast_object("x" if rank == WRITER else None) == "x"
        group.barrier()
        print("all as wanted", flush=True)
        return
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=n)
    globals()[case](rank, dist.group.WORLD)
    print("all as wanted", flush=True)
    if not case.startswith("dead"):
        dist.barrier()
    os._exit(0) if case.startswith("dead") else dist.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main(case, n):
    before = names()
    if case in ("dropped", "remote", "late_reader", "too_long_to_go_at_once"):
        globals()[case]()
        gc.collect()  # errors keep the frames that have queues
        assert [name for name in names() if name not in before] == []
        print("all as wanted")
        return 0
    folder = tempfile.mkdtemp(prefix="shmring-vllm-", dir=os.getcwd())
    place = str(free_port()) if case == "stateless" else f"{folder}/store"
    processes = [CONTEXT.Process(target=in_process, args=(rank, n, case, place)) for rank in range(n)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [name for name in names() if name not in before] == []
    killed = {"dead_writer": WRITER, "dead_reader": 0}.get(case)
    return [process.exitcode for process in processes] != [-9 if rank == killed else 0 for rank in range(n)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
