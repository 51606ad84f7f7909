"""An end that sleeps is woken by the other one: with ticks of a minute no test here ends in time if a wake is lost."""

import pytest
from support.children import in_child, status_of
from support.harness import eventually
from support.reading_ends import ring_of

import shmring

WAITS = 24  # a waiter that has waited for long eight times sleeps at once, by its longest ticks (core/c/backoff.h)


@pytest.fixture(autouse=True)
def ticks_of_a_minute(monkeypatch):
    monkeypatch.setenv("SHMRING_TICK_MS", "60000")
    monkeypatch.setenv("SHMRING_SPIN_US", "0")


def assert_receiver_asleep(end):
    assert ring_of(end).consumer.asleep


def assert_sender_asleep(end):
    assert ring_of(end).producer.asleep


def channel():
    sender, receiver = shmring.channel(1 << 10)
    return sender, receiver, lambda content: content


def records():
    sender, receiver = shmring.channel(1 << 10, dtype="u1")
    return sender, receiver, lambda content: content[0]


def broadcast():
    sender, (receiver,) = shmring.broadcast_channel(1, 1 << 10)
    return sender, receiver, lambda content: content


@pytest.mark.parametrize("make", [channel, records, broadcast])
def test_each_message_wakes_a_receiver_that_sleeps(make):
    sender, receiver, packed = make()

    def receive():
        for number in range(WAITS):
            assert receiver.recv() == packed(bytes([number]))

    pid = in_child(receive)
    for number in range(WAITS):
        eventually(lambda: assert_receiver_asleep(sender))
        sender.send(packed(bytes([number])))
    assert status_of(pid) == 0


@pytest.mark.parametrize("make", [channel, broadcast])
def test_each_message_that_is_taken_wakes_a_sender_that_sleeps_for_room(make):
    sender, receiver, _ = make()
    messages = [bytes([number]) * 900 for number in range(WAITS)]

    def send():
        for message in messages:
            sender.send(message)

    pid = in_child(send)
    for message in messages[:-1]:
        eventually(lambda: assert_sender_asleep(receiver))
        assert receiver.recv() == message
    assert receiver.recv() == messages[-1]
    assert status_of(pid) == 0
