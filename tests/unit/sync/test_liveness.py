"""Liveness with real deaths: one process holds, others probe."""

import contextlib
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from support import compiled
from support.children import in_child, status_of
from support.emulation import EMULATED, METHOD, needs_marks
from support.harness import eventually
from support.programs import run_python
from support.threads import at_once

hooks = compiled.load("liveness_hooks")
drop, hold, probe = hooks.drop, hooks.hold, hooks.probe
IMPORT_HOOKS = f"import sys; sys.path.insert(0, {os.path.dirname(hooks.__file__)!r})\n"

METHODS = {1: {}, 2: {"SHMRING_LIVENESS": "process-table"}}
each_method = pytest.mark.parametrize("method", [pytest.param(1, marks=needs_marks), 2])

# Argument 1: a file to map. Holds the liveness at its start, prints its pid, executes the lines of its input.
HOLDER = (
    IMPORT_HOOKS
    + """
import mmap, os, random, signal, sys, threading
from liveness_hooks import hold, drop
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
hold(memory, 0)
print(os.getpid(), flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
)

# Argument 1: a file to map. Probes the liveness at its start until it is not alive, and prints its state.
OBSERVER = (
    IMPORT_HOOKS
    + """
import mmap, sys, time
from liveness_hooks import probe
with open(sys.argv[1], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
print("looking", flush=True)
while probe(memory).state == "alive":
    time.sleep(0)
print(probe(memory).state, flush=True)
"""
)


@pytest.fixture
def path(tmp_path):
    """A page in a file, for processes that do not inherit memory."""
    path = tmp_path / "page"
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture
def memory(path):
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
    yield memory
    memory.close()


class Holder:
    """A process that holds the liveness at the start of a file."""

    def __init__(self, path, method=METHOD, before=()):
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **METHODS[method]},
        )
        line = self.process.stdout.readline()
        assert line, "the holder did not start"
        self.pid = int(line)

    def send_line(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def do(self, line):
        self.send_line(line)
        assert self.process.stdout.readline() == "done\n"

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(path):
    holders = []

    def start(**options):
        holders.append(Holder(path, **options))
        return holders[-1]

    yield start
    for holder in holders:
        holder.end()


@pytest.fixture
def new_pid_namespace():
    command = ["unshare", "--pid", "--fork", "--kill-child"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no new PID namespace here: {error}")
    return command


def state_after_change(memory, offset=0):
    """The state once it is no longer alive; a watchdog, not a promise, of a minute."""

    def not_alive():
        state = probe(memory, offset).state
        assert state != "alive"
        return state

    return eventually(not_alive)


def count_entries(directory):
    return len(os.listdir(directory))


@each_method
def test_a_living_holder_is_alive_and_named(memory, start, method):
    holder = start(method=method)
    with open(f"/proc/{holder.pid}/task/{holder.pid}/stat") as file:
        start_time = int(file.read().rpartition(")")[2].split()[19])
    assert probe(memory) == ("alive", holder.pid, start_time, os.stat("/proc/self/ns/pid").st_ino, method)


@each_method
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_death_by_signal_is_seen_before_the_zombie_is_reaped(memory, start, method, number):
    holder = start(method=method)
    os.kill(holder.pid, number)
    assert state_after_change(memory) == "dead"
    assert holder.process.returncode is None


@each_method
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit()", "raise SystemError", "memory = None; sys.exit()"])
def test_every_kind_of_exit_is_seen(memory, start, method, end):
    start(method=method).send_line(end)
    assert state_after_change(memory) == "dead"


@needs_marks
def test_exec_ends_the_life_though_the_process_goes_on(memory, start):
    holder = start()
    holder.send_line("os.execv('/bin/sleep', ['sleep', '600'])")
    assert state_after_change(memory) == "dead"
    assert holder.process.poll() is None


@each_method
def test_the_thread_that_called_hold_may_end(memory, start, method):
    holder = start(method=method)
    holder.do("thread = threading.Thread(target=hold, args=(memory, 128)); thread.start(); thread.join()")
    assert probe(memory, 128).state == "alive"
    os.kill(holder.pid, signal.SIGKILL)
    assert state_after_change(memory, 128) == "dead"


@each_method
def test_dropped_is_not_dead_and_stays_dropped_after_the_end(memory, start, method):
    holder = start(method=method)
    holder.do("drop(memory, 0)")
    assert probe(memory).state == "dropped"
    holder.end()
    assert probe(memory).state == "dropped"


def test_memory_that_was_never_held_is_dropped(memory):
    assert probe(memory) == ("dropped", 0, 0, 0, 0)


@each_method
def test_what_a_dead_process_held_can_be_held_again(memory, start, method):
    start(method=method).end()
    assert state_after_change(memory) == "dead"
    hold(memory)
    assert probe(memory)[:2] == ("alive", os.getpid())
    drop(memory)
    assert probe(memory).state == "dropped"


def test_a_second_holder_is_refused_with_the_pid_of_the_first(memory, start):
    holder = start()
    with pytest.raises(BlockingIOError, match=f"process {holder.pid} holds it"):
        hold(memory)
    assert probe(memory)[:2] == ("alive", holder.pid)


def test_a_forked_child_neither_holds_nor_drops_its_parents_lives(memory):
    hold(memory)
    for end in (lambda: None, lambda: drop(memory), lambda: os.kill(os.getpid(), signal.SIGKILL)):
        status_of(in_child(end))
        assert probe(memory)[:2] == ("alive", os.getpid())
    drop(memory)
    assert probe(memory).state == "dropped"


def test_a_forked_child_has_a_keeper_of_its_own_that_outlives_the_parent(memory, start):
    holder = start()
    holder.send_line(
        "child = os.fork(); child or (hold(memory, 128), hold(memory, 256), drop(memory, 128), "
        "print('ready', flush=True), signal.pause())"
    )
    while (line := holder.process.stdout.readline()) != "ready\n":
        assert line, "the holder has ended"
    child = probe(memory, 256).pid
    assert child != holder.pid
    try:
        os.kill(holder.pid, signal.SIGKILL)
        assert state_after_change(memory) == "dead"
        assert [probe(memory, offset).state for offset in (128, 256)] == ["dropped", "alive"]
    finally:
        os.kill(child, signal.SIGKILL)
    assert state_after_change(memory, 256) == "dead"


@each_method
def test_all_of_several_observers_see_the_death(path, memory, start, method):
    holder = start(method=method)
    observers = [
        subprocess.Popen([sys.executable, "-c", OBSERVER, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [o.stdout.readline() for o in observers] == ["looking\n"] * 4
    os.kill(holder.pid, signal.SIGKILL)
    assert [o.communicate()[0] for o in observers] == ["dead\n"] * 4
    assert probe(memory).state == "dead"


def test_observers_that_are_killed_while_looking_change_nothing(path, memory, start):
    start()
    for _ in range(5):
        observer = subprocess.Popen([sys.executable, "-c", OBSERVER, str(path)], stdout=subprocess.PIPE, text=True)
        observer.stdout.readline()
        observer.kill()
        observer.communicate()
    assert probe(memory).state == "alive"


@needs_marks
def test_a_death_in_another_pid_namespace_is_seen(memory, start, new_pid_namespace):
    holder = start(before=new_pid_namespace)
    life = probe(memory)
    assert (life.state, life.pid, life.method) == ("alive", 1, 1)
    assert life.pid_ns != os.stat("/proc/self/ns/pid").st_ino
    holder.end()
    assert state_after_change(memory) == "dead"


def test_method_2_reports_no_death_in_another_pid_namespace(memory, start, new_pid_namespace):
    start(before=new_pid_namespace, method=2).end()
    life = probe(memory)
    assert (life.state, life.method) == ("alive", 2)  # it cannot determine that


@each_method
def test_a_command_name_with_parentheses_and_spaces_is_parsed(memory, start, method):
    holder = start(method=method)
    holder.do("open('/proc/self/comm', 'w').write(') Z (1 2 3'); drop(memory, 0); hold(memory, 0)")
    assert probe(memory)[:2] == ("alive", holder.pid)
    holder.end()
    assert state_after_change(memory) == "dead"


def test_whenever_the_kill_comes_nothing_stays_alive(path, memory, seed):
    generator = random.Random(seed)
    offsets = range(0, 640, 64)
    for _ in range(60):
        child = os.fork()
        if child == 0:
            try:
                while True:
                    for function in (hold, drop):
                        for offset in generator.sample(offsets, len(offsets)):
                            function(memory, offset)
            finally:
                os._exit(1)
        while probe(memory).pid != child:
            time.sleep(0)
        time.sleep(generator.random() / 1000)
        os.kill(child, signal.SIGKILL)
        states = {state_after_change(memory, offset) for offset in offsets}
        os.waitpid(child, 0)
        assert states <= {"dead", "dropped"}


def test_drops_in_any_order_leave_the_others_marked(memory, start):
    holder = start()
    holder.do("[hold(memory, 64 * i) for i in range(1, 40)]")
    holder.do("order = random.Random(5).sample(range(1, 40), 25); [drop(memory, 64 * i) for i in order]")
    holder.do("hold(memory, 64 * order[3])")
    states = [probe(memory, 64 * i).state for i in range(40)]
    assert states.count("dropped") == 24
    holder.end()
    for i, state in enumerate(states):
        assert state_after_change(memory, 64 * i) == ("dead" if state == "alive" else "dropped")


@needs_marks
def test_lives_beyond_those_that_the_kernel_marks_are_read_from_the_process_table(path, start):
    count = 2100
    path.write_bytes(bytes(64 * count))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        holder = start()
        holder.do(f"[hold(memory, 64 * i) for i in range(1, {count})]")
        assert [probe(memory, 64 * i).method for i in (0, 2047, 2048, count - 1)] == [1, 1, 2, 2]
        holder.do("drop(memory, 64); hold(memory, 64)")
        assert probe(memory, 64).method == 1
        holder.end()
        assert {state_after_change(memory, 64 * i) for i in range(count)} == {"dead"}


def test_holding_and_dropping_leaks_no_thread_and_no_descriptor(memory):
    hold(memory)
    drop(memory)
    threads, descriptors = count_entries("/proc/self/task"), count_entries("/proc/self/fd")
    for _ in range(1000):
        hold(memory)
        drop(memory)
    assert count_entries("/proc/self/task") <= threads  # one of an earlier test may have ended meanwhile
    assert count_entries("/proc/self/fd") <= descriptors


def test_threads_may_hold_and_drop_at_once(memory):
    def use(offset):
        for _ in range(200):
            hold(memory, offset)
            drop(memory, offset)

    at_once(*[partial(use, 64 * i) for i in range(4)])
    assert [probe(memory, 64 * i).state for i in range(4)] == ["dropped"] * 4
    assert [probe(memory, 64 * i).pid for i in range(4)] == [os.getpid()] * 4


def name_of(task):
    """The name of a thread; empty if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
        return file.read()
    return ""


@pytest.mark.skipif(EMULATED, reason="an emulator has signal masks of its own")
def test_the_keeper_takes_no_signal(memory):
    hold(memory)
    drop(memory)
    (task,) = [task for task in os.listdir("/proc/self/task") if name_of(task) == "shmring-keeper\n"]
    with open(f"/proc/self/task/{task}/status") as file:
        blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
    catchable = set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}
    assert all(blocked >> (number - 1) & 1 for number in catchable)


# Argument 1: a file of two pages. A signal handler that raises at the wrong moment has the same effect.
FORGETFUL = (
    IMPORT_HOOKS
    + """
import mmap, sys
from shmring.collectives.engine.outbox import prepare_outbox
from liveness_hooks import drop, hold, probe
from shmring.core.memory.mapping import Mapping
with open(sys.argv[1], "r+b") as file:
    elsewhere = Mapping(file.fileno(), 8192)
    mapping = Mapping(file.fileno(), 8192)
prepare_outbox(mapping)      # no reference keeps the object that would drop it
assert probe(elsewhere, 384).state == "alive"
del mapping
assert probe(elsewhere, 384).state == "dead"
hold(elsewhere, 384)         # the keeper goes on
assert probe(elsewhere, 384).state == "alive"
drop(elsewhere, 384)
"""
)


@each_method
def test_a_life_whose_memory_is_unmapped_ends_and_costs_its_process_nothing(tmp_path, method):
    path = tmp_path / "pages"
    path.write_bytes(bytes(8192))
    run_python("-c", FORGETFUL, path, env={**os.environ, **METHODS[method]})
