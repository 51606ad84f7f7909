"""Names and segments: which process gets a name, what is refused, and that nothing is left."""

import contextlib
import errno
import gc
import math
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest
from support.harness import PATIENCE
from support.limits import limited
from support.namespaces import STRANGER, needs_stranger
from support.programs import WATCHDOG_S, run_program, run_python
from support.segments import PAGE_NBYTES, Squatter, page, path_of, standing

from shmring.core.memory import header as headers
from shmring.core.memory import names, ofd_locks, spelling, syscalls
from shmring.core.memory import segment as segments
from shmring.core.memory import sweep as sweeps
from shmring.core.memory.open_files import open_files
from shmring.core.memory.reserve import free_nbytes, reserve
from shmring.core.memory.segment import ARRAY, OUTBOX, RING, attach, create, segment_name, try_attach
from shmring.core.memory.sweep import leftovers, sweep, sweep_after
from shmring.core.memory.unnamed import create_unnamed
from shmring.errors import ClosedError, OutOfSharedMemoryError, SegmentError

FORK = multiprocessing.get_context("fork")
NBYTES = 64 << 10
forged = partial(page, rank=0, size=1)  # which `Squatter` puts under a name


@pytest.fixture
def name(session):
    """A name in this test's session."""
    return segment_name(session, "r0")


@contextlib.contextmanager
def forked(function, *args):
    """A child that runs ``function`` and then waits; yields its process once the function has returned."""
    ours, theirs = FORK.Pipe()

    def run():
        kept = function(*args)
        theirs.send("done")
        signal.pause()
        del kept

    process = FORK.Process(target=run)
    process.start()
    theirs.close()
    try:
        assert ours.poll(WATCHDOG_S), "the child did not come so far"
        assert ours.recv() == "done"
        yield process
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def leave_stale(name, nbytes=NBYTES):
    """Leave a segment behind as a killed process does."""

    def make():
        segment = create(name, nbytes, kind=OUTBOX, params=(1, 2, 3))
        segment.announce()
        return segment

    with forked(make) as process:
        process.kill()
        process.join()
    until_released(name)


def until_released(name):
    """Return once no dead process holds the lock of a name: one that looks at its memory keeps that for a moment."""
    with names.opened(name) as fd:
        while fd is not None and names.is_alive(fd):
            time.sleep(0.001)


# -- the ordinary life ------------------------------------------------------------------------------------------------


def test_a_segment_is_private_reserved_zero_and_seen_by_every_process_that_attaches(name):
    with create(name, NBYTES, kind=RING, rank=2, size=5, params=(9, 2**64 - 1)) as mine:
        status = os.stat(path_of(name))
        assert (status.st_mode & 0o777, status.st_uid, status.st_size) == (0o600, os.geteuid(), NBYTES)
        assert status.st_blocks * 512 >= NBYTES
        assert not any(memoryview(mine.mapping)[4096:])
        mine.announce()
        with attach(name, kind=RING, rank=2) as peer:
            assert peer.header == mine.header
            assert (peer.nbytes, peer.rank, peer.header.size) == (NBYTES, 2, 5)
            assert peer.header.params == (9, 2**64 - 1, 0, 0)
            assert peer.header.pid == os.getpid()
            memoryview(mine.mapping)[5000:5005] = b"hello"
            assert bytes(memoryview(peer.mapping)[5000:5005]) == b"hello"
            mine.attached = 2**63 + 1
            assert peer.attached == 2**63 + 1
            assert peer.is_live()


@pytest.mark.parametrize("pages", [{}, {"huge": True, "prefault": True}])
def test_a_sparse_end_has_no_memory_before_it_is_reserved(name, pages):
    descriptors = len(os.listdir("/proc/self/fd"))
    with create(name, NBYTES + 40_960, sparse_nbytes=40_960, kind=RING, **pages) as mine:
        status = os.stat(path_of(name))
        assert (status.st_size, status.st_blocks * 512) == (NBYTES + 40_960, NBYTES)
        mine.announce()
        with attach(name) as peer:
            mine.unlink()
            mine.reserve(NBYTES + 8192, 4096)
            memoryview(mine.mapping)[NBYTES + 8192] = 7
            assert memoryview(peer.mapping)[NBYTES + 8192] == 7
            assert os.fstat(mine.descriptor).st_blocks * 512 == NBYTES + 4096
            with pytest.raises(ClosedError):
                peer.reserve(NBYTES, 4096)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(ClosedError):
        mine.reserve(NBYTES, 4096)


