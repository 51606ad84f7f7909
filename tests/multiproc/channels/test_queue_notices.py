"""Queues that nobody else has: `get` ends; and those that somebody still has, in any way: it waits.

Each test runs in a child: the process of the tests has threads, which might put an item.
"""

import ctypes
import functools
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.util
import os
import queue
import resource
import signal
import threading
import time

import pytest
from support.children import in_child, kill, status_of
from support.harness import PATIENCE, eventually

import shmring
import shmring.multiprocessing
from shmring import PeerLostError
from shmring.core.ring.inspect import look

METHODS = ["fork", "spawn", "forkserver"]
WAIT_S = 60 * PATIENCE


def in_a_program(test):
    """Run a test in a process of one thread."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        def program():
            multiprocessing.util._run_after_forkers()  # what multiprocessing does in its own children,
            multiprocessing.forkserver._forkserver.__init__()  # and what it cannot do in them
            test(*args, **kwargs)

        assert status_of(in_child(program)) == 0

    return run


def started(method, target, *args):
    process = multiprocessing.get_context(method).Process(target=target, args=args)
    process.start()
    return process


def put_all(q, items, how=None):
    for item in items:
        q.put(item)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def get_to_the_end(q):
    got = []
    with pytest.raises(PeerLostError, match="no item can come"):
        while True:
            got.append(q.get())
    return got


@pytest.mark.sample(3)
@pytest.mark.leaks  # multiprocessing keeps its fork server, and a thread that hands over descriptors
@pytest.mark.parametrize("how", ["ended", "killed"])
@pytest.mark.parametrize("method", METHODS)
@in_a_program
def test_get_ends_when_the_only_producer_has_ended(method, how):
    q = shmring.Queue()
    process = started(method, put_all, q, ["first", "second"], how)
    assert get_to_the_end(q) == ["first", "second"]
    process.join()
    with pytest.raises(PeerLostError):
        q.get()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.01)  # this process itself may put one later
    q.put("from here")
    assert q.get() == "from here"


@pytest.mark.parametrize("item", [bytes(3 << 20), {"long": bytes(3 << 20)}], ids=["bytes", "object"])
@in_a_program
def test_get_ends_when_the_producer_is_killed_in_the_middle_of_an_item(item):
    q = shmring.Queue(capacity_nbytes=1 << 12)
    q.put("whole")
    pid = in_child(q.put, item)
    eventually(lambda: assert_true(fill_of(q) > 0.5))
    kill(pid)
    assert get_to_the_end(q) == ["whole"]
    assert q.qsize() == 0


def assert_true(value):
    assert value


def fill_of(q):
    """How full its ring is."""
    memory = q.__reduce__()[1][1]
    return look(memoryview(memory.mapping)[memory.ring_offset :]).fill


@in_a_program
def test_get_ends_when_a_process_that_waits_at_the_other_side_of_a_fork_is_all_that_is_left():
    """The parent is killed: its child learns so."""
    q, result = shmring.Queue(), shmring.Queue()

    def parent():
        def child():
            result.put(get_to_the_end(q))

        assert in_child(child)
        q.put(1)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    pid = in_child(parent)
    q.close()  # this process has it no longer
    assert status_of(pid) == -signal.SIGKILL
    assert result.get(timeout=WAIT_S) == [1]


@in_a_program
def test_a_poll_without_timeout_ends_as_get():
    q = shmring.Queue()
    pid = in_child(lambda: None)
    assert q.poll(None)
    with pytest.raises(PeerLostError):
        q.get()
    assert status_of(pid) == 0
    assert not q.poll(0)
    assert not q.poll(0.01)


@in_a_program
def test_closing_the_queue_elsewhere_is_enough():
    q, event = shmring.Queue(), multiprocessing.get_context("fork").Event()

    def child():
        q.put("from a child")
        q.close()
        event.wait()

    pid = in_child(child)
    assert get_to_the_end(q) == ["from a child"]
    event.set()
    assert status_of(pid) == 0


# ---- no false alarms ----


def slow_to_put(q, seconds):
    time.sleep(seconds)
    q.put("late")


@pytest.mark.sample(1)
@pytest.mark.leaks
@pytest.mark.parametrize("method", METHODS)
@in_a_program
def test_a_process_that_is_slow_is_waited_for(method):
    q = shmring.Queue()
    process = started(method, slow_to_put, q, 0.5)
    assert q.get() == "late"
    process.join()


class Slow:
    """Unpickles for half a second, before the queue in the same arguments is unpickled."""

    def __reduce__(self):
        return time.sleep, (0.5,)


def put_late(_slow, q):
    q.put("late")


@pytest.mark.leaks
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@in_a_program
def test_a_process_that_has_not_unpickled_the_queue_yet_is_waited_for(method):
    q = shmring.Queue()
    process = started(method, put_late, Slow(), q)
    assert q.get() == "late"
    process.join()


def pass_on(carrier, q):
    carrier.put(q)
    time.sleep(60 * PATIENCE)  # it lives until the test kills it


@pytest.mark.leaks
@in_a_program
def test_a_queue_that_is_an_item_of_another_queue_is_not_lost_while_it_is_under_way():
    q, carrier = shmring.Queue(), shmring.Queue()

    def sends():
        carrier.put(q)
        q.close()  # only the item that nobody has got yet has it
        time.sleep(60 * PATIENCE)

    sender = in_child(sends)
    eventually(lambda: assert_true(carrier.qsize() == 1))
    with pytest.raises(queue.Empty):
        q.get(timeout=0.3)

    def takes():
        time.sleep(0.3)
        carrier.get().put("through both")

    taker = in_child(takes)
    assert q.get() == "through both"
    assert status_of(taker) == 0
    kill(sender)


@in_a_program
def test_a_thread_of_this_process_that_may_still_put_is_waited_for():
    q = shmring.Queue()
    assert status_of(in_child(lambda: None)) == 0
    event = threading.Event()

    def put():
        event.wait()
        time.sleep(0.3)
        q.put("from a thread")

    thread = threading.Thread(target=put)
    thread.start()
    event.set()
    assert q.get() == "from a thread"
    thread.join()
    with pytest.raises(PeerLostError):
        q.get()


@in_a_program
def test_a_thread_that_is_leaving_the_process_is_not_waited_for():
    """As one that was joined: it may be among the threads of the process for a moment."""
    q = shmring.Queue()
    assert status_of(in_child(lambda: None)) == 0
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    sleep = ctypes.cast(libc.usleep, ctypes.c_void_p)
    assert libc.pthread_create(ctypes.byref(thread), None, sleep, ctypes.c_void_p(2000)) == 0
    with pytest.raises(PeerLostError):
        q.get()


@in_a_program
def test_a_thread_of_c_that_may_still_put_is_waited_for():
    """It calls Python code after a while: until then no thread of Python's is there."""
    q = shmring.Queue()
    assert status_of(in_child(lambda: None)) == 0
    libc = ctypes.CDLL(None)
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    sleeps = ctypes.CDLL(None).usleep

    def run(_):
        q.put("from C")
        return None

    called = function(run)
    thread = ctypes.c_ulong()
    assert sleeps(1) == 0
    assert libc.pthread_create(ctypes.byref(thread), None, called, None) == 0
    assert q.get() == "from C"
    libc.pthread_join(thread, None)


