"""Queues that are awaited without being got from, receivers in event loops, and what a full queue reports."""

import asyncio
import multiprocessing.connection
import queue
import re
import threading

import numpy as np
import pytest
from support.children import in_child, status_of
from support.harness import eventually
from support.reading_ends import broadcast, channel, fan_in, shared_queue

import shmring
import shmring.multiprocessing
from shmring import ClosedError
from shmring.core.ring.inspect import look

pytestmark = pytest.mark.leaks  # threads of the event loop that put end a moment after it


def test_multiprocessing_waits_for_ends_too():
    send, end = channel()
    _other, idle = shared_queue()
    end.fileno()  # readable at first, until a call finds nothing
    assert not end.poll()
    send(b"x")
    assert multiprocessing.connection.wait([end, idle]) == [end]


# ---- queues ----


def test_a_queue_is_polled():
    one = shmring.Queue()
    assert not one.poll()
    assert not one.poll(0.01)
    thread = threading.Thread(target=lambda: (eventually(lambda: require_awaited(one)), one.put(1)))
    thread.start()
    assert one.poll(None)
    thread.join()
    assert one.poll()
    assert one.get() == 1
    one.close()
    with pytest.raises(ClosedError):
        one.poll()


def require_awaited(one):
    memory = one.__reduce__()[1][1]
    assert look(memoryview(memory.mapping)[memory.ring_offset :]).consumer.asleep


def test_the_descriptor_of_a_queue_is_readable_when_there_is_an_item():
    one = shmring.Queue()
    descriptor = one.fileno()
    assert one.fileno() == descriptor
    for item in range(3):
        assert multiprocessing.connection.wait([descriptor], 0) == []
        one.put(item)
        assert multiprocessing.connection.wait([descriptor]) == [descriptor]
        assert one.get_nowait() == item


def test_a_forked_child_waits_for_the_same_descriptor():
    one = shmring.Queue()
    one.fileno()

    def child():
        while not one.poll():
            assert multiprocessing.connection.wait([one]) == [one]
        assert one.get() == "for the child"

    pid = in_child(child)
    one.put("for the child")
    assert status_of(pid) == 0


def test_items_are_awaited_in_an_event_loop():
    one, back = shmring.Queue(), shmring.Queue(1)

    async def echo():
        for _ in range(20):
            await back.put_async(await one.get_async())

    async def main():
        task = asyncio.ensure_future(echo())
        for i in range(20):
            await asyncio.sleep(0)
            await one.put_async(np.full(3, i))
            assert (await back.get_async() == i).all()
        await task

    asyncio.run(main())


def test_a_long_item_is_put_in_an_event_loop():
    one = shmring.Queue(capacity_nbytes=1 << 12)

    async def main():
        content = bytes(range(256)) * 400
        _, got = await asyncio.gather(one.put_async(content), one.get_async())
        assert got == content

    asyncio.run(main())


def test_a_long_item_is_put_behind_another_one():
    one = shmring.Queue(capacity_nbytes=1 << 12)
    one.put("first")

    async def main():
        content = bytes(range(256)) * 400
        putting = asyncio.ensure_future(one.put_async(content))
        assert await one.get_async() == "first"
        assert await one.get_async() == content
        await putting

    asyncio.run(main())


async def cancelled(putting):
    """Let it wait for a second, and cancel it; it has ended then."""
    task = asyncio.ensure_future(putting)
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_put_puts_nothing_later():
    one = shmring.Queue(1)
    one.put("first")

    async def main():
        await cancelled(one.put_async("second"))
        assert await one.get_async() == "first"
        with pytest.raises(queue.Empty):
            await asyncio.to_thread(one.get, timeout=1)
        await one.put_async("third")

    asyncio.run(main())
    assert one.get() == "third"


def test_a_cancelled_put_of_a_long_item_puts_nothing():
    one = shmring.Queue(capacity_nbytes=1 << 12)

    async def main():
        await cancelled(one.put_async(bytes(1 << 20)))
        await one.put_async("next")
        assert await one.get_async() == "next"

    asyncio.run(main())


