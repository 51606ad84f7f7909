"""The ring: what its calls promise, and that nothing is ever lost, doubled, torn or out of order."""

import gc
import itertools
import mmap
import os
import pickle
import random
import signal
import struct
import sys
import threading
import time
import weakref
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import compiled
from support.children import in_child, status_of

import shmring
from shmring.core.memory.header import HEADER_NBYTES
from shmring.core.ring.inspect import look
from shmring.core.ring.spsc import CONTROL_NBYTES, HEAD_NBYTES
from shmring.errors import ClosedError, RoleTakenError, SegmentError
from shmring.ring import Consumer, Producer, format_ring, ring_nbytes

TAIL, HEAD = 128, CONTROL_NBYTES - HEAD_NBYTES  # where the counters lie in the control area
LAST = (1 << 64) - 1


def shared(nslots, slot_nbytes, start=0):
    memory = mmap.mmap(-1, ring_nbytes(nslots, slot_nbytes))
    format_ring(memory, nslots, slot_nbytes, start=start)
    return memory


def ends(nslots=4, slot_nbytes=8, start=0):
    memory = shared(nslots, slot_nbytes, start)
    return memory, Producer(memory), Consumer(memory)


def word(number):
    return struct.pack("<Q", number)


def pop(consumer):
    """The oldest slot; None if there is none, which leaves the buffer alone."""
    out = bytearray(b"\xa5" * consumer.slot_nbytes)
    if consumer.try_pop(out):
        return bytes(out)
    assert out == b"\xa5" * consumer.slot_nbytes
    return None


# ---- Pushing and popping ----


@pytest.mark.parametrize("slot_nbytes", [1, 3, 8, 64, 1000])
def test_any_slot_size_works(slot_nbytes):
    generator = random.Random(slot_nbytes)
    _, producer, consumer = ends(nslots=4, slot_nbytes=slot_nbytes)
    for _ in range(9):
        message = generator.randbytes(slot_nbytes)
        assert producer.try_push(message)
        assert pop(consumer) == message


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.float32)])
def test_what_has_the_bytes_can_be_pushed(make):
    _, producer, consumer = ends()
    assert producer.try_push(make(word(5)))
    assert pop(consumer) == word(5)


@pytest.mark.parametrize("make", [bytearray, lambda b: memoryview(bytearray(b)), lambda b: np.zeros(2, np.float32)])
def test_what_is_writable_can_be_popped_into(make):
    _, producer, consumer = ends()
    producer.try_push(word(5))
    out = make(bytes(8))
    assert consumer.try_pop(out)
    assert bytes(out) == word(5)


def test_arrays_of_extension_types_travel():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    _, producer, consumer = ends()
    sent, got = np.array([1, 2, 3, 4], bfloat16), np.zeros(4, bfloat16)
    assert producer.try_push(sent)
    assert consumer.try_pop(got)
    assert (sent == got).all()


def test_wrong_sizes_are_refused_and_nothing_happens():
    _, producer, consumer = ends(slot_nbytes=8)
    for wrong in (b"", b"1234567", b"123456789", np.zeros(2)):
        with pytest.raises(ValueError, match="8 bytes"):
            producer.try_push(wrong)
        with pytest.raises(ValueError, match="8 bytes"):
            consumer.try_pop(bytearray(wrong))
    with pytest.raises(ValueError, match="whole number of slots"):
        producer.try_push_many(bytes(12))
    with pytest.raises(ValueError, match="whole number of slots"):
        consumer.try_pop_many(bytearray(12))
    assert consumer.ready_count == 0


def test_what_cannot_be_read_or_written_is_refused():
    _, producer, consumer = ends()
    producer.try_push(word(1))
    frozen = np.zeros(1)
    frozen.flags.writeable = False
    for out in (bytes(8), frozen, memoryview(bytes(8))):
        with pytest.raises((BufferError, ValueError)):
            consumer.try_pop(out)
    with pytest.raises((BufferError, ValueError)):
        producer.try_push(np.zeros((2, 2), np.float32)[:, 0])  # not contiguous
    for nothing in (np.array([None]), 5, "12345678", None):
        with pytest.raises((TypeError, ValueError)):
            producer.try_push(nothing)
    assert pop(consumer) == word(1)