def test_memory_is_placed_before_it_is_reserved_and_all_of_it(name):
    placed = []

    def place(mapping, offset, nbytes):
        placed.append((offset, nbytes, os.stat(path_of(name)).st_blocks * 512))

    with create(name, NBYTES + 8192, sparse_nbytes=8192, kind=RING, place=place) as mine:
        mine.reserve(NBYTES + 4096, 4096)
    whole, sparse = placed
    assert whole == (0, NBYTES + 8192, headers.HEADER_NBYTES)
    assert sparse == (NBYTES + 4096, 4096, NBYTES)


def test_a_fifo_that_a_process_has_open_does_not_stop_a_look_at_its_files(session):
    path = path_of(f"{spelling.user_prefix()}{session}-fifo")
    os.mkfifo(path)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb"):
            (found,) = [one for one in open_files() if one.target == path]
            with pytest.raises(OSError, match="Illegal seek"):
                found.read((0, 8))
    finally:
        os.unlink(path)


def without_room(number=errno.ENOSPC):
    """A fault: no memory can be reserved."""

    def fault(call):
        if call == "posix_fallocate":
            raise OSError(number, os.strerror(number))

    return fault


def test_no_room_for_a_sparse_range_is_an_error_and_changes_nothing(name, monkeypatch):
    with create(name, NBYTES + 4096, sparse_nbytes=4096, kind=RING) as mine:
        monkeypatch.setattr(syscalls, "fault", without_room())
        with pytest.raises(OutOfSharedMemoryError):
            mine.reserve(NBYTES, 4096)
        monkeypatch.undo()
        mine.reserve(NBYTES, 4096)


def test_no_process_attaches_before_the_creator_announces(name):
    assert try_attach(name) is None
    with pytest.raises(SegmentError, match="there is no such segment"):
        attach(name)
    with create(name, NBYTES, kind=OUTBOX) as mine:
        assert try_attach(name) is None
        with pytest.raises(SegmentError, match="not announced"):
            attach(name)
        mine.announce()
        attach(name).close()


def test_every_segment_has_a_nonce_of_its_own(name):
    with create(name, NBYTES, kind=OUTBOX) as one:
        first = one.header.nonce
    with create(name, NBYTES, kind=OUTBOX) as two:
        assert two.header.nonce != first


def test_the_creators_close_takes_the_name_and_attached_memory_stays(name, session):
    mine = create(name, NBYTES, kind=OUTBOX)
    mine.announce()
    peer = attach(name)
    memoryview(mine.mapping)[4096] = 7
    mine.close()
    mine.close()
    assert standing(session) == []
    assert not peer.is_live()
    assert memoryview(peer.mapping)[4096] == 7
    peer.close()
    with pytest.raises(ClosedError):
        peer.__enter__()


def test_a_name_that_a_dead_creator_left_is_not_live(name):
    mine = create(name, NBYTES, kind=OUTBOX)
    mine.announce()
    with attach(name) as peer:
        ofd_locks.unlock(mine._claim.fd, names.LIFE)  # as the kernel does
        assert not peer.is_live()
    mine.close()


def test_anyone_attached_may_unlink_and_the_owner_does_not_mind(name, session):
    with create(name, NBYTES, kind=OUTBOX) as mine:
        mine.announce()
        with attach(name) as peer:
            peer.unlink()
            peer.unlink()
            assert standing(session) == []
            mine.unlink()


def test_unlink_leaves_a_newer_segment_of_the_same_name_alone(name):
    old = create(name, NBYTES, kind=OUTBOX)
    old.announce()
    peer = attach(name)
    old.unlink()
    with create(name, NBYTES, kind=OUTBOX) as new:
        new.announce()
        assert not peer.is_live()
        peer.unlink()
        old.unlink()
        old.close()
        peer.close()
        assert new.is_live()


def test_a_segment_that_is_dropped_leaves_nothing(name, session):
    create(name, NBYTES, kind=OUTBOX)
    assert standing(session) == []


def test_a_process_that_exits_without_closing_leaves_nothing(name, session):
    program = (
        "from shmring.core.memory.segment import *; from shmring.core.memory.sweep import leftovers; "
        f"s = create({name!r}, 8192, kind=OUTBOX); print(leftovers())"
    )
    assert name in run_python("-c", program)
    assert standing(session) == []