@in_a_program
def test_a_wait_sleeps_at_once_beside_a_thread_of_c():
    """Such threads are there for ever: a wait that looked whether they leave took 10 ms each time."""
    there, back, count = shmring.Queue(), shmring.Queue(), 200
    thread = ctypes.c_ulong()
    pause = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p)
    assert ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, pause, None) == 0
    pid = in_child(lambda: [back.put(there.get()) for _ in range(count)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    for number in range(count):
        there.put(number)
        assert back.get() == number
    assert resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before < 5 * count
    assert status_of(pid) == 0


@in_a_program
def test_a_child_that_has_forked_on_is_waited_for():
    q = shmring.Queue()

    def child():
        def grandchild():
            time.sleep(0.4)
            q.put("from a grandchild")

        in_child(grandchild)

    pid = in_child(child)
    assert status_of(pid) == 0
    assert q.get() == "from a grandchild"
    with pytest.raises(PeerLostError):
        q.get()


@in_a_program
def test_a_queue_that_was_never_shared_waits():
    q = shmring.Queue()
    signal.signal(signal.SIGALRM, lambda *_: q.put("from a handler"))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    assert q.get() == "from a handler"


@in_a_program
def test_two_consumers_of_one_program_wait_for_each_other():
    """Either might put; so neither is told, as with a pipe whose end both have."""
    q = shmring.Queue()

    def wait():
        with pytest.raises(queue.Empty):
            q.get(timeout=0.3)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@in_a_program
def test_descriptors_run_out_and_nothing_false_is_concluded():
    """The open file of a child cannot be made: from then on nobody is told anything."""
    import resource

    q = shmring.Queue()
    first, done = shmring.Queue(), shmring.Queue()

    def consumer():
        try:
            first.put(q.get())
        except PeerLostError:
            first.put("told")

    pid = in_child(consumer)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
    fillers = []
    try:
        while True:
            fillers.append(os.dup(0))
    except OSError:
        pass

    def late():
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        q.put("late")

    def child():
        time.sleep(0.5)
        late()

    other = in_child(child)
    for filler in fillers:
        os.close(filler)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert first.get(timeout=WAIT_S) == "late"
    assert [status_of(pid), status_of(other)] == [0, 0]
    done.close()


# ---- the standard library's interface ----


def take_one(q, results):
    results.put(q.get())


@pytest.mark.leaks
@in_a_program
def test_a_queue_of_the_drop_in_has_both_ends_in_each_process_and_so_waits_as_the_standard_librarys():
    context = shmring.multiprocessing.get_context("fork")
    q = context.Queue()
    with pytest.raises(queue.Empty):
        q.get(timeout=0.2)
    simple = context.SimpleQueue()
    simple._writer.close()  # what a program of pipes does
    with pytest.raises(EOFError):
        simple.get()
    q.close()
