"""Ends without a constructor, with bad arguments, or with memory that is none: errors, never a crash."""

import numpy as np
import pytest

import shmring
from shmring import SegmentError
from shmring.channels.broadcast import BroadcastMemory
from shmring.channels.memory import ChannelMemory

ENDS = [shmring.Sender, shmring.Receiver, shmring.RecordSender, shmring.RecordReceiver]
ENDS_OF_MANY = [shmring.FanInReceiver]


@pytest.mark.parametrize("kind", ENDS + ENDS_OF_MANY)
def test_an_end_cannot_be_made_without_its_memory(kind):
    sender, _ = shmring.channel()
    for arguments in ((), (None,), (None, "sender"), (object(), "receiver"), (sender._channel, None)):
        with pytest.raises(TypeError):
            kind(*arguments)
        with pytest.raises(TypeError):
            kind.__new__(kind, *arguments)


@pytest.mark.parametrize("kind", ENDS)
def test_an_end_has_one_of_two_roles(kind):
    sender, _ = shmring.channel()
    with pytest.raises(TypeError, match="'observer'"):
        kind(sender._channel, "observer")


def test_a_channel_whose_memory_has_no_room_for_a_ring_is_refused():
    sender, _ = shmring.channel()

    class Truncated(ChannelMemory):
        ring_offset = sender._channel.mapping.nbytes - 64

    with pytest.raises(SegmentError, match="no ring"):
        shmring.Sender(Truncated(sender._channel.memory), "sender")


@pytest.mark.parametrize("layout", [0, 1 << 40 | 2, 2])
def test_a_header_with_an_impossible_number_of_receivers_is_refused(layout):
    sender, _ = shmring.broadcast_channel(2)
    memory = sender._channel.memory
    memory.header = memory.header._replace(params=(*memory.header.params[:2], layout, memory.header.params[3]))
    with pytest.raises(SegmentError, match="receivers"):
        BroadcastMemory(memory, 0)


def test_records_cannot_be_sub_arrays():
    with pytest.raises(TypeError, match="sub-array"):
        shmring.channel(dtype=("i4", (3,)))
    sender, receiver = shmring.channel(dtype=[("all", "i4", (3,))])
    sender.send(([1, 2, 3],))
    assert receiver.recv()["all"].tolist() == [1, 2, 3]


# ---- broadcast ----


@pytest.mark.parametrize(("offset", "value"), [(0, 0), (16, 1), (16, 16), (24, 0), (24, 2), (24, 1 << 32)])
def test_a_ring_that_is_not_as_its_channel_says_is_attached_by_no_end(offset, value):
    """Magic number, slots of another size, another number of receivers than the memory has room for."""
    sender, receivers = shmring.broadcast_channel(3)
    with memoryview(sender._channel.mapping)[sender._channel.ring_offset :] as ring:
        ring[offset : offset + 8] = value.to_bytes(8, "little")
    ends = [receivers[2]] if (offset, value) == (24, 2) else [sender, *receivers]
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


@pytest.mark.parametrize(
    "make",
    [lambda: shmring.channel()[0], lambda: shmring.fan_in(1)[0][0], lambda: shmring.broadcast_channel(1)[0]],
    ids=["channel", "fan-in", "broadcast"],
)
def test_the_setting_decides_where_a_call_has_no_argument(make, monkeypatch):
    monkeypatch.setenv("SHMRING_ALLOW_PICKLE", "0")
    with pytest.raises(ValueError, match="allow_pickle"):
        make().send_object({})


def test_an_argument_allows_pickle_though_the_setting_does_not(monkeypatch):
    sender = shmring.open_channel("own word", "sender")
    monkeypatch.setenv("SHMRING_ALLOW_PICKLE", "0")
    with sender, shmring.open_channel("own word", "receiver", allow_pickle=True) as receiver:
        sender.send_object({})
        assert receiver.recv() == {}