def test_close_refuses_while_views_stand_but_the_name_is_gone(name, session):
    segment = create(name, NBYTES, kind=OUTBOX)
    view = memoryview(segment.mapping)
    with pytest.raises(BufferError):
        segment.close()
    assert standing(session) == []
    view.release()
    segment.close()


@pytest.mark.parametrize(
    "wrong", [{"nbytes": 4095}, {"kind": 0}, {"kind": 99}, {"rank": 1}, {"rank": -1}, {"size": 0}, {"params": range(5)}]
)
def test_bad_arguments_are_value_errors_and_create_nothing(name, session, wrong):
    with pytest.raises(ValueError):
        create(name, **{"nbytes": NBYTES, "kind": OUTBOX} | wrong)
    assert standing(session) == []


# -- names in use, names left behind ----------------------------------------------------------------------------------


def test_a_name_held_by_a_live_process_is_refused_with_its_pid_and_kept(name):
    with create(name, NBYTES, kind=OUTBOX) as mine:
        mine.announce()
        with pytest.raises(SegmentError, match=rf"creator is alive \(pid {os.getpid()}\)") as caught:
            create(name, NBYTES, kind=OUTBOX)
        assert caught.value.errno == errno.EEXIST
        assert mine.is_live()


def test_a_live_name_without_header_is_refused_too(name):
    with Squatter(name), pytest.raises(SegmentError, match="its pid is not known"):
        create(name, NBYTES, kind=OUTBOX)


def test_what_a_killed_process_left_is_ignored_by_attachers_and_replaced_by_creators(name):
    leave_stale(name)
    assert [(left.name, left.status) for left in leftovers() if left.name == name] == [(name, "stale")]
    assert try_attach(name) is None
    with pytest.raises(SegmentError, match="stale"):
        attach(name)
    with create(name, 2 * NBYTES, kind=OUTBOX) as mine:
        mine.announce()
        with attach(name) as peer:
            assert peer.header.pid == os.getpid()
            assert peer.nbytes == 2 * NBYTES


@pytest.mark.parametrize(
    "contents", [b"", b"x", bytes(NBYTES), bytes(range(256)) * 64], ids=["empty", "1", "0s", "noise"]
)
def test_whatever_stands_unlocked_under_our_name_is_stale_and_replaced(name, contents):
    with Squatter(name, contents, locked=False):
        assert try_attach(name) is None
        with create(name, NBYTES, kind=OUTBOX) as mine:
            assert mine.is_live()