# ---- Reserve, commit, abort; peek, release ----


@pytest.mark.parametrize("end", ["commit", "abort", "close"])
def test_a_reserved_view_is_dead_afterwards(end):
    _, producer, _ = ends()
    view = producer.reserve()
    getattr(producer, end)()
    with pytest.raises(ValueError, match="released"):
        view[0] = 1


@pytest.mark.parametrize("end", ["release", "close"])
def test_a_peeked_view_is_read_only_and_dead_afterwards(end):
    _, producer, consumer = ends()
    producer.try_push(word(1))
    view = consumer.peek()
    with pytest.raises(TypeError):
        view[0] = 1
    getattr(consumer, end)()
    with pytest.raises(ValueError, match="released"):
        view[0]


@pytest.mark.parametrize("look", [lambda view: view[2:4], lambda view: np.frombuffer(view, np.uint8)])
@pytest.mark.parametrize("end", ["commit", "abort", "close"])
def test_slots_cannot_be_handed_over_while_a_slice_or_array_sees_them(look, end):
    _, producer, consumer = ends()
    other = look(producer.reserve())
    with pytest.raises(BufferError):
        getattr(producer, end)()
    assert consumer.ready_count == 0
    other[0] = 5  # still ours
    del other
    getattr(producer, end)()
    assert consumer.ready_count == (end == "commit")


@pytest.mark.parametrize("look", [lambda view: view[2:4], lambda view: np.frombuffer(view, np.uint8)])
def test_slots_cannot_be_released_while_a_slice_or_array_sees_them(look):
    _, producer, consumer = ends()
    producer.try_push(word(1))
    other = look(consumer.peek())
    with pytest.raises(BufferError):
        consumer.release()
    assert producer.free_count == 3
    del other
    consumer.release()
    assert producer.free_count == 4


def test_a_view_outlives_the_names_of_its_ring():
    memory, producer, _ = ends()
    view = producer.reserve()
    del memory, producer, _
    view[:] = word(1)
    assert bytes(view) == word(1)


def test_an_end_forgotten_with_an_open_view_is_collected_and_leaves_its_ring():
    _, producer, consumer = ends()
    producer.reserve()
    del producer, _
    gc.collect()
    assert consumer.peer == "lost"


@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize("kind", [Producer, Consumer])
def test_an_end_in_a_garbage_cycle_with_its_buffer_is_collected(kind, is_lent):
    def child():
        memory = shared(4, 8)
        if kind is Consumer:
            with Producer(memory) as producer:
                producer.try_push(word(1))
        end = kind(memoryview(memory))
        cycle = [end]
        if is_lent:
            cycle.append(np.asarray(end.reserve() if kind is Producer else end.peek()))
        cycle.append(cycle)
        mapping = weakref.ref(memory)
        del memory, end, cycle
        gc.collect()
        assert mapping() is None

    assert status_of(in_child(child)) == 0


def test_an_end_that_was_not_made_refuses_everything():
    end = Producer.__base__()
    assert end.closed
    assert repr(end)
    for call in (end.__enter__, lambda: end.peer):
        with pytest.raises(ClosedError):
            call()
    end.close()
    for bad in ((), (None,), (b"read-only",), (bytearray(8),)):
        for kind in (Producer, Consumer):
            with pytest.raises((TypeError, BufferError, SegmentError)):
                kind(*bad)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="buffers exported by Python code")
def test_an_end_closed_while_a_buffer_is_exported_touches_no_memory():
    class Closing:
        def __buffer__(self, flags):
            end.close()
            memory.close()
            return memoryview(bytearray(8))

    for call in ("try_push", "try_push_many", "try_pop", "try_pop_many"):
        memory = shared(4, 8)
        end = (Producer if "push" in call else Consumer)(memory)
        with pytest.raises(ClosedError):
            getattr(end, call)(Closing())


