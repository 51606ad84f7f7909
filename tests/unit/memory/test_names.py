"""Names: their spelling, and which process holds them; stopped, forked and dying holders."""

import contextlib
import errno
import multiprocessing
import os
import re
import secrets
import signal
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest
from support.namespaces import needs_mount
from support.programs import WATCHDOG_S, run_program

from shmring.core.memory import names, ofd_locks, spelling
from shmring.core.memory.names import NameHeldError, claim, join
from shmring.core.memory.segment import OUTBOX, create
from shmring.core.memory.spelling import segment_name
from shmring.core.memory.sweep import leftovers, sweep, sweep_leftovers
from shmring.errors import SegmentError

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def name(session):
    """A name in this test's session."""
    return segment_name(session, "r0")


@contextlib.contextmanager
def descriptor(name):
    """Another open file of ``name``."""
    fd = os.open(names.SHM_DIRECTORY + name, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def stands(name):
    return os.path.exists(names.SHM_DIRECTORY + name)


# -- spelling ---------------------------------------------------------------------------------------------------------


def test_names_carry_uid_session_and_part_and_fit_whatever_the_session():
    long = "x" * 10_000 + "/" + "é/ ☃" * 1000
    name = segment_name(long, "p" * 64)
    assert len(name.encode()) <= 255
    assert re.fullmatch(rf"{spelling.user_prefix()}[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-p{{64}}", name)
    assert segment_name("job", 7).startswith(f"{spelling.user_prefix()}job.")
    assert segment_name("job", 7).endswith("-7")


def test_a_prefix_in_the_environment_keeps_programs_apart(monkeypatch, session):
    uid = os.geteuid()
    monkeypatch.delenv("SHMRING_FILE_PREFIX")
    assert spelling.user_prefix() == f"/shmring-{uid}-"
    monkeypatch.setenv("SHMRING_FILE_PREFIX", "x" * 32)
    assert spelling.user_prefix() == f"/shmring-{'x' * 32}.{uid}-"
    assert len(segment_name("s" * 99 + "/" + "t" * 99, "p" * 64)) <= 255
    monkeypatch.setenv("SHMRING_FILE_PREFIX", f"{secrets.token_hex(4)}a")
    first = create(segment_name(session, "r0"), 4096, kind=OUTBOX)
    assert [found.name for found in leftovers()] == [first.name]
    monkeypatch.setenv("SHMRING_FILE_PREFIX", f"{secrets.token_hex(4)}b")
    assert leftovers() == leftovers(session) == []
    second = create(segment_name(session, "r0"), 4096, kind=OUTBOX)
    assert first.name != second.name
    first.unlink()
    second.unlink()


@pytest.mark.parametrize("prefix", ["a-b", "a/b", "x" * 33, "é"])
def test_a_prefix_that_no_name_may_have_is_refused(prefix, monkeypatch):
    monkeypatch.setenv("SHMRING_FILE_PREFIX", prefix)
    with pytest.raises(ValueError, match="SHMRING_FILE_PREFIX"):
        spelling.user_prefix()


def test_sessions_that_look_alike_have_different_names():
    alike = ["a b", "a_b", "a-b", "a.b", "a/b", "a/b/c", "a", "a/", "A b"]
    assert len({segment_name(session, 0) for session in alike}) == len(alike)


@pytest.mark.parametrize("part", ["", "a/b", "x" * 65, "..\0", "é"])
def test_a_part_that_cannot_be_in_a_name_is_a_value_error(part):
    with pytest.raises(ValueError, match="part="):
        segment_name("job", part)


# -- claims -----------------------------------------------------------------------------------------------------------


def test_a_claim_holds_the_name_until_it_is_released(name):
    held = claim(name)
    with descriptor(name) as fd:
        assert names.is_alive(fd)
        assert not names.remove_stale(name)
        held.release()
        assert not names.is_alive(fd)
    assert not stands(name)
    held.release()


def test_an_abandoned_name_stays_and_is_stale(name):
    claim(name).abandon()
    with names.opened(name) as fd:
        assert not names.is_alive(fd)
    assert names.remove_stale(name)
    assert not stands(name)


def test_the_two_locks_of_a_name_are_independent_and_exclude_open_files_not_processes(name):
    held = claim(name)
    with descriptor(name) as one, descriptor(name) as two:
        assert ofd_locks.lock(one, names.NAME)
        assert not ofd_locks.lock(one, names.LIFE)
        assert not ofd_locks.lock(two, names.NAME)
        assert names.is_alive(two)
    held.release()


def test_a_reopened_descriptor_shares_no_lock_with_the_claim(name):
    held = claim(name)
    another = names.reopen(name, held.fd)
    assert names.is_alive(another.fd)
    names.remove(name, held.inode)
    with pytest.raises(SegmentError, match="unlinked while it was being created"):
        names.reopen(name, held.fd)
    held.release()
    assert not names.is_alive(another.fd)


def test_a_claim_waits_for_the_holder_of_the_name_lock_and_can_be_released_again(name, monkeypatch):
    monkeypatch.setattr(names, "UNLINK_PATIENCE_S", 0.05)
    held = claim(name)
    with descriptor(name) as fd:
        assert ofd_locks.lock(fd, names.NAME)
        with pytest.raises(NameHeldError) as caught:
            held.release()
        assert caught.value.errno == errno.EBUSY
        assert stands(name)
        assert names.is_alive(fd)
    held.release()
    assert not stands(name)


def test_a_living_creator_cannot_give_its_name_away_between_the_look_and_the_unlink_of_another_rank(name, monkeypatch):
    monkeypatch.setattr(names, "UNLINK_PATIENCE_S", 0.05)
    held = claim(name)
    looks = []

    def look_and_pause(*args):
        looks.append(refers_to(*args))
        if len(looks) == 2:  # the rank holds NAME, and LIFE is the creator's: it alone would not stop the creator
            with pytest.raises(NameHeldError):
                held.release()
        return looks[-1]

    refers_to = names.refers_to
    monkeypatch.setattr(names, "refers_to", look_and_pause)
    names.remove(name, held.inode)
    assert looks[:2] == [True, True]
    monkeypatch.undo()
    again = claim(name)  # the next rendezvous of this name: the first creator does not touch it
    held.release()
    assert stands(name)
    again.release()


def test_the_last_holder_of_a_shared_name_unlinks_it(name):
    first = claim(name)
    assert join(name) is None  # not shared yet
    first.share()
    second, third = join(name), join(name)
    for leaving in (first, third):
        leaving.release()
        with names.opened(name) as fd:
            assert names.is_alive(fd)
    second.release()
    assert not stands(name)
    assert join(name) is None


def test_one_holder_of_a_shared_name_at_a_time_is_alone(name, monkeypatch):
    monkeypatch.setattr(names, "NAME_PATIENCE_S", 0.05)
    first = claim(name)
    first.share()
    second = join(name)
    with first.alone(), pytest.raises(NameHeldError), second.alone():
        pass
    with second.alone():
        pass
    first.release()
    second.release()


def test_a_block_may_end_after_the_file_is_closed(name):
    held = claim(name)
    block = held.alone()
    block.__enter__()  # as where a signal handler raises before the block: the exception keeps this
    held.release()
    block.__exit__(None, None, None)
    claim(name).release()


# -- forks ------------------------------------------------------------------------------------------------------------


def in_child(function):
    """The exit status of a forked child that runs ``function``."""
    process = FORK.Process(target=function)
    process.start()
    process.join(WATCHDOG_S)
    status = process.exitcode
    process.close()
    return status


def test_a_forked_child_holds_no_claim_and_can_make_its_own(name, session):
    held = claim(name)

    def child():
        assert held.fd == -1
        assert not list(names._claims)
        held.release()  # does nothing
        assert stands(name)
        with descriptor(name) as fd:
            assert names.is_alive(fd)  # the parent's
        own = claim(segment_name(session, "child"))
        own.release()

    assert in_child(child) == 0
    with descriptor(name) as fd:
        assert names.is_alive(fd)
    held.release()


def test_a_dead_childs_claim_is_stale(name):
    def child():
        held = claim(name)
        os.kill(os.getpid(), signal.SIGKILL)
        held.release()

    assert in_child(child) == -signal.SIGKILL
    with names.opened(name) as fd:
        assert not names.is_alive(fd)
    claim(name).release()  # replaces it
    assert not stands(name)


@pytest.mark.parametrize("session", [3, b"job", ["job"]])
def test_a_session_that_is_no_text_is_refused(session):
    with pytest.raises(TypeError, match="session="):
        leftovers(session)
    with pytest.raises(TypeError, match="session="):
        sweep(session)
    with pytest.raises(TypeError, match="session="):
        segment_name(session, "r0")


def test_a_claim_whose_release_was_interrupted_does_not_keep_a_child_from_closing_the_others(name, session):
    broken = claim(segment_name(session, "broken"))
    held = claim(name)
    other = claim(segment_name(session, "other"))
    broken._file.close()  # an exception comes right after it
    names.remove_stale(broken.name)

    def child():
        assert held.fd == other.fd == broken.fd == -1
        assert not list(names._claims)
        thread = threading.Thread(target=lambda: claim(segment_name(session, "child")).release())
        thread.start()
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()

    assert in_child(child) == 0
    for one in (held, other, broken):
        one.release()


def test_the_file_of_a_new_claim_is_empty(name):
    claimed = claim(name)
    assert os.fstat(claimed.fd).st_size == 0
    claimed.release()


def test_a_claim_that_an_interrupt_has_lost_releases_itself(name):
    claim(name)
    assert not stands(name)


def test_a_claim_that_a_traceback_keeps_is_released_as_the_process_ends(name):
    program = f"from shmring.core.memory import names; names.kept = names.claim({name!r})"
    assert run_program(sys.executable, "-c", program).stderr == ""
    assert not stands(name)


CTRL_C = """
    import os, signal
    import shmring
    from shmring.core.memory import names

    unlink, times = names._unlink, {times}

    def interrupt(*args, **options):
        global times
        if times:
            times -= 1
            signal.raise_signal(signal.SIGINT)
        return unlink(*args, **options)

    sender, receiver = shmring.channel()
    claimed = names.claim({name!r})
    names._unlink = interrupt
    try:
        claimed = None
        {then}
    except KeyboardInterrupt:
        print("interrupted", os.path.exists("/dev/shm" + {name!r}), flush=True)
    sender.close()
    receiver.close()
"""


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("then", ["receiver.recv()", "int()"])
def test_ctrl_c_in_the_deallocation_of_a_claim_reaches_the_program(name, times, then):
    """At once in a call that waits; and what two of them have kept from being released is released at exit."""
    program = textwrap.dedent(CTRL_C.format(name=name, times=times, then=then))
    ran = run_program(sys.executable, "-c", program)
    assert (ran.stdout, ran.stderr) == (f"interrupted {times == 2}\n", "")
    assert not stands(name)


@pytest.mark.filterwarnings("error")
def test_a_block_that_an_interrupt_has_left_open_ends_after_its_file(name):
    claimed = claim(name)
    block = claimed.alone()
    block.__enter__()
    os.unlink(names.SHM_DIRECTORY + name)
    claimed.abandon()
    del block


MAKERS = """
    import shmring
    for make in (
        lambda: shmring.init(rank=0, size=1, session="none"),
        lambda: shmring.init(rank=0, size=2, session="none"),
        lambda: shmring.open_channel("none", "sender"),
        lambda: shmring.open_channel("none", "receiver"),
        lambda: shmring.channel(),
        lambda: shmring.channel(dtype=int),
        lambda: shmring.fan_in(2),
        lambda: shmring.broadcast_channel(2),
        lambda: shmring.Queue(),
        lambda: shmring.JoinableQueue(),
        lambda: shmring.spawn(print, 2, start_method="fork"),
    ):
        try:
            print(make())
        except shmring.errors.SegmentError as error:
            print(error)
    assert (shmring.leftovers(), shmring.sweep("none")) == ([], [])
    shmring.list_channels()  # those of other processes here
"""
DEVICES = "mknod /dev/null c 1 3; mknod /dev/urandom c 1 9"


@pytest.mark.sample(1)
@needs_mount
@pytest.mark.parametrize(
    ("mount", "message"),
    [
        (f"mount -t tmpfs tmpfs /dev; {DEVICES}", "[Errno 2] this system has no /dev/shm, where shared"),
        (f"mount -t tmpfs tmpfs /dev; {DEVICES}; : > /dev/shm", "[Errno 20] this system has no /dev/shm, where shared"),
        ("mount -t tmpfs -o ro tmpfs /dev/shm", "[Errno 30] /dev/shm does not let this user create"),
    ],
    ids=["missing", "no directory", "read-only"],
)
def test_without_dev_shm_every_call_that_makes_shared_memory_raises_at_once(mount, message):
    command = ["unshare", "-m", "sh", "-ec", f'{mount}; exec "$0" -c "$1"', sys.executable, textwrap.dedent(MAKERS)]
    lines = run_program(*command).stdout.splitlines()
    assert len(lines) == 11, lines
    assert [line for line in lines if not line.startswith(message)] == []


def test_a_job_that_begins_removes_what_killed_jobs_left_and_nothing_else(session):
    def named(part):
        return segment_name(session, part)

    pid = os.fork()
    if pid == 0:
        _kept = [create(named(part), 8192, kind=OUTBOX) for part in ("r0", "r1")]
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    alive = create(named("r3"), 8192, kind=OUTBOX)
    assert {one.status for one in leftovers(session)} == {"stale", "live"}
    program = "import shmring; shmring.init(rank=0, size=1, session='another').close()"
    run_program(sys.executable, "-c", program)
    assert [one.name for one in leftovers(session)] == [named("r3")]
    alive.close()


def test_whoever_wants_a_name_waits_for_the_process_that_may_be_about_to_lock_it(session):
    name, paces = segment_name(session, "r0"), []
    os.close(os.open(names.SHM_DIRECTORY + name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    pace = SimpleNamespace(pause=lambda: paces.append(1))
    first_seen = {}
    names._make_room(name, first_seen, pace)
    assert (paces, [one.name for one in leftovers(session)]) == ([1], [name])
    first_seen[next(iter(first_seen))] -= names.BIRTH_GRACE_S
    names._make_room(name, first_seen, pace)
    assert (paces, leftovers(session)) == ([1], [])


def test_an_empty_name_that_a_process_may_be_about_to_lock_is_left_alone(session, monkeypatch):
    name = segment_name(session, "r0")
    os.close(os.open(names.SHM_DIRECTORY + name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    born = os.lstat(names.SHM_DIRECTORY + name).st_ctime
    for after_s, left in ((0, [name]), (names.BIRTH_GRACE_S + 0.01, [])):
        monkeypatch.setattr("shmring.core.memory.sweep.time.time", lambda now=born + after_s: now)
        sweep_leftovers()
        assert [one.name for one in leftovers(session)] == left


def test_the_calls_without_posix_ipc_raise_as_it_does(name):
    """Where there is no wheel of it (the free-threaded CPython)."""
    from shmring.core.memory import descriptor as stand_in

    with pytest.raises(stand_in.ExistentialError, match=re.escape(os.strerror(errno.ENOENT))):
        stand_in.SharedMemory(name)
    fd = stand_in.SharedMemory(name, stand_in.O_CREX)
    try:
        assert os.path.samestat(os.fstat(fd), os.stat(names.SHM_DIRECTORY + name))
        with pytest.raises(stand_in.ExistentialError, match=re.escape(os.strerror(errno.EEXIST))):
            stand_in.SharedMemory(name, stand_in.O_CREX)
    finally:
        os.close(fd)
        stand_in.unlink_shared_memory(name)
    with pytest.raises(stand_in.ExistentialError):
        stand_in.unlink_shared_memory(name)
    with pytest.raises(ValueError, match=re.escape(os.strerror(errno.EINVAL))):
        stand_in.SharedMemory("/..")