def test_a_newborn_without_its_lock_yet_is_given_time(name):
    fd = os.open(path_of(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)

    def come_alive(call):
        if call == "mmap":  # the other process looks for its pid: it has found no lock
            syscalls.fault = None
            assert ofd_locks.lock(fd, names.LIFE)

    syscalls.fault = come_alive
    with pytest.raises(SegmentError, match="alive"):
        create(name, NBYTES, kind=OUTBOX)
    assert syscalls.fault is None
    os.unlink(path_of(name))
    os.close(fd)


def test_a_newborn_taken_for_stale_starts_again(name):
    # Between opening and locking, the creator sleeps for longer than anyone would believe, and loses its name.
    lost = []

    def interfere(call):
        if call == "fcntl" and not lost:
            lost.append(os.stat(path_of(name)).st_ino)
            syscalls.fault = None
            assert names.remove_stale(name)

    syscalls.fault = interfere
    with create(name, NBYTES, kind=OUTBOX) as mine:
        assert os.stat(path_of(name)).st_ino != lost[0]
        assert mine.is_live()


def test_of_many_that_want_one_stale_name_exactly_one_gets_it(name, monkeypatch):
    for patience in ("NAME_PATIENCE_S", "CLAIM_PATIENCE_S"):  # a process that has the lock is late, and not stopped
        monkeypatch.setattr(names, patience, 60 * PATIENCE)
    for _ in range(8):
        leave_stale(name, 8192)
        gates = [os.pipe(), os.pipe()]  # read from: opens when the test closes its end

        def pass_gate(number, gates=gates):
            os.close(gates[number][1])
            os.read(gates[number][0], 1)

        def want(answer):
            pass_gate(0)
            try:
                segment = create(name, 8192, kind=OUTBOX)
            except SegmentError as error:
                answer.send(str(error))
            else:
                answer.send("mine")
                pass_gate(1)
                segment.close()

        answers, wanting = [], []
        for _ in range(4):
            ours, theirs = FORK.Pipe(duplex=False)
            process = FORK.Process(target=want, args=(theirs,))
            process.start()
            theirs.close()
            answers.append(ours)
            wanting.append(process)
        os.close(gates[0][1])
        results = [ours.recv() for ours in answers]
        os.close(gates[1][1])
        for process in wanting:
            process.join()
            assert process.exitcode == 0
            process.close()
        for descriptor in (gates[0][0], gates[1][0], *answers):
            os.close(descriptor) if isinstance(descriptor, int) else descriptor.close()
        assert results.count("mine") == 1
        assert all(word == "mine" or "alive" in word for word in results), results


def test_a_forked_child_does_not_keep_the_parents_name_alive(name):
    def parent():
        segment = create(name, NBYTES, kind=OUTBOX)
        segment.announce()
        if os.fork() == 0:
            segment.close()  # the name is not the child's to take
            theirs.send(os.getpid())
            signal.pause()
        return segment

    ours, theirs = FORK.Pipe(duplex=False)
    with forked(parent) as process:
        theirs.close()
        child = ours.recv()  # it has closed what it inherited
        try:
            attach(name).close()
            assert [left.status for left in leftovers() if left.name == name] == ["live"]
            process.kill()
            process.join()
            os.kill(child, 0)  # the child is still there
            assert try_attach(name) is None
            with create(name, NBYTES, kind=OUTBOX) as mine:
                assert mine.is_live()
        finally:
            os.kill(child, signal.SIGKILL)
    ours.close()


def test_a_child_started_otherwise_inherits_no_descriptor(name):
    with create(name, NBYTES, kind=OUTBOX):
        listing = "import glob, os; print([os.path.realpath(fd) for fd in glob.glob('/proc/self/fd/*')])"
        assert name not in run_python("-c", listing, close_fds=False)


def test_asking_about_a_name_and_closing_again_does_not_lose_its_lock(name):
    # With POSIX record locks it would: closing any descriptor of a file drops all of the process's locks on it.
    with create(name, NBYTES, kind=OUTBOX) as mine:
        mine.announce()
        for _ in range(3):
            attach(name).close()
            leftovers()
        assert mine.is_live()


def test_a_process_that_stops_while_it_holds_the_lock_of_a_name_is_reported(name, monkeypatch):
    monkeypatch.setattr(names, "NAME_PATIENCE_S", 0.05)
    leave_stale(name)
    fd = os.open(path_of(name), os.O_RDWR)
    assert ofd_locks.lock(fd, names.NAME)
    with pytest.raises(SegmentError, match="another process stopped") as caught:
        create(name, NBYTES, kind=OUTBOX)
    assert caught.value.errno == errno.EBUSY
    os.close(fd)
    create(name, NBYTES, kind=OUTBOX).close()


def test_leftovers_distinguish_live_from_stale_and_sweep_removes_a_sessions_stale_ones(session):
    stale, sub, live, other = (
        segment_name(session, 0),
        segment_name(f"{session}/sub", 0),
        segment_name(session, "live"),
        segment_name(session + "2", 0),
    )
    for name in (stale, sub, other):
        leave_stale(name)
    with create(live, NBYTES, kind=OUTBOX):
        found = {left.name: left for left in leftovers()}
        assert {n: found[n].status for n in (stale, sub, live, other)} == {
            stale: "stale",
            sub: "stale",
            live: "live",
            other: "stale",
        }
        assert found[stale].nbytes == NBYTES
        assert found[live].pid == os.getpid()
        assert sorted(sweep(session)) == sorted([stale, sub])
        assert standing(session) == [live]
        assert sweep(session) == []
    assert sweep(session + "2") == [other]


def test_the_locks_of_a_dead_process_may_be_held_for_a_while_after_its_death(name, session, monkeypatch):
    leave_stale(name)
    with open(path_of(name), "r+b") as file:
        assert ofd_locks.lock(file.fileno(), names.LIFE)
        (left,) = leftovers(session)
        assert left.status == "live"
        monkeypatch.setattr(sweeps, "DEATH_GRACE_S", 0.0)
        monkeypatch.setattr(sweeps, "EXIT_GRACE_S", math.inf)
        released = threading.Timer(0.1, ofd_locks.unlock, (file.fileno(), names.LIFE))
        released.start()
        sweep_after(session, [left.pid])
        released.join()
    assert leftovers(session) == []


def test_names_of_other_processes_are_not_waited_for(name, session):
    with create(name, NBYTES, kind=OUTBOX, params=(1, 2, 3)) as segment:
        segment.announce()
        sweep_after(session, [])
        assert [left.name for left in leftovers(session)] == [name]


# -- what is not to be trusted ----------------------------------------------------------------------------------------


def refused(name, match):
    """Attaching refuses what stands under ``name``, with and without insisting."""
    for way in (attach, try_attach):
        with pytest.raises(SegmentError, match=match):
            way(name)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666, 0o610])
