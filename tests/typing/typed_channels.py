"""Types of channels and queues: checked by mypy and pyright, never run. A line with an ignore must be an error."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import shmring


def ends() -> None:
    sender, receiver = shmring.channel(1 << 20, when_full="drop_newest")
    assert_type(sender, shmring.Sender)
    assert_type(receiver, shmring.Receiver)
    records, taken = shmring.channel(dtype=np.float32)
    assert_type(records, shmring.RecordSender)
    assert_type(taken, shmring.RecordReceiver)
    assert_type(taken.recv_many(), NDArray[Any])
    assert_type(shmring.open_channel("a", "sender"), shmring.Sender)
    assert_type(shmring.open_channel("a", "receiver", dtype="f4"), shmring.RecordReceiver)
    assert_type(shmring.broadcast_channel(2), tuple[shmring.Sender, list[shmring.Receiver]])
    assert_type(shmring.fan_in(2, dtype=[("a", "i4")]), tuple[list[shmring.RecordSender], shmring.FanInReceiver])
    shmring.channel(when_full="drop")  # type: ignore[call-overload]
    shmring.open_channel("a", "producer")  # type: ignore[call-overload]


def send(sender: shmring.Sender) -> None:
    sender.send(b"bytes")
    sender.send(np.zeros(3))
    sender.send_object({"a": 1})
    lease = sender.reserve((2, 3), np.float32)
    assert_type(lease.array, NDArray[Any])
    sender.send("text")  # type: ignore[arg-type]
    sender.send({"a": 1})  # type: ignore[arg-type]


def receive(receiver: shmring.Receiver[bytes]) -> None:
    assert_type(receiver.recv(), bytes)
    assert_type(receiver.recv_many(), list[bytes])
    assert_type(receiver.try_recv(), bytes | None)
    assert_type(receiver.try_recv(0), bytes | int)
    for message in receiver:
        assert_type(message, bytes)
    assert_type(shmring.wait([receiver], timeout=1), list[shmring.Receiver[bytes]])


async def receive_async(receiver: shmring.Receiver[bytes], queue: shmring.Queue[int]) -> None:
    assert_type(await receiver.recv_async(), bytes)
    assert_type(await queue.get_async(), int)
    await queue.put_async(1)
    async for message in receiver:
        assert_type(message, bytes)


def queues() -> None:
    queue: shmring.Queue[tuple[int, str]] = shmring.Queue(10)
    queue.put((1, "a"))
    assert_type(queue.get(timeout=1), tuple[int, str])
    assert_type(queue.get_nowait(), tuple[int, str])
    queue.put("a")  # type: ignore[arg-type]
    tasks = shmring.JoinableQueue[str]()
    assert_type(tasks.get(), str)
    tasks.put_nowait(1)  # type: ignore[arg-type]
    tasks.join()


def any_queue(queue: shmring.Queue) -> Any:
    return queue.get()


def latest(policy: shmring.Latest[NDArray[np.float32]]) -> None:
    assert_type(policy.read(), NDArray[np.float32])
    assert_type(policy.read_version(after=1), tuple[NDArray[np.float32], int])
    policy.write("a")  # type: ignore[arg-type]
