"""Queues, ends and newest values reach other processes by any way in which an object does."""

from concurrent.futures import ProcessPoolExecutor

import pytest

import shmring
import shmring.multiprocessing

SPAWN = shmring.multiprocessing.get_context("spawn")


def answer(way, x):
    """What another process does with what it was passed."""
    if isinstance(way, shmring.Queue):
        way.put(x)
    elif isinstance(way, shmring.Latest):
        way.write(bytes([x]))
    else:
        with way:
            way.send(bytes([x]))


def queue():
    q = shmring.Queue()
    return q, q.get


def end_of_a_channel():
    sender, receiver = shmring.channel(4096)
    return sender, lambda: receiver.recv()[0]


def newest_value():
    latest = shmring.Latest(64)
    return latest, lambda: latest.read()[0]


def through_pool(way):
    with SPAWN.Pool(1) as pool:
        pool.apply(answer, (way, 7))


def through_executor(way):
    with ProcessPoolExecutor(1, mp_context=SPAWN) as executor:
        executor.submit(answer, way, 7).result()


def sent_to_a_process(way, send, take):
    process = SPAWN.Process(target=answer_next, args=(take,))
    process.start()
    send((way, 7))
    process.join()
    assert process.exitcode == 0


def answer_next(take):
    answer(*take())


def through_queue(way):
    jobs = shmring.Queue()
    sent_to_a_process(way, jobs.put, jobs.get)


def through_channel(way):
    sender, receiver = shmring.channel(1 << 16)
    sent_to_a_process(way, sender.send_object, receiver.recv)


@pytest.mark.sample(4)
@pytest.mark.leaks  # the thread of the standard library that serves descriptors
@pytest.mark.parametrize("make", [queue, end_of_a_channel, newest_value])
@pytest.mark.parametrize("carry", [through_pool, through_executor, through_queue, through_channel])
def test_it_works_where_it_arrives(make, carry):
    way, result = make()
    carry(way)
    assert result() == 7
