"""Whatever lies in the watched memory, the watcher goes on: headers, counters and texts of random bytes."""

import os
import random
import struct

import pytest
from support.segments import page as header_page

from shmring.channels.inspect import list_channels
from shmring.collectives.observe.account import account, culprits, duration, ranks_text, standings
from shmring.collectives.observe.look import LOOK_NBYTES, look
from shmring.core.memory import header as headers
from shmring.core.memory import names, spelling
from shmring.watch.find import Group, Job, Member, look_at_jobs
from shmring.watch.page import page, text
from shmring.watch.report import Watcher

ROUNDS = 300


@pytest.fixture
def rng(request):
    return random.Random(request.config.shmring_seed)


def pages(rng, size, rank, share):
    """Two pages: a header that nothing is wrong with, then random bytes; ``share`` of the words are small numbers."""
    body = bytearray(rng.randbytes(LOOK_NBYTES - headers.HEADER_NBYTES))
    for offset in range(0, len(body), 8):
        if rng.random() < share:
            struct.pack_into("<Q", body, offset, rng.choice([0, 1, 2, 7, 2**32, 2**63, 2**64 - 1, rng.randrange(1000)]))
    return header_page(rank=rank, size=size)[: headers.HEADER_NBYTES] + bytes(body)


def test_random_outboxes_are_described(rng):
    for _ in range(ROUNDS):
        size = rng.choice([1, 2, 5])
        share = rng.choice([0.0, 0.5, 1.0])
        looks = [None if rng.random() < 0.1 else look(pages(rng, size, rank, share)) for rank in range(size)]
        found = standings(looks)
        for one in found:
            assert all(0 <= rank < size for rank in one.awaits)
            assert one.place.isprintable()
        assert account(looks).count("\n") < 40
        assert account(looks).replace("\n", "").isprintable()


def test_random_headers_are_refused_or_read(rng):
    for _ in range(ROUNDS):
        data = bytearray(pages(rng, 2, 1, 0.5))
        for _ in range(rng.choice([1, 4, 64])):
            data[rng.randrange(headers.HEADER_NBYTES if rng.random() < 0.9 else 160)] = rng.randrange(256)
        found = look(bytes(data))
        assert found is None or 0 <= found.header.rank < found.header.size
    assert look(b"") is None
    assert look(rng.randbytes(LOOK_NBYTES)) is None
    assert look(header_page()[:-1]) is None


def test_what_is_stored_as_text_gives_a_terminal_no_commands():
    data = bytearray(header_page(rank=0, size=1))
    known = bytes(look(bytes(data)).calls.to_bytes(8, "little"))
    assert known == bytes(8)
    evil = b"\x1b]0;title\x07\x1b[2J\xff"
    at = data.find(bytes(184), headers.HEADER_NBYTES)
    texts = set()
    for offset in range(at, LOOK_NBYTES - len(evil), 8):
        struct.pack_into("<Q", data, offset, 1 << 58)
        data[offset + 8 : offset + 8 + len(evil)] = evil
        found = look(bytes(data))
        assert found.place.isprintable()
        assert found.message_place.isprintable()
        texts |= {found.place, found.message_place}
    assert any("title" in text for text in texts)  # it was in one of them


class Held:
    """A file without a name that looks like one of ours, held open by this process."""

    def __init__(self, name, contents):
        path = names.SHM_DIRECTORY + name
        self.fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.unlink(path)
        os.write(self.fd, contents)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.close(self.fd)


@pytest.mark.parametrize("nbytes", [0, 100, headers.HEADER_NBYTES, LOOK_NBYTES])
def test_a_watcher_goes_on_among_garbage(rng, nbytes):
    name = spelling.segment_name("garbage", "r1")
    watcher = Watcher()
    for _ in range(20):
        contents = pages(rng, 3, 1, rng.choice([0.0, 0.5, 1.0]))[:nbytes]
        with Held(name, contents), Held(spelling.user_prefix() + "odd", contents):
            found = watcher.look()
            assert text(page(found), colours=True)
            jobs = [job for job in found["jobs"] if job["session"].startswith("garbage")]
            assert len(jobs) == (nbytes == LOOK_NBYTES)
            if jobs:
                assert [one["state"] == "unseen" for one in jobs[0]["communicators"][0]["ranks"]] == [True, False, True]


def test_garbage_in_channels_is_passed_over(rng):
    name = spelling.segment_name("channel/x", "ring")
    for _ in range(100):
        data = bytearray(header_page(kind=headers.CHANNEL, rank=0, size=1) + rng.randbytes(LOOK_NBYTES))
        for offset in range(80, 112, 8):  # its params
            value = rng.choice([1, 2, 257, 513, 2**64 - 1, rng.randrange(2**64)])
            struct.pack_into("<Q", data, offset, value)
        struct.pack_into("<Q", data, 16, rng.choice([8192, 2**64 - 1, rng.randrange(2**64)]))
        struct.pack_into("<Q", data, headers.HEADER_NBYTES, 0x34676E6972)  # the magic of a ring
        data[768:1024] = bytes(256)
        with Held(name, data):
            assert all(0 <= one.ring.fill <= 1 for one in list_channels())


def test_a_size_of_two_billion_ranks_takes_no_memory():
    with Held(spelling.segment_name("garbage", "r1"), header_page(rank=1, size=2**31 - 1)):
        assert not [job for job in look_at_jobs().jobs if job.session.startswith("garbage")]


# ---- the graph -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "keepers", "cycle"),
    [
        ({}, set(), set()),
        ({0: [], 1: []}, set(), set()),
        ({0: [1], 1: []}, {1}, set()),
        ({0: [1], 1: [2], 2: []}, {2}, set()),
        ({0: [1], 1: [0]}, set(), {0, 1}),
        ({0: [1], 1: [0], 2: [0]}, set(), {0, 1}),
        ({0: [1], 1: [0], 2: [3], 3: []}, {3}, {0, 1}),
        ({0: [1, 2], 1: [0], 2: []}, {2}, set()),
        ({0: [9]}, {9}, set()),
    ],
)
def test_culprits_are_those_that_no_wait_leads_on_from(edges, keepers, cycle):
    assert culprits(edges) == (keepers, cycle)


def test_texts_for_people():
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([5, 0, 1, 2]) == "ranks 0-2, 5"
    assert [duration(ns) for ns in (1500, 2.5e6, 3.21e9, 7.2e12)] == ["1.5 us", "2.5 ms", "3.2 s", "120 min"]


def test_an_account_of_many_different_ranks_has_few_lines():
    looks = []
    for rank in range(100):
        data = bytearray(header_page(rank=rank, size=100))
        looks.append(look(bytes(data))._replace(current=f"call {rank}"))
    assert "... and 76 more" in account(looks)


def test_a_rank_without_a_process_is_shown_with_its_own_pid():
    one = look(header_page(rank=0, size=1, ready=1))
    member = Member(0, None, one, standings([one])[0])
    job = Job("s", [Group("", True, [member], "")], set(), set())
    assert job.pids == set()
    assert member.node == (one.header.pid_ns, one.header.pid, one.header.start_time)
