"""Ends in event loops and in select: awaited without a busy loop, cancelled without a loss, rung by whoever sends."""

import asyncio
import os
import queue
import select
import signal
import threading
import time

import numpy as np
import pytest

import shmring
from shmring import EndOfStreamError, PeerLostError


def test_messages_are_awaited():
    sender, receiver = shmring.channel()

    async def main():
        waiting = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0.02)
        assert not waiting.done()
        sender.send(np.arange(3))
        assert (await waiting).tolist() == [0, 1, 2]
        for i in range(100):
            sender.send_object(i)
        assert [await receiver.recv_async() for _ in range(100)] == list(range(100))

    asyncio.run(main())
    sender.close()
    receiver.close()


@pytest.mark.parametrize("nbytes", [8, 1000, 100_000])
def test_ends_in_two_threads_await_each_other_through_a_small_ring(nbytes):
    sender, receiver = shmring.channel(1 << 10)
    count = 300 if nbytes < 10_000 else 20

    async def speak():
        with sender:  # who fails is heard on the other side
            for i in range(count):
                await sender.send_async(i.to_bytes(4, "little") * (nbytes // 4))
            await sender.send_object_async("end")

    async def listen():
        for i in range(count):
            assert await receiver.recv_async() == i.to_bytes(4, "little") * (nbytes // 4)
        assert await receiver.recv_async() == "end"

    thread = threading.Thread(target=asyncio.run, args=(speak(),))
    thread.start()
    asyncio.run(listen())
    thread.join()
    sender.close()
    receiver.close()


def test_both_ends_in_one_loop():
    sender, receiver = shmring.channel(1 << 10)

    async def main():
        speaking = asyncio.create_task(speak())
        assert [await receiver.recv_async() for _ in range(50)] == [bytes(5000)] * 50
        await speaking

    async def speak():
        for _ in range(50):
            await sender.send_async(bytes(5000))

    asyncio.run(main())
    sender.close()
    receiver.close()


def test_records_are_awaited():
    sender, receiver = shmring.channel(1 << 10, dtype="i8")

    async def main():
        speaking = asyncio.create_task(sender.send_async(np.arange(10_000)))
        got = []
        while len(got) < 10_000:
            got.extend(await receiver.recv_async(1000))
        assert got == list(range(10_000))
        assert await speaking == 10_000

    asyncio.run(main())
    sender.close()
    receiver.close()


def test_a_cancelled_receive_has_lost_nothing_and_a_cancelled_send_has_sent_nothing():
    sender, receiver = shmring.channel(1 << 10)

    async def main():
        for i in range(30):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(receiver.recv_async(), 0.002)
            sender.send_object(i)
            assert await receiver.recv_async() == i
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sender.send_async(bytes(10_000)), 0.02)  # some of it has gone out
        with pytest.raises(queue.Empty):
            while True:
                receiver.recv(0)
        await sender.send_async(b"whole")
        assert await receiver.recv_async() == b"whole"

    asyncio.run(main())
    sender.close()
    receiver.close()


def test_the_end_of_the_stream_and_death_are_heard():
    sender, receiver = shmring.channel()
    sender.take()
    threading.Timer(0.05, sender.close).start()
    with pytest.raises(EndOfStreamError):
        asyncio.run(receiver.recv_async())
    receiver.close()
    sender, receiver = shmring.channel()
    pid = os.fork()
    if pid == 0:
        sender.send(b"last")
        signal.pause()

    async def main():
        assert await receiver.recv_async() == b"last"
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PeerLostError):
            await receiver.recv_async()

    asyncio.run(main())
    os.waitpid(pid, 0)
    receiver.close()


def test_a_fan_in_is_awaited():
    senders, receiver = shmring.fan_in(3)

    async def main():
        waiting = asyncio.create_task(receiver.recv_async())
        for i in (2, 0, 1):
            await asyncio.sleep(0.01)
            senders[i].send_object(i)
            assert await waiting == receiver.last_sender == i
            waiting = asyncio.create_task(receiver.recv_async())
            if i == 0:
                await asyncio.sleep(0.01)
                senders[0].close()
        await asyncio.sleep(0.01)
        for sender in senders[1:]:
            sender.close()
        with pytest.raises(EndOfStreamError):
            await waiting

    asyncio.run(main())
    receiver.close()


def test_two_tasks_cannot_await_one_end():
    sender, receiver = shmring.channel()

    async def main():
        first = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="another task"):
            await receiver.recv_async()
        sender.send(b"x")
        assert await first == b"x"

    asyncio.run(main())
    receiver.close()


def is_readable(end, seconds=0.0):
    """What select says."""
    return bool(select.select([end], [], [], seconds)[0])


def test_the_descriptor_is_readable_when_there_is_something():
    sender, receiver = shmring.channel()
    assert receiver.try_recv() is None if is_readable(receiver) else True
    assert not is_readable(receiver, 0.05)
    sender.send(b"1")
    sender.send(b"2")
    assert is_readable(receiver, 10)
    assert receiver.recv() == b"1"
    assert is_readable(receiver)
    assert receiver.recv() == b"2"
    assert receiver.try_recv() is None
    assert not is_readable(receiver, 0.05)
    threading.Timer(0.05, sender.send, (b"3",)).start()
    assert is_readable(receiver, 10)
    assert receiver.recv() == b"3"
    descriptor = receiver.fileno()
    receiver.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_calls_that_wait_and_the_descriptor_may_be_mixed():
    sender, receiver = shmring.channel(1 << 10)
    receiver.fileno()
    for i in range(50):
        assert receiver.try_recv() is None
        timer = threading.Timer(0.002, sender.send, (bytes(5000),))
        timer.start()
        if i % 2:
            assert is_readable(receiver, 10)
        assert receiver.recv(10) == bytes(5000)
        timer.join()
    receiver.close()


def test_the_descriptor_of_a_sender_says_when_there_is_room():
    sender, receiver = shmring.channel(1 << 10)
    sender.fileno()
    sent = 0
    while sender.try_send(bytes(100)):
        sent += 1
    assert not is_readable(sender, 0.05)
    receiver.recv()
    assert is_readable(sender, 10)
    assert sender.try_send(bytes(100))
    assert not sender.try_send(bytes(400))
    assert not is_readable(sender, 0.05)
    for _ in range(sent):
        receiver.recv()
    assert is_readable(sender, 10)
    sender.close()


def test_awaiting_costs_no_processor_time():
    sender, receiver = shmring.channel()

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receiver.recv_async(), 0.01)
        used = time.process_time()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receiver.recv_async(), 1.0)
        return time.process_time() - used

    used = asyncio.run(main())
    print(f"{used:.4f} s of processor time in a second of waiting")
    assert used < 0.5  # a busy loop takes all of it
    sender.close()
    receiver.close()


def test_waiting_costs_no_processor_time():
    sender, receiver = shmring.channel(64)
    while sender.try_send(b"12345678"):
        pass
    used = time.process_time()
    with pytest.raises(queue.Full):
        sender.send(b"12345678", 0.5)
    receiver.recv_many()
    with pytest.raises(queue.Empty):
        receiver.recv(0.5)
    used = time.process_time() - used
    print(f"{used:.4f} s of processor time in a second of waiting")
    assert used < 0.5  # a busy loop takes all of it
    sender.close()
    receiver.close()