def test_a_file_open_to_others_is_refused_and_not_replaced(name, mode):
    with Squatter(name, forged(), mode):
        refused(name, rf"open to others: mode {mode:04o}")
        with pytest.raises(SegmentError, match="open to others"):
            create(name, NBYTES, kind=OUTBOX)


@needs_stranger
@pytest.mark.parametrize("locked", [True, False])
def test_a_file_of_another_user_is_refused_and_not_replaced(name, locked):
    with Squatter(name, forged(), uid=STRANGER, locked=locked):
        refused(name, f"belongs to uid {STRANGER}, not to this user")
        with pytest.raises(SegmentError, match=f"uid {STRANGER}"):
            create(name, NBYTES, kind=OUTBOX)
        assert f"uid {STRANGER}" in next(left.status for left in leftovers() if left.name == name)


@needs_stranger
def test_another_user_cannot_attach(name):
    def stranger():
        os.setresuid(STRANGER, STRANGER, STRANGER)
        with pytest.raises(SegmentError, match="may not be opened: it is a file of uid 0, mode 0600") as caught:
            attach(name)
        assert caught.value.errno == errno.EACCES

    with create(name, NBYTES, kind=OUTBOX) as mine:
        mine.announce()
        process = FORK.Process(target=stranger)
        process.start()
        process.join(WATCHDOG_S)
        assert process.exitcode == 0
        process.close()


def test_a_symbolic_link_is_not_followed(name, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(forged())
    target.chmod(0o600)
    for to in (target, "/dev/shm/shmring-nothing-there"):
        os.symlink(to, path_of(name))
        refused(name, "not a segment but a symbolic link")
        with pytest.raises(SegmentError, match="symbolic link"):
            create(name, NBYTES, kind=OUTBOX)
        os.unlink(path_of(name))
    assert target.read_bytes() == forged()
    assert not os.path.exists("/dev/shm/shmring-nothing-there")


@pytest.mark.parametrize(("make", "words"), [(os.mkdir, "a directory"), (os.mkfifo, "a FIFO")])
def test_what_is_not_a_regular_file_is_refused(name, make, words):
    make(path_of(name))
    try:
        refused(name, f"not a segment but {words}")
        with pytest.raises(SegmentError, match=words):
            create(name, NBYTES, kind=OUTBOX)
    finally:
        (os.rmdir if make is os.mkdir else os.unlink)(path_of(name))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"magic": 0x1234}, "magic 0x0000000000001234, expected 0x00676e69726d6873"),
        ({"version": 99}, f"layout version 99, expected {headers.LAYOUT_VERSION}"),
        ({"version": 0}, f"layout version 0, expected {headers.LAYOUT_VERSION}"),
        ({"header_nbytes": 64}, "header size 64, expected 4096"),
        ({"uid": STRANGER}, f"uid {STRANGER}, expected"),
        ({"boot_id": bytes(range(16))}, "boot id 00010203-0405-0607-0809-0a0b0c0d0e0f, expected"),
        ({"kind": 99}, "kind 99, expected one of"),
        ({"rank": -1}, "rank -1 of size 1"),
        ({"rank": 4, "size": 4}, "rank 4 of size 4"),
        ({"size": -5}, "rank 0 of size -5"),
        ({"nbytes": 8193}, "truncated: its header says 8193 bytes, the file has 8192"),
        ({"nbytes": 2**64 - 1}, "truncated"),
        ({"nbytes": 100}, "truncated: its header says 100"),
    ],
)
def test_a_header_that_lies_is_refused_with_what_was_found(name, changes, match):
    with Squatter(name, forged(**changes)):
        refused(name, match)


def test_the_forger_of_these_tests_forges_well(name):
    with Squatter(name, forged()), attach(name, kind=OUTBOX, rank=0) as segment:
        assert segment.nbytes == PAGE_NBYTES


