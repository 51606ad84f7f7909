"""Objects with tensors, from one process to another: our queue beside torch's own, which shares memory.

    python -m pytest bench/bench_tensors.py

Each round puts a list of new tensors into a queue, and another process gets it and answers. ``torch.multiprocessing``
moves every tensor into shared memory of its own and sends a descriptor, or a name, of it.
"""

import pytest
from sides import note

import shmring

torch = pytest.importorskip("torch")
pytest.importorskip("torch.multiprocessing")


def queue_of(way):
    if way == "shmring":
        return shmring.Queue(capacity_nbytes=64 << 20)
    torch.multiprocessing.set_sharing_strategy(way)
    return torch.multiprocessing.get_context("fork").SimpleQueue()


def answer(queue, sender):
    """Get each list; answer when its elements can be read."""
    with sender:
        while (tensors := queue.get()) is not None:
            sender.send(bytes(int(tensors[-1][0])))


@pytest.mark.parametrize(("count", "nbytes"), [(100, 64), (100, 12 << 10), (300, 1024), (1, 10 << 20)])
@pytest.mark.parametrize("way", ["shmring", "file_descriptor", "file_system"])
def test_a_list_of_tensors(child, benchmark, way, count, nbytes):
    """Through a queue, and an answer back."""
    queue, (sender, receiver) = queue_of(way), shmring.channel()
    child(answer, queue, sender)
    benchmark.group = f"{count} tensors of {nbytes} B"

    def fresh():
        return ([torch.ones(nbytes // 4) for _ in range(count)],), {}

    def pass_on(tensors):
        queue.put(tensors)
        receiver.recv()

    benchmark.pedantic(pass_on, setup=fresh, rounds=30, warmup_rounds=3)
    note(benchmark, nbytes, count)
    queue.put(None)
