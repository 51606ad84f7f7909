"""Threads that use one object at once: with the GIL and without, the same answers, or the documented errors."""

import contextlib
import itertools
import queue
import random
import threading

import numpy as np
import pytest
from support.on_ranks import on_ranks
from support.threads import at_once

import shmring
from shmring.ring import Consumer, Producer, format_ring, ring_nbytes

NTHREADS = 4


@contextlib.contextmanager
def unless(kind, text):
    """Do the block unless this error comes, which a thread gets where another one was before it."""
    try:
        yield
    except kind as error:
        if text not in str(error):
            raise


@pytest.mark.parametrize(("count", "elements"), [(300, 8), (20, 1 << 16)])
@on_ranks(2)
def test_threads_that_make_the_same_calls_at_once_get_exact_sums(comm, count, elements):
    def calls():
        for _ in range(count):
            x = np.arange(elements, dtype=np.int64)
            comm.all_reduce(x)
            assert np.array_equal(x, comm.size * np.arange(elements))

    at_once(*[calls] * NTHREADS)


@on_ranks(2)
def test_plans_are_made_while_others_run(comm):
    """Sizes that are new: each thread compiles plans, and prepares calls, while others execute theirs."""
    moment = random.Random(comm.rank)

    def calls():
        for size in range(1, 13):
            x = np.ones(size << 12, np.float32)
            plan = comm.plan("all_reduce", np.ones(moment.randrange(1 << 13, 1 << 16), np.float32))
            comm.all_reduce(x)
            assert (x == comm.size).all()
            assert "all_reduce" in plan.describe()
            comm.stats()

    # One thread makes the calls, so that all ranks make them in one order; the others only prepare.
    def prepare():
        for size in range(1, 25):
            comm.plan("all_reduce", np.ones(size << 10, np.float32)).describe()
            comm.stats()

    at_once(calls, *[prepare] * (NTHREADS - 1))


@on_ranks(2)
def test_messages_of_many_threads_arrive_in_order_by_tag_and_each_callback_is_called_once(comm):
    """A thread for each tag sends, another one receives; callbacks of requests are counted."""
    count = 60
    other, called = 1 - comm.rank, []

    def send(tag):
        for number in range(count):
            x = np.full(1 + number % 700, number * NTHREADS + tag)
            if number % 3:
                comm.send(x, other, tag=tag)
            else:
                request = comm.isend(x, other, tag=tag)
                request.add_done_callback(called.append)
                request.wait()

    def receive(tag):
        for number in range(count):
            x = np.zeros(1 + number % 700, np.int64)
            request = comm.irecv(x, other, tag=tag)
            request.add_done_callback(called.append)
            if number % 2:
                request.wait()
            while not request.done():
                pass
            assert (x == number * NTHREADS + tag).all()

    at_once(*[lambda t=t: send(t) for t in range(NTHREADS)], *[lambda t=t: receive(t) for t in range(NTHREADS)])
    comm.barrier()
    assert len(called) == NTHREADS * (count + len(range(0, count, 3)))


@on_ranks(2)
def test_many_threads_wait_for_one_request(comm):
    count = 50
    for number in range(count):
        x, got, called = np.zeros(3), [], []
        if comm.rank == 0:
            request = comm.irecv(x, 1)

            def wait(request=request, got=got, called=called):
                request.add_done_callback(called.append)
                got.append(request.wait())

            at_once(*[wait] * NTHREADS, lambda: comm.send_object("go", 1))
            assert [message.nbytes for message in got] == [24] * NTHREADS
            assert called == [request] * NTHREADS
            assert (x == number).all()
        else:
            comm.recv_object(0)
            comm.send(np.full(3, float(number)), 0)