def test_kind_and_rank_must_be_the_expected_ones(name):
    with Squatter(name, forged(rank=3, size=4)):
        with pytest.raises(SegmentError, match="kind outbox, expected array"):
            attach(name, kind=ARRAY)
        with pytest.raises(SegmentError, match="rank 3, expected 2"):
            attach(name, rank=2)


def test_a_segment_may_grow_and_be_announced_while_another_process_looks_at_it(name, monkeypatch):
    def read_after_the_creator(*args):
        os.truncate(path_of(name), NBYTES)
        segment.announce()
        return read_header(*args)

    read_header = segments._read_header
    with create(name, NBYTES, kind=OUTBOX) as segment:
        os.truncate(path_of(name), headers.HEADER_NBYTES)
        monkeypatch.setattr(segments, "_read_header", read_after_the_creator)
        with attach(name) as attached:
            assert attached.nbytes == NBYTES


def test_random_bytes_are_refused_whatever_they_are(name):
    for _ in range(50):
        with Squatter(name, os.urandom(8192)):
            refused(name, "magic 0x[0-9a-f]{16}, expected 0x00676e69726d6873")


@pytest.mark.parametrize("nbytes", [1, 64, 4095])
def test_a_file_without_a_whole_header_is_refused(name, nbytes):
    with Squatter(name, forged()[:nbytes]):
        refused(name, f"truncated: {nbytes} bytes cannot hold the header")


def test_another_version_is_refused_before_it_is_ready(name):
    other = headers.LAYOUT_VERSION + 1
    with Squatter(name, forged(version=other)[:128] + bytes(PAGE_NBYTES - 128)):
        refused(name, f"layout version {other}, expected {other - 1}")


# -- what the kernel refuses ------------------------------------------------------------------------------------------


def run_with_small_shm(size, program):
    """Run a program in a mount namespace whose /dev/shm has ``size`` bytes."""
    command = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec {sys.executable} -c "$0"'
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", command, textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )


def can_mount():
    return os.geteuid() == 0 and run_with_small_shm("1m", "pass").returncode == 0


@pytest.mark.skipif(not can_mount(), reason="only root may mount a small /dev/shm, and not everywhere")
def test_a_too_small_shm_is_an_error_with_numbers_and_costs_nothing():
    program = """
        import os
        from shmring.core.memory.segment import *
        from shmring.errors import OutOfSharedMemoryError
        try:
            create(segment_name("small", 0), 2 << 20, kind=OUTBOX)
        except OutOfSharedMemoryError as error:
            print(error.needed, error.available, os.listdir("/dev/shm"))
            print(error)
        with create(segment_name("small", 0), 1 << 20, kind=OUTBOX) as all_of_it:
            memoryview(all_of_it.mapping)[4096:] = bytes([7]) * ((1 << 20) - 4096)
            try:
                create(segment_name("small", 1), 4096, kind=OUTBOX)
            except OutOfSharedMemoryError as error:
                print(error.needed, error.available, len(os.listdir("/dev/shm")))
        print(os.listdir("/dev/shm"))
    """
    done = run_with_small_shm("1m", program)
    assert done.stderr == ""
    first, message, second, last = done.stdout.splitlines()
    assert first == f"{2 << 20} {1 << 20} []"
    assert "--shm-size" in message
    assert f"{1 << 20} bytes free" in message
    assert second == "4096 0 1"
    assert last == "[]"


@pytest.mark.skipif(not can_mount(), reason="only root may mount a small /dev/shm, and not everywhere")
def test_no_room_for_a_name_is_an_error_too():
    program = """
        from shmring.core.memory.segment import *
        from shmring.errors import OutOfSharedMemoryError
        kept = []
        try:
            for part in range(10):
                kept.append(create(segment_name("small", part), 4096, kind=OUTBOX))
        except OutOfSharedMemoryError as error:
            print(len(kept), error)
    """
    done = run_with_small_shm("1m,nr_inodes=4", program)
    assert done.stdout.startswith(f"3 cannot create {spelling.user_prefix()}small.")
    assert "no room for a file" in done.stdout


@pytest.mark.parametrize(
    "options", [{}, {"place": lambda *_: None}, {"sparse_nbytes": NBYTES - 4096}], ids=["plain", "placed", "sparse"]
)
def test_a_file_size_limit_is_an_error(name, session, options):
    with limited(resource.RLIMIT_FSIZE, 8192):
        with pytest.raises(OutOfSharedMemoryError, match="File too large") as caught:
            create(name, NBYTES, kind=OUTBOX, **options)
        assert caught.value.needed == NBYTES
    assert standing(session) == []


