"""Ends without a constructor, with bad arguments, or with memory that is none: errors, never a crash."""

import numpy as np
import pytest

import shmring
from shmring import ObjectError, SegmentError
from shmring.channels.memory import ChannelMemory
from shmring.channels.multi_ring import RingSet

ENDS = [shmring.Sender, shmring.Receiver, shmring.RecordSender, shmring.RecordReceiver]
ENDS_OF_MANY = [shmring.FanInReceiver]


@pytest.mark.parametrize("kind", ENDS + ENDS_OF_MANY)
def test_an_end_cannot_be_made_without_its_memory(kind):
    sender, _ = shmring.channel()
    for arguments in ((), (None,), (None, "sender"), (object(), "receiver"), (sender.channel, None)):
        with pytest.raises(TypeError):
            kind(*arguments)
        with pytest.raises(TypeError):
            kind.__new__(kind, *arguments)


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_has_one_of_two_roles(kind):
    sender, _ = shmring.channel()
    with pytest.raises(TypeError, match="'observer'"):
        kind(sender.channel, "observer")


def test_a_channel_whose_memory_has_no_room_for_a_ring_is_refused():
    sender, _ = shmring.channel()

    class Truncated(ChannelMemory):
        ring_offset = sender.channel.mapping.nbytes - 64

    with pytest.raises(SegmentError, match="no ring"):
        shmring.Sender(Truncated(sender.channel.memory), "sender")


@pytest.mark.parametrize("layout", [0, 1 << 40 | 1, 1 << 40 | 2, 1, 2])
def test_a_header_with_an_impossible_number_of_rings_is_refused(layout):
    senders, _ = shmring.fan_in(2)
    memory = senders[0].channel.memory
    memory.header = memory.header._replace(params=(*memory.header.params[:2], layout, memory.header.params[3]))
    with pytest.raises(SegmentError, match="rings"):
        RingSet(memory)


def test_records_cannot_be_sub_arrays():
    with pytest.raises(TypeError, match="sub-array"):
        shmring.channel(dtype=("i4", (3,)))
    sender, receiver = shmring.channel(dtype=[("all", "i4", (3,))])
    sender.send(([1, 2, 3],))
    assert receiver.recv()["all"].tolist() == [1, 2, 3]


# ---- broadcast ----


@pytest.mark.parametrize(("offset", "value"), [(0, 0), (16, 1), (16, 16), (32, 0), (32, 2), (32, 1 << 32)])
def test_a_ring_that_is_not_as_its_channel_says_is_attached_by_no_end(offset, value):
    """Magic number, slots of another size, another number of receivers than the memory has room for."""
    sender, receivers = shmring.broadcast_channel(3)
    with memoryview(sender.channel.mapping)[sender.channel.ring_offset :] as ring:
        ring[offset : offset + 8] = value.to_bytes(8, "little")
    ends = [receivers[2]] if (offset, value) == (32, 2) else [sender, *receivers]
    for end in ends:
        with pytest.raises(SegmentError, match="no ring"):
            end.take()


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (40, 2, 5)])
def test_records_of_any_shape_are_broadcast_in_the_order_of_their_elements(shape):
    sender, receivers = shmring.broadcast_channel(2, 64, dtype="i8")  # 8 records
    records = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    done, got = 0, [[], []]
    while done < records.size:
        done += sender.send_many(records.reshape(-1)[done:] if done else records, 0)
        for receiver, mine in zip(receivers, got, strict=True):
            mine.extend(receiver.recv_many())
    assert got == [records.reshape(-1).tolist()] * 2


def test_one_record_is_one():
    sender, receivers = shmring.broadcast_channel(1, dtype="i8")
    for call in (sender.send, sender.try_send):
        with pytest.raises(ValueError, match="3 records"):
            call([1, 2, 3])
    sender.send(4)
    assert receivers[0].recv() == 4


# ---- each end's own allow_pickle ----


def test_a_receiver_that_allows_no_pickle_unpickles_nothing_whatever_the_sender_sends():
    sender = shmring.open_channel("own word", "sender", allow_pickle=True)
    receiver = shmring.open_channel("own word", "receiver", allow_pickle=False)
    sender.send_object({})
    sender.send(b"bytes")
    with pytest.raises(ObjectError, match="allow_pickle"):
        receiver.recv()
    assert receiver.recv() == b"bytes"
    receiver.close()
    sender.close()


def test_the_setting_decides_where_a_call_has_no_argument(monkeypatch):
    sender = shmring.open_channel("own word", "sender")
    monkeypatch.setenv("SHMRING_ALLOW_PICKLE", "0")
    receiver = shmring.open_channel("own word", "receiver")
    sender.send_object({})
    with pytest.raises(ObjectError, match="allow_pickle"):
        receiver.recv()
    receiver.close()
    receiver = shmring.open_channel("own word", "receiver", allow_pickle=True)
    sender.send_object({})
    assert receiver.recv() == {}
    for make in (
        lambda: shmring.channel()[0],
        lambda: shmring.fan_in(1)[0][0],
        lambda: shmring.broadcast_channel(1)[0],
    ):
        with pytest.raises(ValueError, match="allow_pickle"):
            make().send_object({})
    receiver.close()
    sender.close()


# ---- timeouts ----


@pytest.mark.parametrize("bad", [-1, float("nan"), -float("inf"), -(2**70), "1"])
def test_timeouts_that_are_none(bad):
    sender, receiver = shmring.channel(64)
    _fan_senders, fan_receiver = shmring.fan_in(1, 64)
    broadcast, receivers = shmring.broadcast_channel(1, 64)
    for call in (
        receiver.recv, receiver.poll, fan_receiver.recv, fan_receiver.recv_from, fan_receiver.next_ready,
        fan_receiver.poll, lambda timeout: broadcast.send(b"x", timeout),
        lambda timeout: broadcast.send_many([b"x"], timeout), lambda timeout: broadcast.send_object({}, timeout),
        lambda timeout: broadcast.reserve(1, timeout=timeout), lambda timeout: sender.send(b"x", timeout),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match="timeout"):
            call(timeout=bad)
    assert [len(end) for end in (receiver, fan_receiver, receivers[0])] == [0, 0, 0]


@pytest.mark.parametrize("timeout", [None, float("inf"), 2**70, 1e300])
def test_timeouts_without_a_limit(timeout):
    sender, receiver = shmring.channel()
    fan_senders, fan_receiver = shmring.fan_in(1)
    broadcast, receivers = shmring.broadcast_channel(1)
    sender.send(b"x", timeout)
    fan_senders[0].send(b"x", timeout)
    broadcast.send(b"x", timeout)
    for end in (receiver, fan_receiver, receivers[0]):
        assert end.poll(timeout)
        assert end.recv(timeout) == b"x"