@on_ranks(2)
def test_shared_arrays_are_made_and_dropped_while_others_are_used(comm):
    count = 100
    x = comm.empty(1 << 16, np.int64)

    def take():
        for _ in range(count):
            view = comm.shared_view(x, 1 - comm.rank)
            assert view.nbytes == x.nbytes
            del view

    def make():  # one thread of each rank: collectives
        for number in range(count // 10):
            more = comm.empty(1 << 14, np.int64)
            more[:] = number
            dropped = threading.Thread(target=lambda more=more: more.sum())
            dropped.start()
            x[:] = number
            comm.all_reduce(x)
            assert (x == number * comm.size).all()
            del more
            dropped.join()

    at_once(make, *[take] * (NTHREADS - 1))


# ---- channels ----------------------------------------------------------------------------------------------------


def test_threads_that_are_the_first_to_use_an_end_refuse_each_other_too():
    """One takes the end while the others wait to take it, and is in a call when they go on."""
    message = np.arange(8 << 10)
    for _ in range(50):
        sender, receiver = shmring.channel(1 << 20)
        for _ in range(8):
            sender.send(message)
        got = []

        def receive(receiver=receiver, got=got):
            for _ in range(8):
                with unless(RuntimeError, "another thread is in a call"), contextlib.suppress(queue.Empty):
                    got.append(receiver.recv(0))

        at_once(*[receive] * NTHREADS)
        assert all(np.array_equal(one, message) for one in got)
        sender.close()
        receiver.close()


def test_an_end_takes_one_thread_at_a_time_and_refuses_the_others():
    """What a call reports as sent arrives, once, whole and in the order of its thread; nothing else arrives."""
    sender, receiver = shmring.channel(1 << 14)
    sent, got, done = [[] for _ in range(NTHREADS)], [], threading.Event()

    def send(thread):
        for number in range(300):
            message = np.full(1 + number * 37 % 900, thread * 1000 + number)
            with unless(RuntimeError, "another thread is in a call"):
                if sender.try_send(message):
                    sent[thread].append(thread * 1000 + number)

    def send_all():
        try:
            at_once(*[lambda t=t: send(t) for t in range(NTHREADS)])
        finally:
            done.set()

    def receive():
        while True:
            is_last = done.is_set()  # before the look, which then finds all that was sent
            try:
                with unless(RuntimeError, "another thread is in a call"):
                    message = receiver.recv(timeout=0.1)
                    assert (message == message[0]).all()
                    got.append(int(message[0]))
            except queue.Empty:
                if is_last:
                    return

    at_once(send_all, receive, receive)
    assert sorted(got) == sorted(itertools.chain(*sent))
    assert sender.sent_count == len(got) == receiver.received_count
    sender.close(), receiver.close()


def test_the_ends_of_a_ring_keep_their_counts():
    memory = bytearray(ring_nbytes(64, 8))
    format_ring(memory, 64, 8)
    producer, consumer, pushed, popped = Producer(memory), Consumer(memory), [], []

    def push(thread):
        for number in range(500):
            if producer.try_push((thread << 32 | number).to_bytes(8, "little")):
                pushed.append(thread << 32 | number)

    done = threading.Event()

    def pop():
        out = bytearray(8)
        while True:
            is_last = done.is_set()  # before the look, which then finds all that was pushed
            if consumer.try_pop(out):
                popped.append(int.from_bytes(out, "little"))
            elif is_last:
                return

    def push_all():
        at_once(*[lambda t=t: push(t) for t in range(1, NTHREADS)])
        done.set()

    at_once(push_all, pop, pop)
    assert sorted(popped) == sorted(pushed)
    producer.close(), consumer.close()


def test_a_lease_ends_only_without_arrays_whatever_threads_take_them():
    sender, receiver = shmring.channel(1 << 16)
    for number in range(100):
        lease = sender.reserve(100, np.int64)

        def write(lease=lease, number=number):
            with unless(ValueError, "this lease is over"):
                lease.array[:] = number

        def commit(lease=lease):
            while not lease.over:
                with contextlib.suppress(BufferError):
                    sender.commit()

        lease[...] = number
        at_once(*[write] * 3, commit)
        assert (receiver.recv() == number).all()
    sender.close(), receiver.close()


def test_a_queue_carries_what_the_threads_of_one_process_put_and_get():
    items, got = shmring.Queue(capacity_nbytes=1 << 14), []

    def put(thread):
        for number in range(200):
            items.put((thread, number))

    def get():
        got.extend(items.get() for _ in range(200))

    at_once(*[lambda t=t: put(t) for t in range(NTHREADS)], *[get] * NTHREADS)
    assert sorted(got) == [(thread, number) for thread in range(NTHREADS) for number in range(200)]
    items.close()