@pytest.mark.parametrize("place", [None, lambda *_: None], ids=["plain", "placed"])
def test_the_first_page_that_finds_no_room_is_an_error_with_the_size_needed(name, session, place, monkeypatch):
    monkeypatch.setattr(syscalls, "fault", without_room())
    with pytest.raises(OutOfSharedMemoryError, match=f"cannot reserve {NBYTES} bytes") as caught:
        create(name, NBYTES, kind=OUTBOX, place=place)
    assert caught.value.needed == NBYTES
    assert standing(session) == []


def test_no_descriptor_left_is_an_error(name, session):
    with limited(resource.RLIMIT_NOFILE, 3):
        for use in (lambda: create(name, NBYTES, kind=OUTBOX), lambda: attach(name)):
            with pytest.raises(SegmentError, match=r"maximum number of files open|Too many open files"):
                use()
    assert standing(session) == []


class FailOnce:
    """A fault that makes the n-th system call fail, or, without an error, kills; ``failed`` is its name."""

    def __init__(self, fail_at, error=None):
        self.left = fail_at
        self.error = error
        self.failed = None

    def __call__(self, call):
        self.left -= 1
        if self.left == 0:
            self.failed = call
            if self.error is None:
                os.kill(os.getpid(), signal.SIGKILL)
            raise self.error


@pytest.mark.sample(2)
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("error", [lambda: OSError(errno.EIO, "out of luck"), KeyboardInterrupt], ids=["EIO", "ctrl-c"])
def test_each_system_call_of_a_segments_life_may_fail_and_nothing_is_left(name, session, error, stale):
    gc.collect()  # finalizers of earlier tests make system calls, too
    failed = set()
    for fail_at in range(1, 1000):
        if stale:
            leave_stale(name, 8192)
        syscalls.fault = fault = FailOnce(fail_at, error())
        caught = live_a_life(name)
        syscalls.fault = None
        if fault.failed is None:
            break
        failed.add(fault.failed)
        # Looking for a pid to put into a message is the one thing that may fail unnoticed.
        assert caught == getattr(fault.error, "errno", KeyboardInterrupt) or (stale and caught is None)
        # A stale name that could not even be looked at stays as it was; nothing of ours does.
        assert [left.status for left in leftovers() if left.name == name] in ([], ["stale"] if stale else [])
        sweep(session)
        assert standing(session) == []
    assert fault.failed is None, "the list of calls did not end"
    assert caught is None
    assert failed == {"shm_open", "shm_unlink", "fstat", "lstat", "fcntl", "posix_fallocate", "mmap", "madvise"}


def live_a_life(name):
    """Create, attach, ask, unlink, close; what came in between: an errno, KeyboardInterrupt, None."""
    try:
        with create(name, 8192, kind=OUTBOX) as mine:
            mine.announce()
            with attach(name) as peer:
                assert peer.is_live()
                peer.unlink()
    except SegmentError as error:
        return error.errno
    except KeyboardInterrupt:
        return KeyboardInterrupt
    return None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG])
def test_no_room_is_one_error_whatever_the_kernel_calls_it(name, session, number, monkeypatch):
    status = os.statvfs("/dev/shm")  # as it is now: other programs take and free memory meanwhile
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    monkeypatch.setattr(syscalls, "fault", without_room(number))
    with pytest.raises(OutOfSharedMemoryError, match="docker run --shm-size") as caught:
        create(name, NBYTES, kind=OUTBOX)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.needed == NBYTES
    assert caught.value.available == free_nbytes() > 0
    assert standing(session) == []


def test_a_killed_creator_leaves_at_most_a_stale_name_wherever_it_dies(name, session):
    calls = 0
    for fail_at in range(1, 1000):

        def die(fail_at=fail_at):
            syscalls.fault = FailOnce(fail_at)
            with create(name, 8192, kind=OUTBOX) as segment:
                segment.announce()

        process = FORK.Process(target=die)
        process.start()
        process.join(WATCHDOG_S)
        status = process.exitcode
        process.close()
        if status == 0:
            break
        assert status == -signal.SIGKILL
        calls += 1
        until_released(name)
        assert [left.status for left in leftovers() if left.name == name] in ([], ["stale"])
        create(name, 8192, kind=OUTBOX).close()
        assert standing(session) == []
    assert calls > 8


def test_all_that_segment_exports_exists():
    assert all(hasattr(segments, word) for word in segments.__all__)