def test_one_reservation_and_one_peek_at_a_time():
    _, producer, consumer = ends()
    producer.try_push(word(1))
    producer.reserve()
    consumer.peek()
    for call in (producer.reserve, lambda: producer.try_push(word(2)), lambda: producer.try_push_many(word(2))):
        with pytest.raises(ValueError, match="lease is still open"):
            call()
    for call in (consumer.peek, lambda: consumer.try_pop(bytearray(8)), lambda: consumer.try_pop_many(bytearray(8))):
        with pytest.raises(ValueError, match="lease is still open"):
            call()


def test_counts_that_make_no_sense_are_refused():
    _, producer, consumer = ends()
    for call, message in (
        (producer.commit, "nothing is reserved: call reserve"),
        (producer.abort, "nothing is reserved: call reserve"),
        (consumer.release, "nothing is peeked: call peek"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    for count in (0, -1):
        with pytest.raises(ValueError, match="count"):
            producer.reserve(count)
        with pytest.raises(ValueError, match="count"):
            consumer.peek(count)
    producer.reserve(2)
    for count in (3, -1):
        with pytest.raises(ValueError):
            producer.commit(count)
    producer.commit(2)
    consumer.peek(2)
    for count in (3, -1):
        with pytest.raises(ValueError):
            consumer.release(count)
    consumer.release(2)


# ---- Ends ----


def test_each_end_is_taken_once_and_the_error_names_its_holder():
    memory, producer, consumer = ends()
    for kind, name in ((Producer, "producer"), (Consumer, "consumer")):
        with pytest.raises(RoleTakenError, match=rf"process {os.getpid()} has taken the {name}.*alive") as caught:
            kind(memory)
        assert caught.value.pid == os.getpid()
        assert pickle.loads(pickle.dumps(caught.value)).pid == os.getpid()
    producer.close()
    with pytest.raises(RoleTakenError, match="closed by it"):
        Producer(memory)
    assert consumer.peer == "closed"


def test_a_closed_end_refuses_everything_and_may_be_closed_again():
    memory, producer, consumer = ends()
    producer.close()
    producer.close()
    consumer.close()
    assert producer.closed
    assert consumer.closed
    calls = [
        lambda: producer.try_push(word(1)),
        lambda: producer.try_push_many(word(1)),
        producer.reserve,
        producer.commit,
        producer.abort,
        lambda: producer.free_count,
        lambda: producer.peer,
        lambda: consumer.try_pop(bytearray(8)),
        lambda: consumer.try_pop_many(bytearray(8)),
        consumer.peek,
        consumer.release,
        lambda: consumer.ready_count,
        lambda: consumer.ended,
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    memory.close()


def test_the_stream_is_finished_when_the_closed_producers_last_slot_is_released():
    _, producer, consumer = ends()
    assert not consumer.ended
    producer.try_push(word(1))
    producer.close()
    assert (consumer.peer, consumer.ended) == ("closed", False)
    assert pop(consumer) == word(1)
    assert consumer.ended


def test_a_with_block_left_by_an_exception_is_not_the_end_of_the_stream():
    _, producer, consumer = ends()
    with pytest.raises(KeyError), producer:
        raise KeyError
    assert (consumer.peer, consumer.ended, producer.closed) == ("lost", False, True)
    _, producer, consumer = ends()
    with producer:
        pass
    assert (consumer.peer, consumer.ended) == ("closed", True)


def test_an_end_that_is_just_forgotten_is_lost():
    _, producer, consumer = ends()
    del producer
    assert (consumer.peer, consumer.ended) == ("lost", False)


def test_the_other_end_is_absent_until_it_comes():
    memory = shared(4, 8)
    producer = Producer(memory)
    assert producer.peer == "absent"
    consumer = Consumer(memory)
    assert (producer.peer, consumer.peer) == ("here", "here")


def test_a_producer_killed_while_writing_has_published_exactly_what_it_committed():
    memory = shared(4, 8)
    consumer = Consumer(memory)
    reader, writer = os.pipe()

    def produce():
        producer = Producer(memory)
        producer.try_push(word(1))
        producer.reserve(2)[:] = b"unfinished" + bytes(6)
        os.write(writer, b"x")
        signal.pause()

    child = in_child(produce)
    os.close(writer)
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    assert consumer.peer == "here"
    os.kill(child, signal.SIGKILL)
    while consumer.peer == "here":
        time.sleep(0.0005)
    status_of(child)
    assert (consumer.peer, consumer.ready_count, consumer.ended) == ("lost", 1, False)
    assert pop(consumer) == word(1)
    with pytest.raises(RoleTakenError, match=rf"process {child} .*dead"):
        Producer(memory)


def test_a_forked_child_cannot_use_or_close_its_parents_ends():
    _, producer, consumer = ends()
    producer.try_push(word(1))
    producer.reserve()

    def child():
        for call in (producer.commit, producer.abort, producer.reserve, lambda: consumer.try_pop(bytearray(8))):
            with pytest.raises(ClosedError, match="forked"):
                call()
        producer.close()
        consumer.close()

    assert status_of(in_child(child)) == 0
    assert (producer.peer, consumer.peer, consumer.ready_count) == ("here", "here", 1)
    producer.abort()
    assert pop(consumer) == word(1)


def test_ends_do_not_pickle():
    _, producer, consumer = ends()
    for end in (producer, consumer):
        with pytest.raises(TypeError, match="belongs to one process"):
            pickle.dumps(end)


def test_the_buffer_cannot_be_closed_before_its_ends():
    memory, producer, consumer = ends()
    producer.close()
    with pytest.raises(BufferError):
        memory.close()
    consumer.close()
    memory.close()


# ---- Making a ring, and what is found instead of one ----


@pytest.mark.parametrize("nslots", [0, -4, 3, 6, 1000])
def test_nslots_must_be_a_power_of_two(nslots):
    with pytest.raises(ValueError, match="power of two"):
        format_ring(bytearray(100000), nslots, 8)


@pytest.mark.parametrize(("nslots", "slot_nbytes"), [(4, 0), (4, -1), (4.0, 8), (4, "8"), (4, 1 << 70), (1 << 63, 8)])
def test_impossible_geometry_is_refused(nslots, slot_nbytes):
    with pytest.raises((ValueError, TypeError)):
        format_ring(bytearray(100000), nslots, slot_nbytes)


@pytest.mark.parametrize(("name", "value"), [("nheads", 0), ("nheads", 2**200), ("start", -1), ("start", 1 << 64)])
def test_numbers_that_a_header_cannot_hold_are_refused(name, value):
    with pytest.raises(ValueError, match=name):
        format_ring(bytearray(4096), 2, 8, **{name: value})


def test_a_buffer_of_ring_nbytes_is_enough_wherever_it_lies():
    backing = bytearray(ring_nbytes(4, 8) + 128)
    for offset in range(0, 128, 8):
        part = memoryview(backing)[offset : offset + ring_nbytes(4, 8)]
        format_ring(part, 4, 8)
        with Producer(part) as producer, Consumer(part) as consumer:
            assert producer.try_push(word(offset))
            assert pop(consumer) == word(offset)


def test_a_buffer_that_is_too_small_or_holds_no_ring_is_refused():
    with pytest.raises(ValueError, match=f"need {CONTROL_NBYTES + 32} bytes"):
        format_ring(mmap.mmap(-1, CONTROL_NBYTES + 31), 4, 8)
    for nothing in (bytearray(0), bytearray(10), bytearray(4096), mmap.mmap(-1, 4096)):
        for kind in (Producer, Consumer):
            with pytest.raises(SegmentError, match="no ring"):
                kind(nothing)
    memory = shared(4, 8)
    with pytest.raises(SegmentError, match="no ring"):
        Producer(memoryview(memory)[: CONTROL_NBYTES + 31])
    assert Producer(memoryview(memory)[: CONTROL_NBYTES + 32]).nslots == 4


def test_a_ring_in_use_is_not_made_anew():
    memory, producer, consumer = ends()
    for end in (producer, consumer):
        with pytest.raises(RoleTakenError, match=str(os.getpid())):
            format_ring(memory, 4, 8)
        end.close()
    format_ring(memory, 4, 8)
    assert Producer(memory).try_push(word(1))


def test_a_ring_with_several_consumers_is_not_made_anew_while_one_of_them_is_taken():
    _, receivers = shmring.broadcast_channel(3, 512)
    ring = memoryview(receivers[0]._channel.mapping)[HEADER_NBYTES:]
    with receivers[2], pytest.raises(RoleTakenError, match=rf"process {os.getpid()} is this ring's consumer"):
        format_ring(ring, 64, 8, nheads=3)
    format_ring(ring, 64, 8, nheads=3)


@pytest.mark.parametrize("geometry", [(0, 8), (3, 8), (8, 8), (1 << 63, 8), (4, 0), (4, 64), (4, LAST), (1 << 63, 2)])
def test_geometry_that_was_tampered_with_is_refused(geometry):
    memory = mmap.mmap(-1, CONTROL_NBYTES + 32)
    format_ring(memory, 4, 8)
    struct.pack_into("<QQ", memory, 8, *geometry)
    for kind in (Producer, Consumer):
        with pytest.raises(SegmentError, match="no ring"):
            kind(memory)


def test_a_look_at_a_ring_without_slots_is_refused():
    memory = shared(4, 8)
    assert look(memory).fill == 0
    memory[8:16] = bytes(8)
    with pytest.raises(SegmentError):
        look(memory)


def test_geometry_changed_after_attaching_does_not_matter():
    memory, producer, consumer = ends(nslots=4)
    struct.pack_into("<QQ", memory, 8, 1 << 40, 1 << 20)
    assert producer.try_push_many(bytes(64)) == 4
    assert consumer.try_pop_many(bytearray(64)) == 4


def test_impossible_counters_are_refused_at_attach():
    for tail, head in ((5, 0), (0, 1), (LAST, 0), (1, LAST - 3)):
        memory = shared(4, 8)
        struct.pack_into("<Q", memory, TAIL, tail)
        struct.pack_into("<Q", memory, HEAD, head)
        for kind in (Producer, Consumer):
            with pytest.raises(SegmentError, match="impossible"):
                kind(memory)


@pytest.mark.parametrize("start", [0, 1000, LAST - 1])
@pytest.mark.parametrize("wrong", [-1, -4, 3, 4, 100, 1 << 63, -(1 << 63)])
def test_an_impossible_head_never_leads_the_producer_anywhere(start, wrong):
    memory, producer, _ = ends(nslots=4, start=start)
    producer.try_push_many(word(1) + word(2))
    struct.pack_into("<Q", memory, HEAD, (start + wrong) & LAST)
    before = memory[CONTROL_NBYTES:]
    calls = [lambda: producer.try_push_many(bytes(24)), lambda: producer.free_count]
    for call in calls:
        with pytest.raises(SegmentError, match="consumer's counter"):
            call()
    assert memory[CONTROL_NBYTES:] == before
    struct.pack_into("<Q", memory, HEAD, (start + 1) & LAST)
    assert producer.free_count == 3  # the refused value left no trace


@pytest.mark.parametrize("start", [0, 1000, LAST - 1])
@pytest.mark.parametrize("wrong", [-1, 0, 1, 7, 100, 1 << 63, -(1 << 63)])
def test_an_impossible_tail_never_leads_the_consumer_anywhere(start, wrong):
    memory, producer, consumer = ends(nslots=4, start=start)
    producer.try_push_many(word(1) + word(2) + word(3))
    assert pop(consumer) == word(1)
    assert consumer.ready_count == 2
    # Head is 1 and tail 3: below 3 it went backwards, above 5 the ring would hold more than it can.
    struct.pack_into("<Q", memory, TAIL, (start + wrong) & LAST)
    out = bytearray(b"-" * 64)
    for call in (lambda: consumer.ready_count, lambda: consumer.try_pop_many(out)):
        with pytest.raises(SegmentError, match="producer's counter"):
            call()
    assert out == b"-" * 64
    assert not consumer.ended


@pytest.mark.sample(1)
@pytest.mark.parametrize("nslots", [1 << 29, 1 << 30, 1 << 32])
def test_the_filler_before_the_longest_frame_of_a_huge_ring_has_a_length(nslots):
    """The length of a frame, and of what fills the ring up to its end, has 32 bits."""
    hooks = compiled.load("ring_hooks")
    nbytes = hooks.longest(nslots)
    assert 1 << 30 < nbytes < 1 << 32
    with open(os.memfd_create("huge"), "r+b") as file:
        file.truncate(ring_nbytes(nslots, 8))  # sparse
        try:
            memory = mmap.mmap(file.fileno(), 0)
        except OSError as error:
            pytest.skip(f"no {nslots * 8} bytes of address space: {error}")
    with memory:
        for shorter, before in itertools.product(range(0, 80, 8), range(-9, 12)):
            # The words between the ring's end and that of the frame, if it began here: fewer than none, or some.
            format_ring(memory, nslots, 8, start=nslots - nbytes // 8 - 1 + before)
            found, left = hooks.frame_through(memory, nbytes - shorter)
            assert found == nbytes - shorter
            assert left > found // 8


# ---- A model: whatever is done, in whatever order, is what a deque would do ----

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push_many", "write", "abort", "pop", "pop_many", "read"]),
        st.integers(1, 11),
        st.integers(0, 11),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(steps=STEPS, exponent=st.integers(0, 3), start=st.sampled_from([0, 5, LAST - 3, LAST]))
def test_a_ring_is_a_bounded_deque(steps, exponent, start):
    nslots = 1 << exponent
    _, producer, consumer = ends(nslots=nslots, start=start)
    model, produced = deque(), 0

    def fresh(count):
        return [word(produced + i) for i in range(count)]

    for step, count, part in steps:
        room, filled = nslots - len(model), len(model)
        contiguous_room = min(room, nslots - producer.tail % nslots)
        contiguous_filled = min(filled, nslots - consumer.head % nslots)
        if step == "push":
            (new,) = fresh(1)
            assert producer.try_push(new) == (room > 0)
            if room:
                model.append(new)
                produced += 1
        elif step == "push_many":
            new = fresh(count)
            pushed = producer.try_push_many(b"".join(new))
            assert pushed == min(count, room)
            model.extend(new[:pushed])
            produced += pushed
        elif step in ("write", "abort"):
            view = producer.reserve(count)
            assert (view is None) == (room == 0)
            if view is not None:
                reserved = len(view) // 8
                assert reserved == min(count, contiguous_room)
                new = fresh(reserved)
                view[:] = b"".join(new)
                assert consumer.ready_count == filled  # what is written in place arrives at commit and not before
                if step == "abort":
                    producer.abort()
                else:
                    committed = min(part, reserved)
                    producer.commit(committed)
                    model.extend(new[:committed])
                    produced += committed
        elif step == "pop":
            assert pop(consumer) == (model.popleft() if model else None)
        elif step == "pop_many":
            out = bytearray(8 * count)
            popped = consumer.try_pop_many(out)
            assert popped == min(count, filled)
            assert out == b"".join(model.popleft() for _ in range(popped)) + bytes(8 * (count - popped))
        else:
            view = consumer.peek(count)
            assert (view is None) == (filled == 0)
            if view is not None:
                peeked = len(view) // 8
                assert peeked == min(count, contiguous_filled)
                assert bytes(view) == b"".join(list(model)[:peeked])
                consumer.release(min(part, peeked))
                for _ in range(min(part, peeked)):
                    model.popleft()
        assert (consumer.ready_count, producer.free_count) == (len(model), nslots - len(model))


# ---- The exact sequence through a tiny ring, two sides that burst and pause as they like ----


def give_way():
    time.sleep(0)  # unlike sched_yield also lets go of the interpreter


def pause(generator):
    """Now and then give way, now and then sleep, so that either side is sometimes the slow one."""
    chance = generator.random()
    if chance < 0.0005:
        time.sleep(generator.random() / 1000)
    elif chance < 0.05:
        give_way()


def produce_sequence(memory, count, seed):
    generator = random.Random(seed)
    sent = 0
    with Producer(memory) as producer:
        words_per_slot = producer.slot_nbytes // 8
        while sent < count:
            burst = min(generator.randint(1, 7), count - sent)
            numbers = np.repeat(np.arange(sent, sent + burst, dtype=np.uint64), words_per_slot)
            if generator.random() < 0.5:
                done = producer.try_push_many(numbers)
            else:
                view = producer.reserve(burst)
                done = 0
                if view is not None:
                    view[:] = numbers.view(np.uint8)[: len(view)]
                    done = generator.randint(0, len(view) // producer.slot_nbytes)
                    producer.commit(done)
            sent += done
            if not done:
                give_way()
            pause(generator)


def check_sequence(memory, count, seed):
    generator = random.Random(seed)
    got = 0
    with Consumer(memory) as consumer:
        words_per_slot = consumer.slot_nbytes // 8
        while not consumer.ended:
            burst = generator.randint(1, 7)
            if generator.random() < 0.5:
                out = np.empty(burst * words_per_slot, np.uint64)
                done = consumer.try_pop_many(out)
                numbers = out[: done * words_per_slot]
            else:
                view = consumer.peek(burst)
                done, numbers = 0, np.empty(0, np.uint64)
                if view is not None:
                    done = generator.randint(0, len(view) // consumer.slot_nbytes)
                    numbers = np.frombuffer(view, np.uint64)[: done * words_per_slot].copy()
                    consumer.release(done)
            expected = np.repeat(np.arange(got, got + done, dtype=np.uint64), words_per_slot)
            assert (numbers == expected).all(), f"at {got}: {numbers} instead of {expected}"
            got += done
            if not done:
                give_way()
                assert consumer.peer != "lost", f"the producer was lost after {got}"
            pause(generator)
    assert got == count


@pytest.mark.sample(2)
@pytest.mark.parametrize(("nslots", "count"), [(1, 2_000), (2, 4_000), (8, 10_000)])
@pytest.mark.parametrize("start", [0, LAST - 1_500])
def test_two_processes_see_the_exact_sequence(nslots, count, start, seed):
    memory = shared(nslots, 72, start)
    child = in_child(produce_sequence, memory, count, seed)
    try:
        check_sequence(memory, count, seed + 1)
    finally:
        status = status_of(child)
    assert status == 0


@pytest.mark.parametrize(("nslots", "count"), [(1, 2_000), (4, 8_000)])
def test_two_threads_see_the_exact_sequence_through_a_bytearray(nslots, count, seed):
    memory = bytearray(ring_nbytes(nslots, 72))
    format_ring(memory, nslots, 72, start=LAST - 1_000)
    failures = []

    def produce():
        try:
            produce_sequence(memory, count, seed)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=produce)
    thread.start()
    check_sequence(memory, count, seed + 1)
    thread.join()
    assert failures == []


def test_many_rings_leave_no_thread_and_no_descriptor_behind():
    memory = mmap.mmap(-1, ring_nbytes(4, 8))
    threads, descriptors = [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]
    for _ in range(500):
        format_ring(memory, 4, 8)
        with Producer(memory) as producer, Consumer(memory):
            producer.try_push(word(1))
    after = [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]
    assert after[1] <= descriptors
    assert after[0] <= threads + 1  # the keeper
    memory.close()


def test_an_end_survives_when_its_process_holds_another_liveness():
    _, producer, consumer = ends()
    other = mmap.mmap(-1, 4096)
    compiled.load("liveness_hooks").hold(other)
    assert (producer.peer, consumer.peer) == ("here", "here")


def test_only_the_mark_of_a_death_without_an_id_shows_that_a_holder_is_gone():
    """The mark with an id: a process takes the end at this moment (core/sync/keeper.h)."""
    marked, asks_table, an_id = 1 << 30, 1 << 31, 4321
    is_gone_by = compiled.load("ring_hooks").is_gone_by
    assert is_gone_by(marked)
    assert is_gone_by(marked | asks_table)
    assert not any(map(is_gone_by, (0, an_id, an_id | asks_table, marked | an_id)))