def test_a_program_that_is_cancelled_in_a_put_ends():
    one = shmring.Queue(1)
    one.put("first")

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one.put_async("second"), 1)

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncio")]
    assert one.qsize() == 1


def test_a_put_into_a_closed_queue_raises_in_an_event_loop():
    one = shmring.Queue()
    one.close()
    with pytest.raises(shmring.ClosedError):
        asyncio.run(one.put_async(1))


def test_several_tasks_await_items_of_one_queue():
    one = shmring.Queue()

    async def main():
        tasks = [asyncio.ensure_future(one.get_async()) for _ in range(5)]
        await asyncio.sleep(0)
        for i in range(5):
            await one.put_async(i)
        return await asyncio.gather(*tasks)

    assert sorted(asyncio.run(main())) == [0, 1, 2, 3, 4]


def test_a_get_that_is_cancelled_takes_nothing():
    one = shmring.Queue()

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one.get_async(), 0.01)

    asyncio.run(main())
    one.put("kept")
    assert one.get(timeout=30) == "kept"


@pytest.mark.parametrize("make", [channel, fan_in, broadcast])
def test_messages_are_iterated_over_in_an_event_loop(make):
    send, receiver = make()

    async def main():
        got = []
        send(b"0")
        send(b"1")
        async for message in receiver:
            got.append(message)
            if len(got) == 2:
                send.__self__.close()
        return got

    assert asyncio.run(main()) == [b"0", b"1"]


# ---- errors that say what there is no room for ----


def test_a_full_queue_says_how_many_bytes_it_has_and_what_the_item_needs():
    one = shmring.Queue(capacity_nbytes=1 << 12)
    one.put(bytes(2000))
    with pytest.raises(queue.Full, match=r"item of 2040 bytes: 1 items.* take 20\d\d of 4096 bytes.*capacity_nbytes"):
        one.put(bytes(2040), timeout=0.01)


def test_a_queue_with_as_many_items_as_allowed_says_so():
    one = shmring.Queue(1)
    one.put(0)
    with pytest.raises(queue.Full, match=r"there are 1 items.*maxsize=1"):
        one.put_nowait(1)


def test_a_full_channel_says_how_full_it_is():
    sender, _receiver = shmring.channel(1 << 10)
    with pytest.raises(queue.Full, match=rf"\d\d\d of {sender.capacity_nbytes} bytes"):
        while True:
            sender.send(bytes(500), 0)


@pytest.mark.parametrize("what", [{"a": 1}, [1, 2], None, 3, "text"])
@pytest.mark.parametrize("make", [shmring.channel, lambda: shmring.broadcast_channel(2)])
def test_sending_what_is_neither_bytes_nor_an_array_names_send_object(make, what):
    sender, _receiver = make()
    with pytest.raises(TypeError, match="send_object"):
        sender.send(what)


def test_a_sender_shows_how_full_its_channel_is():
    sender, _receiver = shmring.channel(1 << 10)
    sender.send(bytes(500))
    assert re.search(r"Sender of this channel, 5\d\d of 1024 bytes taken", repr(sender))


def test_the_default_queue_holds_what_its_page_says():
    numbers, large = shmring.Queue(), shmring.Queue()
    for i in range(180_000):
        numbers.put_nowait(i)
    for _ in range(7):
        large.put_nowait(bytes(1 << 20))
    with pytest.raises(queue.Full, match="larger capacity_nbytes"):
        large.put_nowait(bytes(1 << 20))
    assert [numbers.get_nowait() for _ in range(3)] == [0, 1, 2]


def test_a_program_that_fills_before_it_starts_its_workers_runs_with_the_queue_of_our_multiprocessing():
    tasks, results = shmring.multiprocessing.Queue(), shmring.multiprocessing.Queue()
    for i in range(40):
        tasks.put(bytes([i]) * (1 << 20))
    pid = in_child(lambda: [results.put(tasks.get()[0]) for _ in range(40)])
    assert [results.get(timeout=60) for _ in range(40)] == list(range(40))
    assert status_of(pid) == 0
    tasks.close()
    tasks.join_thread()
