"""What stops new users: too many threads, programs that cannot be started so, waits that show nothing."""

import os
import re
import sys

import pytest
from support.programs import run_program

from shmring.core.placement.cpus import usable_processors
from shmring.launch.numerical_threads import THREAD_VARIABLES, thread_share

REPORT = """
import os, shmring
with shmring.init() as comm:
    print("threads", os.environ.get("OMP_NUM_THREADS"))
"""


@pytest.fixture
def unset(monkeypatch):
    """None of the variables of numerical libraries is set, as in a new user's shell."""
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def expected_share(size):
    return str(max(1, int(usable_processors() // size)))


# ---- threads -----------------------------------------------------------------------------------------------------


def test_the_processors_are_shared_by_the_ranks():
    assert thread_share(4, 16.0, {}) == {"OMP_NUM_THREADS": "4"}
    assert thread_share(4, 2.5, {}) == {"OMP_NUM_THREADS": "1"}
    assert thread_share(1, 16.0, {}) == {}
    for name in THREAD_VARIABLES:
        assert thread_share(4, 16.0, {name: "3"}) == {}


def test_run_sets_the_threads_of_each_rank_and_shows_it(unset, tmp_path):
    (tmp_path / "report.py").write_text(REPORT)
    found = run_program(sys.executable, "-m", "shmring", "run", "-n", "2", "--tag-output", tmp_path / "report.py")
    share = expected_share(2)
    assert found.stdout.count(f"threads {share}") == 2
    assert found.stderr.splitlines() == [
        f"shmring run: OMP_NUM_THREADS={share} in each of 2 ranks; set it to have another number of threads"
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", THREAD_VARIABLES)
def test_run_leaves_the_threads_that_are_set(unset, tmp_path, name):
    (tmp_path / "report.py").write_text(REPORT)
    unset.setenv(name, "7")
    found = run_program(sys.executable, "-m", "shmring", "run", "-n", "2", "--tag-output", tmp_path / "report.py")
    assert found.stdout.count("threads 7" if name == "OMP_NUM_THREADS" else "threads None") == 2
    assert found.stderr == ""


SPAWNING = """
import os, shmring

def threads(comm):
    return os.environ.get("OMP_NUM_THREADS")

if __name__ == "__main__":
    for _ in range(2):
        print(shmring.spawn(threads, 2))
    print(shmring.spawn(threads, 2, env={"OMP_NUM_THREADS": "5"}), os.environ.get("OMP_NUM_THREADS"))
"""


def test_spawn_sets_the_threads_of_each_rank_and_shows_it_once(unset, tmp_path):
    (tmp_path / "spawning.py").write_text(SPAWNING)
    found = run_program(sys.executable, tmp_path / "spawning.py")
    share = [expected_share(2)] * 2
    assert found.stdout.splitlines() == [str(share), str(share), "['5', '5'] None"]
    assert re.findall("OMP_NUM_THREADS", found.stderr) == ["OMP_NUM_THREADS"]


# ---- wrong starts ------------------------------------------------------------------------------------------------

NOT_GUARDED = """
import shmring

def work(comm):
    return comm.rank

print(shmring.spawn(work, 2))
"""


def test_a_program_without_a_guard_ends_with_one_message_that_has_the_remedy(tmp_path):
    (tmp_path / "nomain.py").write_text(NOT_GUARDED)
    found = run_program(sys.executable, tmp_path / "nomain.py", status=1)
    assert found.stderr.count("Traceback") == 1
    last = found.stderr.splitlines()[-1]
    assert last.startswith("shmring.errors.RankFailedError: each rank imports the program")
    assert "under `if __name__ == '__main__':`" in last


NOT_GUARDED_IN_A_CHILD = """
import multiprocessing, shmring

def work(comm):
    return comm.rank

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()
    print(process.exitcode)
else:
    shmring.spawn(work, 2)
"""


def test_a_process_of_the_programs_own_that_calls_spawn_while_it_imports_says_what_to_do(tmp_path):
    (tmp_path / "nomain.py").write_text(NOT_GUARDED_IN_A_CHILD)
    found = run_program(sys.executable, tmp_path / "nomain.py")
    assert found.stdout == "1\n"
    assert found.stderr.startswith("shmring.spawn: this process imports the program that has started it")
    assert found.stderr.endswith("under `if __name__ == '__main__':`\n")


IN_A_POOL = """
import multiprocessing, shmring

def work(comm):
    return comm.rank

def call(_):
    return shmring.spawn(work, 2)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(call, [1])
"""


def test_a_worker_of_a_pool_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "pool.py").write_text(IN_A_POOL)
    last = run_program(sys.executable, tmp_path / "pool.py", status=1).stderr.splitlines()[-1]
    assert last.startswith("RuntimeError: this process is a daemon of multiprocessing")
    assert "ProcessPoolExecutor" in last


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("shmring.spawn(lambda comm: 1, 2)", "a lambda has no name that other processes could import"),
        ("shmring.spawn(functools.partial(lambda comm, x: 1, x=2), 2)", "a lambda has no name"),
        ("outer()", "'inner', defined inside another function, has no name"),
    ],
)
def test_a_function_without_a_name_is_refused_with_the_remedy(tmp_path, call, text):
    program = f"""
import functools, shmring

def outer():
    def inner(comm):
        return 1
    return shmring.spawn(inner, 2)

if __name__ == "__main__":
    {call}
"""
    (tmp_path / "unnamed.py").write_text(program)
    found = run_program(sys.executable, tmp_path / "unnamed.py", status=1)
    last = found.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {text}")
    assert "use start_method='fork'" in last
    assert found.stderr.count("Traceback") == 1


CLASS_OF_A_SESSION = """
import operator, sys, shmring
sys.modules["cloudpickle"] = None

class Point:
    pass

shmring.spawn(operator.is_, 2, (Point(),))
"""


def test_an_object_of_a_class_of_a_session_is_refused_with_the_remedy():
    found = run_program(sys.executable, "-c", CLASS_OF_A_SESSION, status=1)
    last = found.stderr.splitlines()[-1]
    assert last.startswith("ImportError: 'Point' is defined in a notebook or in the interpreter")
    assert "pip install 'shmring[notebook]'" in last


def test_init_without_a_launcher_shows_how_to_start_one_rank_and_many():
    found = run_program(sys.executable, "-c", "import shmring; shmring.init()", status=1)
    last = found.stderr.splitlines()[-1]
    assert "shmring run -n N program.py" in last
    assert "for one rank alone: `shmring run -n 1 program.py`, or init(rank=0, size=1)" in last


# ---- long waits --------------------------------------------------------------------------------------------------

# Rank 1, or a thread, is late until the other side has written its note.
LATE = """
import os, re, sys, threading, time
from pathlib import Path
import numpy as np
import shmring

LOG = sys.argv[1]

def until_noted(place, seconds=0.1):
    note = re.compile(f"waited ([0-9.]+) s: .* in {place}[.] ")
    while max(map(float, note.findall(Path(LOG).read_text())), default=0) < seconds:
        time.sleep(0.01)

def train(comm):
    x = np.ones(1000, np.float32)
    for step in (collective, message, asynchronous):
        if comm.rank == 1:
            until_noted(step.__name__)
        step(comm, x)

def collective(comm, x):
    comm.all_reduce(x)                                              # A

def message(comm, x):
    comm.sendrecv(x, 1 - comm.rank, x.copy(), 1 - comm.rank)        # B

def asynchronous(comm, x):
    work = comm.all_reduce(x, async_op=True)                        # C
    time.sleep(0)
    work.wait()

def late_sender(sender, place, seconds):
    until_noted(place, seconds)
    sender.send(b"x")

def several(ends):
    shmring.wait(ends)                                              # E

def of_receivers(ends):
    shmring.wait(ends)                                              # F

if __name__ == "__main__":
    os.dup2(os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    shmring.spawn(train, 2)
    sender, receiver = shmring.channel()
    threading.Thread(target=late_sender, args=(sender, "<module>", 1)).start()
    receiver.recv()                                                 # D
    threading.Thread(target=late_sender, args=(sender, "several", 1)).start()
    several([shmring.Queue(), receiver])
    receiver.recv()
    threading.Thread(target=late_sender, args=(sender, "of_receivers", 1)).start()
    of_receivers([shmring.channel()[1], receiver])
"""


def line_of(program, mark):
    """The number of the line of a program that ends with this mark."""
    return next(number for number, line in enumerate(program.splitlines(), 1) if line.endswith(f"# {mark}"))


def test_long_waits_write_what_they_wait_for_and_from_which_line(tmp_path):
    program, log = tmp_path / "late.py", tmp_path / "log"
    program.write_text(LATE)
    environ = {**os.environ, "SHMRING_WAIT_NOTES": "0.1"}
    run_program(sys.executable, program, log, env=environ)
    notes = [line for line in log.read_text().splitlines() if "has waited" in line]
    reduction = r"rank 0 of \w+ waits for rank 1 in all_reduce\(sum, float32 x 1000\)"
    for what, mark in [
        (reduction, "A"),
        (r"rank 0 of \w+ waits for a message from rank 1", "B"),
        (reduction, "C"),
        ("<shmring.Receiver of this channel> waits", "D"),
        ("shmring.wait for one of 2 ends waits", "E"),
        ("shmring.wait for one of 2 ends waits", "F"),
    ]:
        line = line_of(LATE, mark)
        found = [one for one in notes if re.search(f"{what}; called at {re.escape(str(program))}:{line} in ", one)]
        # The second one comes after ten times as long. It is the only one if the process stood still until then.
        seconds = [float(re.search(r"waited ([\d.]+) s", one)[1]) for one in found]
        assert [one >= 1 for one in seconds] in ([False, True], [True], *([[False]] if mark in "ABC" else [])), notes
        assert re.search(r"process (\d+) has waited [\d.]+ s: .* `shmring dump \1` shows", found[0])


def test_a_rendezvous_to_which_a_rank_never_comes_says_so_after_a_while():
    """A rank that fails before, as in an import, is unknown to the others."""
    program = """
import shmring
try: shmring.init(rank=0, size=3, session="lonely", rendezvous_timeout=2)
except shmring.RendezvousTimeoutError: pass
"""
    environ = {**os.environ, "SHMRING_WAIT_NOTES": "0.1"}
    errors = run_program(sys.executable, "-c", program, env=environ).stderr
    assert re.search(r"has waited [\d.]+ s: rank 0 is in the rendezvous of 'lonely': ranks? 1.*2 never came", errors)


# A receiver that gets its message once a note is there, which is passed on to standard error.
NOTED = """
import os, shmring, threading
errors, (read_end, write_end) = os.dup(2), os.pipe()
os.dup2(write_end, 2)
sender, receiver = shmring.channel()

def send_once_noted(what):
    found = b""
    while what not in found:
        found += os.read(read_end, 1 << 16)
    os.write(errors, found)
    sender.send(b"x")

def will_send(what):
    threading.Thread(target=send_once_noted, args=(what,)).start()
"""


def test_the_setting_turns_notes_off():
    def errors_of(setting, program):
        return run_program(sys.executable, "-c", program, env={**os.environ, "SHMRING_WAIT_NOTES": setting}).stderr

    assert errors_of("0", "import shmring; shmring.channel()[1].poll(0.3)") == ""
    assert "has waited" in errors_of("0.05", f"{NOTED}will_send(b'has waited'); receiver.recv()")
    refused = errors_of("soon", "import shmring; shmring.channel()")
    assert "SHMRING_WAIT_NOTES='soon': must be a number of seconds" in refused


# What another thread ends once the note is there.
FULL = """
import os, sys, threading, time
from pathlib import Path
import numpy as np
import shmring

LOG = sys.argv[1]

def until_noted(what):
    while f"{what} waits" not in Path(LOG).read_text():
        time.sleep(0.01)

def after_note(what, call, *args):
    until_noted(what)
    for _ in range(3):
        call(*args)

def begin(*args):
    threading.Thread(target=after_note, args=args).start()

os.dup2(os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
queue = shmring.Queue()
threading.Thread(target=queue.get).start()
until_noted("<shmring.Receiver of this queue>")
begin("thread, which", queue.put, b"x")
queue.get()                                                         # A
queue = shmring.Queue(capacity_nbytes=64 << 10)
queue.put(bytes(30000))
queue.put(bytes(30000))
begin("to send 20000 bytes>", queue.get)
queue.put(bytes(20000))                                             # B
sender, receiver = shmring.channel(64 << 10)
sender.send(bytes(30000))
sender.send(bytes(30000))
begin("to send 160000 bytes>", receiver.recv)
sender.send(np.zeros(20000))                                        # C
records, receiver = shmring.channel(64 << 10, dtype=np.int64)
records.send_many(np.zeros(8192, np.int64))
begin("to send 16 bytes>", receiver.recv)
records.send_many(np.zeros(2, np.int64))                            # D
"""


def test_notes_of_channels_and_queues_show_how_full_they_are_and_what_is_to_be_sent(tmp_path):
    program, log = tmp_path / "full.py", tmp_path / "log"
    program.write_text(FULL)
    run_program(sys.executable, program, log, env={**os.environ, "SHMRING_WAIT_NOTES": "0.1"})
    found = log.read_text()
    for what, mark in [
        (r"Sender of this queue, 60\d\d\d of 65536 bytes taken, to send 20000 bytes", "B"),
        (r"Sender of this channel, 60\d\d\d of 65536 bytes taken, to send 160000 bytes", "C"),
        ("RecordSender of this channel, 65536 of 65536 bytes taken, to send 16 bytes", "D"),
    ]:
        place = f"{re.escape(str(program))}:{line_of(FULL, mark)}"
        assert re.search(f"<shmring.{what}> waits; called at {place} in <module>", found), found
    place = f"{program}:{line_of(FULL, 'A')}"
    use = "this queue is in use by another process or thread, which waits in the same call"
    assert f"{use}; called at {place} in <module>" in found, found


STREAM = """
import os, shmring
sender, receiver = shmring.channel(64 << 20)
if os.fork() == 0:
    receiver.recv()
    os._exit(0)
sender.send(bytes(96 << 20))            # looks for signals while it copies, before it waits for the first time
sender.close()
os.wait()
"""


def test_a_stream_that_has_not_waited_writes_no_note():
    found = run_program(sys.executable, "-c", STREAM, env={**os.environ, "SHMRING_WAIT_NOTES": "600"})
    assert found.stderr == ""


# ---- the line of the program -------------------------------------------------------------------------------------

PASSED_ON = f"""{NOTED}
import types

library = types.ModuleType("torch.nn.modules")
exec(compile("def forward(f): return f()", "modules.py", "exec"), library.__dict__)

def step():
    library.forward(receiver.recv)                                      # A

will_send(b"in step. ")
step()
will_send(b"in the main thread. ")
thread = threading.Thread(target=receiver.recv)
thread.start()
thread.join()                                                           # B
"""


def test_frames_of_libraries_are_passed_over_and_a_thread_without_a_line_has_that_of_the_main_one(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PASSED_ON)
    found = run_program(sys.executable, program, env={**os.environ, "SHMRING_WAIT_NOTES": "0.05"}).stderr
    assert f"called at {program}:{line_of(PASSED_ON, 'A')} in step." in found
    assert f"called at {program}:{line_of(PASSED_ON, 'B')} in <module>, in the main thread." in found