@pytest.mark.parametrize("hides", [names.NameHeldError, SegmentError, OSError])
def test_an_error_in_giving_back_a_name_does_not_hide_the_first_one(name, monkeypatch, hides):
    def refuse(*_, **__):
        raise hides(errno.EBUSY, "refused")

    def interrupt(*_, **__):
        monkeypatch.setattr(names, "_unlink", refuse)
        raise KeyboardInterrupt("the first one")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "stamp", interrupt)
        try:
            create(name, NBYTES, kind=ARRAY)
        except KeyboardInterrupt as error:
            found = [error]  # keeps the claim, by its traceback, until the kernel no longer refuses
    assert str(found[0]) == "the first one"
    monkeypatch.undo()
    found.clear()
    gc.collect()
    create(name, NBYTES, kind=ARRAY).close()


def test_closing_unmaps_even_if_the_name_cannot_be_unlinked(name, monkeypatch):
    def refuse(*_, **__):
        raise SegmentError(errno.EACCES, "refused")

    segment = create(name, NBYTES, kind=ARRAY)
    with monkeypatch.context() as patch:
        patch.setattr(names, "_unlink", refuse)
        with pytest.raises(SegmentError, match="refused"):
            segment.close()
    assert segment.mapping.closed
    segment.close()
    assert not os.path.exists(path_of(name))


@pytest.mark.parametrize("kind", ["unnamed", "sparse"])
def test_a_descriptor_is_closed_once_if_an_interrupt_comes_as_the_segment_is_made(name, kind, monkeypatch):
    closed = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda fd: closed.append(fd) or close(fd))

    def interrupt(frame, event, _):
        if event == "return" and frame.f_code is segments.Segment.__init__.__code__:
            raise KeyboardInterrupt
        return interrupt

    tracer = sys.gettrace()
    gc.collect()
    before = os.listdir("/proc/self/fd")
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            create_unnamed(name, NBYTES, kind=RING) if kind == "unnamed" else create(
                name, NBYTES, sparse_nbytes=4096, kind=RING
            )
    finally:
        sys.settrace(tracer)
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)
    assert len(closed) == len(set(closed)) > 0


INTERRUPTED = """
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <errno.h>
    int posix_fallocate64(int fd, long offset, long nbytes) {
        int (*real)(int, long, long) = (int (*)(int, long, long))dlsym(RTLD_NEXT, "posix_fallocate64");
        return nbytes > 1 << 20 ? EINTR : real(fd, offset, nbytes);
    }
    int posix_fallocate(int fd, long offset, long nbytes) { return posix_fallocate64(fd, offset, nbytes); }
"""
RESERVE = """
    import os
    from shmring.core.memory.reserve import reserve
    fd = os.memfd_create("reserved")
    reserve("reserved", fd, 4096, 32 << 20)
    print(os.fstat(fd).st_size, os.fstat(fd).st_blocks * 512)
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="a sanitizer is preloaded")
def test_memory_is_reserved_in_parts_that_fit_between_the_signals_of_a_timer(tmp_path):
    """On a kernel whose calls are interrupted if they reserve more than 1 MiB."""
    (tmp_path / "interrupted.c").write_text(textwrap.dedent(INTERRUPTED))
    library = str(tmp_path / "interrupted.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "interrupted.c", "-ldl"], check=True)
    env = {**os.environ, "LD_PRELOAD": library}
    ran = run_program(sys.executable, "-c", textwrap.dedent(RESERVE), env=env)
    assert (ran.stdout, ran.stderr) == (f"{(32 << 20) + 4096} {32 << 20}\n", "")


def test_an_interrupt_in_the_middle_of_a_reservation_gives_back_what_is_reserved():
    fd = os.memfd_create("reserved")
    nbytes = 256 << 20

    def interrupt(*_):
        if 0 < os.fstat(fd).st_blocks * 512 < nbytes:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        with pytest.raises(KeyboardInterrupt):
            reserve("reserved", fd, 0, nbytes)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert os.fstat(fd).st_blocks == 0
    os.close(fd)


@pytest.mark.skipif(os.statvfs("/dev/shm").f_blocks == 0, reason="shared memory without a limit")
def test_more_than_the_file_system_can_ever_hold_is_refused_before_anything_is_reserved():
    with pytest.raises(OutOfSharedMemoryError, match=str(1 << 60)):
        create_unnamed("huge", 1 << 60, kind=RING)
