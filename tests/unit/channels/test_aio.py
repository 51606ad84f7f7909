"""Ends in event loops and in select: awaited without a busy loop, cancelled without a loss, closed while awaited."""

import asyncio
import gc
import os
import queue
import random
import select
import signal
import threading
import time

import numpy as np
import pytest
from support.children import in_child, status_of
from support.emulation import needs_address_limit
from support.harness import PATIENCE, eventually
from support.programs import run_python
from support.threads import beside

import shmring
from shmring import ClosedError, EndOfStreamError, PeerLostError


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

    async def send_all():
        with sender:  # the other end raises if this one fails
            for i in range(count):
                await sender.send_async(i.to_bytes(4, "little") * (nbytes // 4))
            await sender.send_object_async("end")

    async def receive_all():
        for i in range(count):
            assert await receiver.recv_async() == i.to_bytes(4, "little") * (nbytes // 4)
        assert await receiver.recv_async() == "end"

    thread = threading.Thread(target=asyncio.run, args=(send_all(),))
    thread.start()
    asyncio.run(receive_all())
    thread.join()
    sender.close()
    receiver.close()


def test_both_ends_in_one_loop():
    sender, receiver = shmring.channel(1 << 10)

    async def main():
        sending = asyncio.create_task(send_all())
        assert [await receiver.recv_async() for _ in range(50)] == [bytes(5000)] * 50
        await sending

    async def send_all():
        for _ in range(50):
            await sender.send_async(bytes(5000))

    asyncio.run(main())
    sender.close()
    receiver.close()


def test_records_are_awaited():
    sender, receiver = shmring.channel(1 << 10, dtype="i8")

    async def main():
        sending = asyncio.create_task(sender.send_async(np.arange(10_000)))
        got = []
        while len(got) < 10_000:
            got.extend(await receiver.recv_async(1000))
        assert got == list(range(10_000))
        assert await sending == 10_000

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


def test_the_end_of_the_stream_and_death_are_reported():
    sender, receiver = shmring.channel()
    sender.take()
    with beside(lambda: (time.sleep(0.05), sender.close())):  # joined before the fork
        with pytest.raises(EndOfStreamError):
            asyncio.run(receiver.recv_async())
    receiver.close()
    sender, receiver = shmring.channel()
    pid = in_child(lambda: (sender.send(b"last"), signal.pause()))

    async def main():
        assert await receiver.recv_async() == b"last"
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PeerLostError):
            await receiver.recv_async()

    asyncio.run(main())
    status_of(pid)
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


SOON_S = 60 * PATIENCE  # a limit where something comes at once


def is_readable(end, seconds=0.0):
    """Whether select finds it readable."""
    return bool(select.select([end], [], [], seconds)[0])


def test_the_descriptor_is_readable_when_there_is_something():
    sender, receiver = shmring.channel()
    assert receiver.try_recv() is None if is_readable(receiver) else True
    assert not is_readable(receiver, 0.05)
    sender.send(b"1")
    sender.send(b"2")
    assert is_readable(receiver, SOON_S)
    assert receiver.recv() == b"1"
    assert is_readable(receiver)
    assert receiver.recv() == b"2"
    assert receiver.try_recv() is None
    assert not is_readable(receiver, 0.05)
    with beside(lambda: (time.sleep(0.05), sender.send(b"3"))):
        assert is_readable(receiver, SOON_S)
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
        with beside(lambda: (time.sleep(0.002), sender.send(bytes(5000)))):
            if i % 2:
                assert is_readable(receiver, SOON_S)
            assert receiver.recv(SOON_S) == bytes(5000)
    receiver.close()


def test_the_descriptor_of_a_sender_is_readable_when_there_is_room():
    sender, receiver = shmring.channel(1 << 10)
    sender.fileno()
    sent = 0
    while sender.try_send(bytes(100)):
        sent += 1
    assert not is_readable(sender, 0.05)
    receiver.recv()
    assert is_readable(sender, SOON_S)
    assert sender.try_send(bytes(100))
    assert not sender.try_send(bytes(400))
    assert not is_readable(sender, 0.05)
    for _ in range(sent):
        receiver.recv()
    assert is_readable(sender, SOON_S)
    sender.close()


def assert_it_sleeps(wait):
    """A wait that is long enough to be measured takes no processor time; a busy loop takes all there is, each time.

    Whatever else the process does, or the machine counts as its time, only adds to that: one attempt shows it.
    """

    def attempt():
        began, used = time.monotonic(), time.process_time()
        wait()
        took, used = time.monotonic() - began, time.process_time() - used
        assert used < took / 2, f"{used:.4f} s of processor time in {took:.4f} s of waiting"

    eventually(attempt)


def test_awaiting_costs_no_processor_time():
    sender, receiver = shmring.channel()

    async def main(seconds):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receiver.recv_async(), seconds)

    asyncio.run(main(0.01))
    assert_it_sleeps(lambda: asyncio.run(main(0.4)))
    sender.close()
    receiver.close()


def test_waiting_costs_no_processor_time():
    sender, receiver = shmring.channel(64)

    def wait():
        while sender.try_send(b"12345678"):
            pass
        with pytest.raises(queue.Full):
            sender.send(b"12345678", 0.2)
        receiver.recv_many()
        with pytest.raises(queue.Empty):
            receiver.recv(0.2)

    assert_it_sleeps(wait)
    sender.close()
    receiver.close()


# ---- ends that are closed, dropped or inherited while their descriptor is used ----


def test_a_task_that_awaits_a_closed_end_wakes():
    _, receiver = shmring.channel()
    _, fan_receiver = shmring.fan_in(2)
    sender, _ = shmring.channel(1 << 10)
    while sender.try_send(bytes(100)):
        pass

    async def main():
        for end, call in (
            (receiver, receiver.recv_async()),
            (fan_receiver, fan_receiver.recv_async()),
            (sender, sender.send_async(bytes(100))),
        ):
            waiting = asyncio.create_task(call)
            await asyncio.sleep(0.01)
            end.close()
            with pytest.raises(ClosedError):
                await waiting

    asyncio.run(main())


def test_a_cancelled_task_of_a_closed_end_leaves_other_descriptors_alone():
    _, receiver = shmring.channel()
    inbox, outbox = os.pipe()

    async def main():
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(receiver.recv_async())
        await asyncio.sleep(0.01)
        descriptor = receiver.fileno()
        receiver.close()
        os.dup2(inbox, descriptor)  # the number of the closed descriptor belongs to another file now
        came = asyncio.Event()
        loop.add_reader(descriptor, came.set)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        os.write(outbox, b"x")
        await asyncio.wait_for(came.wait(), SOON_S)
        loop.remove_reader(descriptor)
        os.close(descriptor)

    asyncio.run(main())
    os.close(inbox)
    os.close(outbox)


def threads():
    """Threads of this process, also those that are not Python's."""
    return set(os.listdir("/proc/self/task"))


def test_one_thread_waits_for_all_descriptors_of_a_process():
    def child():
        made = [shmring.channel() for _ in range(200)]  # more than the words of one sleep
        ends = [receiver for _, receiver in made]
        ends[0].poll()
        before = threads()
        for end in ends:
            end.fileno()
            assert not end.poll()
        assert len(threads() - before) == 1
        for i in range(0, 200, 9):
            made[i][0].send(b"x")
            assert select.select(ends, [], [], SOON_S)[0] == [ends[i]]
            assert ends[i].recv() == b"x"
            assert not ends[i].poll()
        assert len(threads() - before) == 1

    assert status_of(in_child(child)) == 0


def test_each_message_makes_its_descriptor_readable_whatever_the_thread_does(seed, monkeypatch):
    monkeypatch.setenv("SHMRING_TICK_MS", "60000")  # a lost wake-up is a hang
    made = [shmring.channel() for _ in range(5)]
    receivers = [receiver for _, receiver in made]
    poller = select.poll()
    for receiver in receivers:
        poller.register(receiver.fileno(), select.POLLIN)
        assert not receiver.poll()
    at = {receiver.fileno(): receiver for receiver in receivers}
    draws = random.Random(seed)

    def send_all():
        for _ in range(2000):
            for _ in range(draws.randrange(200)):
                pass
            draws.choice(made)[0].send(b"x")

    with beside(send_all):
        got = 0
        while got < 2000:
            for descriptor, _ in poller.poll():
                while at[descriptor].try_recv() is not None:
                    got += 1
    for end in (end for ends in made for end in ends):
        end.close()


def test_a_forked_child_has_descriptors_of_its_own():
    sender, receiver = shmring.channel()
    sender.take()
    receiver.fileno()
    assert receiver.try_recv() is None

    def child():
        theirs, ours = shmring.channel()
        assert not ours.poll()
        before = threads()
        ours.fileno()
        assert not ours.poll()
        assert len(threads() - before) == 1
        assert not is_readable(ours)
        theirs.send(b"1")
        assert is_readable(ours, SOON_S)

    assert status_of(in_child(child)) == 0
    assert not is_readable(receiver, 0.05)
    sender.send(b"2")
    assert is_readable(receiver, SOON_S)
    receiver.close()


def armed():
    """An end whose descriptor is used, and what must live as long."""
    others, end = shmring.channel()
    end.fileno()
    assert end.try_recv() is None
    return end, others


def test_an_end_with_a_descriptor_in_cyclic_garbage_leaves_the_thread_and_closes_its_descriptor():
    sender, kept = shmring.channel()
    kept.fileno()
    assert kept.try_recv() is None
    for _ in range(20):
        end, others = armed()
        descriptor = end.fileno()
        cycle = [end, others]
        cycle.append(cycle)
        del end, others, cycle
        gc.collect()
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(descriptor)
    sender.send(b"x")  # the thread goes on, in unmapped memory it would have died
    assert is_readable(kept, SOON_S)
    kept.close()


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_forked_child_closes_or_drops_an_end_whose_parent_uses_its_descriptor(leave):
    end, others = armed()

    def child():
        nonlocal end
        if leave == "close":
            end.close()
        del end

    assert status_of(in_child(child)) == 0
    others.send(b"x")
    assert is_readable(end, SOON_S)
    assert end.recv() == b"x"
    end.close()


WITHOUT_A_THREAD = """
import errno, resource, select, shmring
sender, receiver = shmring.channel()
assert receiver.try_recv() is None
receiver.fileno()
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (4096, limits[1]))
try:
    receiver.try_recv()
except OSError as error:
    failed = error.errno
resource.setrlimit(resource.RLIMIT_AS, limits)
assert failed in (errno.EAGAIN, errno.ENOMEM)
assert select.select([receiver], [], [], 0)[0]
sender.send(b"1")
assert receiver.recv(60) == b"1"
assert receiver.try_recv() is None
assert not select.select([receiver], [], [], 0.01)[0]
sender.send(b"2")
assert select.select([receiver], [], [], 60)[0]
receiver.close()
"""


@needs_address_limit
def test_a_thread_that_could_not_be_started_is_an_error_and_the_end_stays_usable():
    run_python("-c", WITHOUT_A_THREAD)  # a forked child would take the stack of a former thread


CLOSED_WHILE_POLLED = """
import sys, threading, shmring
def poll(sender, receiver):
    try:
        for _ in range(100):
            sender.try_send(b"x")
            receiver.try_recv()
            receiver.try_recv()
    except shmring.ClosedError:
        pass
sys.setswitchinterval(1000)  # the other thread gets its turn only while a call waits
for _ in range(20):
    sender, receiver = shmring.channel()
    receiver.fileno()
    poller = threading.Thread(target=poll, args=(sender, receiver))
    poller.start()
    receiver.close()
    poller.join()
"""


def test_an_end_with_a_descriptor_is_closed_while_another_thread_polls_it():
    run_python("-c", CLOSED_WHILE_POLLED)


PROGRAMS = {
    "fileno": "receiver.fileno(); receiver.try_recv()",
    "recv_async": "asyncio.run(asyncio.wait_for(receiver.recv_async(), 0.01))",
    "in a cycle": "receiver.fileno(); receiver.try_recv(); cycle = [receiver]; cycle.append(cycle)",
    "kept by C": "receiver.fileno(); receiver.try_recv(); ctypes.pythonapi.Py_IncRef(ctypes.py_object(receiver))",
}


@pytest.mark.parametrize("how", PROGRAMS)
def test_a_program_that_used_a_descriptor_and_does_not_close_ends(how):
    head = "import asyncio, contextlib, ctypes, shmring\nsender, receiver = shmring.channel()\n"
    program = f"{head}with contextlib.suppress(TimeoutError, asyncio.TimeoutError): {PROGRAMS[how]}\nprint('done')"
    assert run_python("-c", program) == "done\n"
