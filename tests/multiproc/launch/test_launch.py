"""`spawn` and `run`: results by rank, the failure that counts, and nothing left of any run."""

import asyncio
import errno
import faulthandler
import gc
import math
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing import forkserver
from pathlib import Path

import numpy as np
import pytest
from support import harness
from support.emulation import needs_adoption
from support.harness import PATIENCE, RANKS, eventually
from support.interrupts import interrupt_at_line
from support.programs import run_python
from support.threads import at_once, beside

import shmring
from shmring.core.memory.segment import OUTBOX, create
from shmring.core.memory.spelling import segment_name
from shmring.errors import AbortedError, PeerLostError, RankFailedError, ShmringError
from shmring.launch import run as run_module
from shmring.launch.command import Command
from shmring.launch.processes import children, take_signal
from shmring.launch.run import run


@pytest.fixture(autouse=True, scope="module")
def fork_server():
    """The server that the method "forkserver" leaves running is not what these tests look for."""
    forkserver.ensure_running()
    yield
    forkserver._forkserver._stop()


@pytest.fixture(autouse=True)
def no_children_left():
    """Neither a process nor a zombie may be left by a run."""
    before = children()
    yield
    gc.collect()
    assert children() == before


def is_running(pid):
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends after the file was opened
        return False


def wait_for(condition, what, timeout=30):
    """Wait until something has become true; a bound for tests that would hang, not a measure."""

    def check():
        assert condition(), what

    eventually(check, timeout)


# ---- spawn -----------------------------------------------------------------------------------------------------


def sum_ranks(comm, factor, offset=0):
    x = np.full(5, float(comm.rank * factor + offset))
    comm.all_reduce(x)
    return comm.rank, comm.size, x.tolist()


@pytest.mark.parametrize("n", RANKS)
def test_results_come_back_by_rank_after_a_real_reduction(n):
    total = float(sum(10 * rank + 1 for rank in range(n)))
    expected = [(rank, n, [total] * 5) for rank in range(n)]
    assert shmring.spawn(sum_ranks, n, (10,), {"offset": 1}, start_method="fork") == expected


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_every_start_method_gives_the_same_results(method):
    assert shmring.spawn(sum_ranks, 2, (1,), start_method=method) == [(0, 2, [1.0] * 5), (1, 2, [1.0] * 5)]


inherited = []


def count_inherited(_comm):
    return len(inherited)


def test_spawn_is_the_default_start_method(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "inherited", [1])
    assert shmring.spawn(count_inherited, 1) == [0]
    assert shmring.spawn(count_inherited, 1, start_method="fork") == [1]


def big_result(comm, nbytes):
    return bytes([comm.rank]) * nbytes


def test_results_larger_than_any_pipe_come_back_whole():
    results = shmring.spawn(big_result, 3, (3_000_000,), start_method="fork")
    assert results == [bytes([rank]) * 3_000_000 for rank in range(3)]


class NoSuchLuckError(Exception):
    """An exception of the user's own."""


def raise_on(comm, rank, error):
    if comm.rank == rank:
        raise error
    comm.barrier()


@pytest.mark.parametrize("rank", [0, 2])
def test_the_exception_keeps_its_type_and_shows_where_it_was_raised(rank):
    with pytest.raises(NoSuchLuckError, match="bad luck") as caught:
        shmring.spawn(raise_on, 3, (rank, NoSuchLuckError("bad luck")), start_method="fork")
    assert f"on rank {rank}" in str(caught.value.__cause__)
    assert "in raise_on" in str(caught.value.__cause__)


def catch_the_abort(comm, path):
    if comm.rank == 0:
        raise NoSuchLuckError("bad luck")
    try:
        comm.barrier()
    except AbortedError as error:
        Path(path, str(comm.rank)).write_text(f"{error.rank} {error}")
        raise


def test_the_error_of_the_others_names_the_failed_rank_and_its_error(tmp_path):
    with pytest.raises(NoSuchLuckError):
        shmring.spawn(catch_the_abort, 3, (tmp_path,), start_method="fork")
    for rank in (1, 2):
        text = (tmp_path / str(rank)).read_text()
        assert text.startswith("0 ")
        assert "NoSuchLuckError: bad luck" in text


class UnpicklableError(Exception):
    """Cannot be made again from what pickle keeps of it."""

    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raise_unpicklable(comm):
    raise UnpicklableError(1, 2)


def test_an_exception_that_cannot_be_pickled_is_shown_as_text():
    with pytest.raises(RankFailedError, match="UnpicklableError: 1 and 2") as caught:
        shmring.spawn(raise_unpicklable, 1, start_method="fork")
    assert (caught.value.rank, caught.value.status) == (0, 0)
    assert "in raise_unpicklable" in str(caught.value.__cause__)


def return_unpicklable(comm):
    return threading.Lock()


def test_a_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises(TypeError, match="pickle"):
        shmring.spawn(return_unpicklable, 1, start_method="fork")


def kill_on(comm, rank, number):
    if comm.rank == rank:
        faulthandler.disable()  # pytest's would print the stack of a process that is meant to die
        os.kill(os.getpid(), number)
    comm.barrier()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_rank_is_lost_and_named_with_its_signal(number):
    message = rf"rank 1 \(pid \d+\) was killed by signal \d+ \({number.name}\)"
    with pytest.raises(PeerLostError, match=message) as caught:
        shmring.spawn(kill_on, 3, (1, number), start_method="fork")
    assert caught.value.rank == 1
    assert caught.value.pid > 0


def leave(comm, how, status):
    if comm.rank == 1:
        how(status)
    comm.barrier()


@pytest.mark.parametrize("how", [sys.exit, os._exit])
def test_a_rank_that_exits_is_a_failure_with_its_status(how):
    with pytest.raises(RankFailedError, match="status 3") as caught:
        shmring.spawn(leave, 2, (how, 3), start_method="fork")
    assert (caught.value.rank, caught.value.status) == (1, 3)


def fail_while_the_others_sleep(comm, path):
    Path(path, str(comm.rank)).write_text(str(os.getpid()))
    comm.barrier()
    if comm.rank == 0:
        raise NoSuchLuckError
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def test_ranks_that_ignore_sigterm_are_killed(tmp_path):
    with pytest.raises(NoSuchLuckError):
        shmring.spawn(fail_while_the_others_sleep, 3, (tmp_path,), start_method="fork", grace=0.1)
    assert not any(is_running(int(path.read_text())) for path in tmp_path.iterdir())


def sleep_on(comm, rank):
    if comm.rank == rank:
        time.sleep(1000)


def test_a_run_that_takes_too_long_is_ended_and_names_the_ranks_that_were_not_done():
    for enough in (0.5, 5.0, 50.0 * PATIENCE):  # for the others, which have nothing to do
        with pytest.raises(TimeoutError, match=re.escape(f"of 3 were not done after {enough} s")) as caught:
            shmring.spawn(sleep_on, 3, (1,), start_method="fork", timeout=enough, grace=0.1)
        if "ranks 1 of 3" in str(caught.value):
            return
    pytest.fail(str(caught.value))


def environment_of_rank(comm, name):
    return {key: os.environ.get(key) for key in (name, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_ranks_have_their_variables_and_this_process_keeps_its_own(method, monkeypatch):
    monkeypatch.setenv("RANK", "77")
    results = shmring.spawn(environment_of_rank, 2, ("OMP_TRY",), start_method=method, env={"OMP_TRY": "x"})
    assert results == [
        {"OMP_TRY": "x", "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        for rank in range(2)
    ]
    assert os.environ["RANK"] == "77"
    assert "OMP_TRY" not in os.environ


def settings_of_rank(comm):
    return comm.config.nslots


def test_settings_are_passed_on_to_init():
    assert shmring.spawn(settings_of_rank, 2, start_method="fork", init={"nslots": 4}) == [4, 4]


def test_bad_settings_are_raised_as_init_raises_them():
    with pytest.raises(ValueError, match="nslots=3"):
        shmring.spawn(settings_of_rank, 2, start_method="fork", init={"nslots": 3})


@pytest.mark.parametrize("size", [0, -1, 1 << 14, 1 << 70])
def test_a_size_that_no_communicator_has_is_refused_before_a_rank_starts(size):
    with pytest.raises(ValueError, match=f"size={size}"):
        shmring.spawn(sum_ranks, size)
    with pytest.raises(ValueError, match=f"size={size}"):
        run(["true"], size)


def spawn_again(comm):
    return shmring.spawn(sum_ranks, 2, (comm.rank,), start_method="fork")


def test_ranks_can_spawn_ranks_of_their_own():
    assert shmring.spawn(spawn_again, 2, start_method="fork") == [
        [(0, 2, [0.0] * 5), (1, 2, [0.0] * 5)],
        [(0, 2, [1.0] * 5), (1, 2, [1.0] * 5)],
    ]


def test_spawns_in_two_threads_do_not_mix():
    def spawn_here(factor):
        return shmring.spawn(sum_ranks, 2, (factor,), env={"TRY": str(factor)})

    results = at_once(partial(spawn_here, 1), partial(spawn_here, 5))
    assert results == [[(rank, 2, [float(f)] * 5) for rank in range(2)] for f in (1, 5)]


def start_script(tmp_path, text, *args, **kwargs):
    """A Python script in a process of its own, which the test may treat badly."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen([sys.executable, str(script), *args], stderr=subprocess.PIPE, text=True, **kwargs)


SPAWNER = """
    import os, sys, time
    from pathlib import Path
    import shmring

    def sleep(comm, folder):
        Path(folder, f"{comm.rank}.tmp").write_text(str(os.getpid()))
        Path(folder, f"{comm.rank}.tmp").rename(Path(folder, str(comm.rank)))
        time.sleep(1000)

    if __name__ == "__main__":
        shmring.spawn(sleep, 2, (sys.argv[1],))
"""


def pids_written(folder, n):
    """Process ids that n ranks have written into files of their rank's name."""
    wait_for(lambda: all((folder / str(rank)).exists() for rank in range(n)), "the ranks never came up")
    return [int((folder / str(rank)).read_text()) for rank in range(n)]


def test_ctrl_c_ends_all_ranks(tmp_path):
    process = start_script(tmp_path, SPAWNER, str(tmp_path))
    pids = pids_written(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60 * PATIENCE)
    assert "KeyboardInterrupt" in stderr
    assert not any(map(is_running, pids))


def test_ranks_die_with_a_launcher_that_is_killed(tmp_path):
    process = start_script(tmp_path, SPAWNER, str(tmp_path))
    pids = pids_written(tmp_path, 2)
    process.kill()
    process.communicate(timeout=60 * PATIENCE)
    wait_for(lambda: not any(map(is_running, pids)), "ranks outlived their launcher")


# ---- spawn: ranks that stop, die or fork at a bad moment -------------------------------------------------------------


def signal_itself_while_it_sends(comm, number):
    """Rank 1 sends half of its result, then gets the signal; it leaves a name in shared memory, too."""
    if comm.rank == 1:
        session = os.environ["SHMRING_SESSION"]
        comm.left = create(segment_name(session, "left"), kind=OUTBOX, nbytes=8192, rank=1, size=2)
        write = os.write

        def write_half(fd, data):
            if len(data) > 1 << 20:
                write(fd, data[: 1 << 20])
                os.kill(os.getpid(), number)
            return write(fd, data)

        os.write = write_half
    return bytes(3 << 20)


def test_a_timeout_ends_a_rank_that_is_stopped_while_it_sends_its_result():
    with pytest.raises(TimeoutError, match=r"ranks 1 of 2|ranks 0, 1 of 2"):
        shmring.spawn(
            signal_itself_while_it_sends, 2, (signal.SIGSTOP,), start_method="fork", timeout=1 * PATIENCE, grace=0.1
        )


def test_a_rank_killed_while_it_sends_its_result_is_lost_and_its_names_are_swept():
    with pytest.raises(PeerLostError, match="SIGKILL") as caught:
        shmring.spawn(signal_itself_while_it_sends, 2, (signal.SIGKILL,), start_method="fork")
    assert caught.value.rank == 1


class Signals:
    """The process that unpickles this gets the signal."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return signal.raise_signal, (self.number,)


@pytest.mark.sample(3)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(
    ("number", "error", "timeout"),
    [(signal.SIGSTOP, TimeoutError, 0.5), (signal.SIGKILL, PeerLostError, None)],
    ids=["stopped", "killed"],
)
def test_a_rank_may_stop_or_die_before_it_has_its_arguments(method, number, error, timeout, monkeypatch):
    if method == "fork":  # nothing is unpickled there
        monkeypatch.setattr("shmring.launch.spawn.die_with_parent", lambda _: signal.raise_signal(number))
    with pytest.raises(error):
        # More than a pipe has room for.
        shmring.spawn(nothing, 1, (Signals(number), bytes(1 << 20)), start_method=method, timeout=timeout, grace=0.1)


def fork_a_sleeper(comm):
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    return pid


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_run_does_not_wait_for_processes_that_its_ranks_have_forked(method):
    for pid in shmring.spawn(fork_a_sleeper, 2, start_method=method, timeout=30 * PATIENCE):
        os.kill(pid, signal.SIGKILL)


def fork_a_child_that_ends(comm, how):
    pid = os.fork()
    if pid == 0:
        if how == "return":
            return "the child's"
        if how == "raise":
            raise NoSuchLuckError
        sys.exit(0)
    os.waitpid(pid, 0)
    comm.barrier()
    return comm.rank


@pytest.mark.parametrize("how", ["return", "raise", "exit"])
def test_the_end_of_a_forked_child_is_no_report_of_its_rank(how):
    assert shmring.spawn(fork_a_child_that_ends, 2, (how,), start_method="fork") == [0, 1]


class OnlyThere:
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return int, ("not a number",)


def return_what_cannot_be_unpickled(comm):
    return OnlyThere() if comm.rank else None


def test_a_result_that_cannot_be_unpickled_names_its_rank():
    with pytest.raises(RankFailedError, match="result of rank 1 cannot be unpickled here: ValueError") as caught:
        shmring.spawn(return_what_cannot_be_unpickled, 2, start_method="fork")
    assert caught.value.rank == 1


class NoTextError(Exception):
    """Its text cannot be made."""

    def __str__(self):
        raise RuntimeError("no text")


def raise_without_text(comm, path):
    if comm.rank == 0:
        raise NoTextError
    try:
        comm.barrier()
    except AbortedError as error:
        path.write_text(str(error))


def test_an_error_without_a_text_aborts_the_others_too(tmp_path):
    with pytest.raises(NoTextError):
        shmring.spawn(raise_without_text, 2, (tmp_path / "text",), start_method="fork", grace=30 * PATIENCE)
    assert "NoTextError" in (tmp_path / "text").read_text()


def test_a_status_beyond_a_byte_is_what_the_system_makes_of_it():
    with pytest.raises(RankFailedError, match="status 3") as caught:
        shmring.spawn(leave, 2, (sys.exit, 2**70 + 3), start_method="fork")
    assert caught.value.status == 3


def nothing(comm):
    pass


@pytest.mark.parametrize("name", ["timeout", "grace"])
@pytest.mark.parametrize(
    ("value", "error"), [(float("nan"), ValueError), (-1, ValueError), (-math.inf, ValueError), ("1", TypeError)]
)
def test_limits_of_time_that_are_none_are_refused_before_a_rank_starts(name, value, error):
    with pytest.raises(error, match=f"{name}={re.escape(repr(value))}"):
        shmring.spawn(nothing, 2, start_method="fork", **{name: value})
    if name == "grace":
        with pytest.raises(error, match=f"{name}={re.escape(repr(value))}"):
            run(["true"], 2, grace=value)


@pytest.mark.parametrize("value", [None, math.inf, 1e300, 2**2000])
def test_limits_of_time_without_end_are_kept(value):
    assert shmring.spawn(nothing, 1, start_method="fork", timeout=value, grace=value) == [None]
    assert run(["true"], 1, grace=value) == 0
    assert run(["false"], 2, grace=value) == 1


def test_a_run_ends_though_another_thread_has_taken_the_signal_of_it(monkeypatch):
    def take_nothing(numbers, timeout):
        time.sleep(timeout)
        while take_signal(numbers, 0) is not None:  # as another thread would
            pass

    monkeypatch.setattr("shmring.launch.run.take_signal", take_nothing)
    assert run(["true"], 2) == 0


# ---- spawn: signal handlers of the caller ----------------------------------------------------------------------------


LINES = 3600


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a weakref callback
@pytest.mark.sample(9)
@pytest.mark.parametrize("share", range(120))
def test_an_interrupt_at_any_line_leaves_nothing_of_a_run(share, seed):
    nth = random.Random(f"{seed} {share}").randrange(share * LINES // 120, (share + 1) * LINES // 120) + 1
    before, handler = children(), signal.getsignal(signal.SIGINT)
    interrupt_at_line(lambda: shmring.spawn(nothing, 2, start_method="fork"), nth)
    assert children() == before
    assert signal.getsignal(signal.SIGINT) is handler


def signal_the_parent_and_wait(comm, path):
    os.kill(os.getppid(), signal.SIGUSR1)
    wait_for(path.exists, "the handler was not called")


def test_a_handler_that_raises_nothing_runs_while_the_ranks_do(tmp_path):
    path = tmp_path / "called"
    before = signal.signal(signal.SIGUSR1, lambda *_: path.touch())
    try:
        shmring.spawn(signal_the_parent_and_wait, 1, (path,), start_method="fork")
    finally:
        signal.signal(signal.SIGUSR1, before)


def report_and_wait(comm, path):
    Path(path, "begun").touch()
    wait_for(Path(path, "called").exists, "the handler was not called")


def test_a_handler_runs_though_another_thread_has_received_the_signal(tmp_path):
    def receive():
        wait_for((tmp_path / "begun").exists, "the rank never came up")
        time.sleep(0.2)  # until the main thread sleeps
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: (tmp_path / "called").touch())
    try:
        with beside(receive):
            shmring.spawn(report_and_wait, 1, (tmp_path,), start_method="fork")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_an_event_loop_gets_its_signals_after_a_run():
    async def run_under_a_loop():
        called = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, called.set)
        shmring.spawn(signal_the_parent, 1, start_method="fork")
        await asyncio.wait_for(called.wait(), 30 * PATIENCE)

    asyncio.run(run_under_a_loop())


def signal_the_parent(comm):
    os.kill(os.getppid(), signal.SIGUSR1)


def interrupt_the_parent_twice(comm):
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))
    os.kill(os.getppid(), signal.SIGINT)
    while True:
        time.sleep(0.01)  # not for ever: a signal between the check for signals and the sleep does not end the sleep


def test_a_second_interrupt_ends_a_run_without_grace():
    with pytest.raises(KeyboardInterrupt):
        shmring.spawn(interrupt_the_parent_twice, 1, start_method="fork", grace=None)


IGNORING = """
    import os, signal, sys, threading
    import shmring

    def work(comm, what):
        comm.barrier()
        if comm.rank == 1 and what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()
        return comm.rank

    def attempt(what):
        try:
            print(shmring.spawn(work, 2, (what,), start_method=sys.argv[1]))
        except shmring.ShmringError as error:
            print(type(error).__name__, error)

    if __name__ == "__main__":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        for what in ("return", "kill"):
            attempt(what)
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        thread = threading.Thread(target=attempt, args=("return",))
        thread.start()
        thread.join()
        thread = threading.Thread(target=attempt, args=("kill",))
        thread.start()
        thread.join()
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_a_program_that_ignores_the_ends_of_its_children_gets_results_and_errors(tmp_path, method):
    process = start_script(tmp_path, IGNORING, method, stdout=subprocess.PIPE)
    stdout, stderr = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0, stderr
    returned, killed, again, lost = stdout.splitlines()
    assert returned == again == "[0, 1]"
    assert re.match(r"PeerLostError rank 1 \(pid \d+\) was killed by signal 9 \(SIGKILL\)", killed)
    if method == "forkserver":
        assert re.match(r"PeerLostError rank 1 ", lost)  # its parent is the server, which knows
    else:
        assert re.match(r"RankFailedError rank 1 \(pid \d+\) ended without a result; this program ignores", lost)


# ---- run -------------------------------------------------------------------------------------------------------


def python(code, *args):
    """A command that runs some Python."""
    return [sys.executable, "-c", textwrap.dedent(code), *args]


def shell(code, *args):
    """A command that runs some shell, which starts faster."""
    return ["/bin/sh", "-c", code, "sh", *map(str, args)]


@pytest.mark.parametrize("n", RANKS)
def test_a_command_runs_once_for_each_rank_with_its_variables(n, tmp_path):
    code = 'echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $SHMRING_SESSION $OMP_TRY > "$1/$RANK"'
    assert run(shell(code, tmp_path), n, env={"OMP_TRY": "x"}) == 0
    lines = [(tmp_path / str(rank)).read_text().split() for rank in range(n)]
    sessions = {line[4] for line in lines}
    assert len(sessions) == 1
    assert lines == [[str(rank), str(n), str(rank), str(n), *sessions, "x"] for rank in range(n)]


def test_programs_meet_by_init_alone():
    code = """
        import numpy, shmring
        with shmring.init() as comm:
            x = numpy.array([comm.rank + 1])
            comm.all_reduce(x)
            raise SystemExit(int(x[0]))
    """
    assert run(python(code), 3) == 6


def test_the_status_is_that_of_the_rank_that_failed_and_the_others_are_ended(tmp_path, capfd):
    code = """
        while [ $RANK = 1 ]; do [ -s "$1/0" ] && [ -s "$1/2" ] && exit 7; sleep 0.01; done
        echo $$ > "$1/$RANK"; exec sleep 1000
    """
    assert run(shell(code, tmp_path), 3) == 7
    assert not any(is_running(int(path.read_text())) for path in tmp_path.iterdir())
    assert "rank 1" in (stderr := capfd.readouterr().err)
    assert "exited with status 7; ending the others" in stderr


def test_a_killed_rank_gives_128_and_the_signal(capfd):
    assert run(shell("[ $RANK = 1 ] && kill -SEGV $$; exec sleep 1000"), 2) == 128 + signal.SIGSEGV
    assert "was killed by signal 11 (SIGSEGV)" in capfd.readouterr().err


def test_a_rank_that_is_done_early_does_not_end_the_others(tmp_path):
    assert run(shell('[ $RANK = 0 ] || { sleep 0.2; touch "$1/done"; }', tmp_path), 2) == 0
    assert (tmp_path / "done").exists()


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(tmp_path):
    code = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["RANK"] == "0":
            open(sys.argv[1], "w").close()
        while os.environ["RANK"] == "0":
            time.sleep(1)
        while not os.path.exists(sys.argv[1]):
            time.sleep(0.01)
        raise SystemExit(4)
    """
    assert run(python(code, str(tmp_path / "ready")), 2, grace=0.2) == 4


def test_a_run_that_is_stopped_and_continued_goes_on(tmp_path):
    code = READY + 'until [ -e "$1/go" ]; do sleep 0.01; done'
    process = start_script(tmp_path, RUNNER, code, str(tmp_path), start_new_session=True)
    pids_written(tmp_path, 2)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGSTOP)
        wait_for(lambda: harness.is_stopped(process.pid), "the launcher was not stopped")
        time.sleep(0.7)  # longer than the launcher waits at once
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.1)
    (tmp_path / "go").touch()
    _, stderr = process.communicate(timeout=60 * PATIENCE)
    assert (process.returncode, stderr) == (0, "")


FORKING = """
    import os, sys, threading
    from shmring.launch.run import run

    lock = threading.Lock()
    os.register_at_fork(after_in_child=lock.acquire)      # as a library that guards its state
    threading.Thread(target=lambda: [lock.acquire(), threading.Event().wait()], daemon=True).start()
    while not lock.locked():
        pass
    sys.exit(run(["/bin/sh", "-c", "echo $RANK; exit 4"], 2, tag_output=True))
"""


def test_a_program_whose_handlers_of_fork_wait_for_its_threads_can_run_ranks(tmp_path):
    process = start_script(tmp_path, FORKING, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    stdout, stderr = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 4, stderr
    assert set(stdout.splitlines()) <= {"[0] 0", "[1] 1"}


def test_ranks_get_the_signals_and_descriptors_of_a_fresh_process():
    kept = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(kept, True)
    code = """
        import os, signal, sys
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
        ignored = {one for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN}
        assert ignored - {signal.SIGPIPE, signal.SIGXFSZ} <= set(map(int, sys.argv[2:])), ignored
        try:
            os.fstat(int(sys.argv[1]))
        except OSError:
            sys.exit(5)
    """
    try:
        ignored = [str(int(one)) for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN]
        assert run(python(code, str(kept), *ignored), 2) == 5
    finally:
        os.close(kept)


@pytest.mark.parametrize(("name", "number"), [("a_file", errno.EACCES), ("a_file/program", errno.ENOTDIR)])
def test_a_command_that_cannot_be_executed_is_the_error_of_the_system(tmp_path, name, number):
    (tmp_path / "a_file").touch()
    with pytest.raises(OSError, match=re.escape(os.strerror(number if number == errno.EACCES else errno.ENOENT))):
        run([str(tmp_path / name)], 2)


@needs_adoption
def test_what_ranks_leave_running_is_ended_too(tmp_path):
    code = '(sleep 1000 & echo $! > "$1/$RANK"); setsid sleep 1000 & echo $! > "$1/s$RANK"'
    assert run(shell(code, tmp_path), 2, grace=0.2) == 0
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert len(pids) == 4
    assert not any(map(is_running, pids))


def test_children_that_this_process_had_before_are_left_alone():
    with subprocess.Popen(["sleep", "1000"]) as older:
        assert run(["true"], 2) == 0
        assert older.poll() is None
        older.kill()


@pytest.mark.skipif(not Path("/proc/thread-self/children").exists(), reason="the kernel lists no children of threads")
def test_children_that_another_thread_starts_meanwhile_are_left_alone(tmp_path):
    def start():
        wait_for((tmp_path / "here").exists, "no rank has started")
        ended.append(subprocess.Popen(["sh", "-c", "exit 3"]))
        running.append(subprocess.Popen(["sleep", "1000"]))
        (tmp_path / "go").touch()
        over.wait()

    ended, running, over = [], [], threading.Event()
    with ThreadPoolExecutor(1) as pool:
        embedding = pool.submit(start)
        try:
            assert run(shell('touch "$1/here"; until [ -e "$1/go" ]; do sleep 0.01; done; sleep 0.2', tmp_path), 2) == 0
            assert running[0].poll() is None
            assert ended[0].wait() == 3
        finally:
            over.set()
            embedding.result()
            running[0].kill()
            running[0].wait()


def test_a_command_that_is_not_there_is_an_oserror_and_leaves_nothing():
    with pytest.raises(FileNotFoundError) as caught:
        run(["/no/such/program"], 2)
    assert caught.value.errno == errno.ENOENT


def test_tagged_output_has_every_line_whole_and_with_its_rank(capfd):
    code = """
        import os, sys
        for i in range(200):
            print("out", i, "x" * 200)
        sys.stderr.write("err without an end")
    """
    assert run(python(code), 3, tag_output=True) == 0
    out, err = capfd.readouterr()
    assert sorted(err.splitlines()) == [f"[{rank}] err without an end" for rank in range(3)]
    for rank in range(3):
        lines = [line for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        assert lines == [f"[{rank}] out {i} {'x' * 200}" for i in range(200)]
    assert len(out.splitlines()) == 600


RUNNER = """
    import sys
    from shmring.launch.run import run
    sys.exit(run(["/bin/sh", "-c", sys.argv[1], "sh", *sys.argv[2:]], 2, grace=0.2))
"""
READY = 'echo $$ > "$1/tmp$RANK"; mv "$1/tmp$RANK" "$1/$RANK"; '


def test_only_rank_zero_has_standard_input(tmp_path):
    process = start_script(tmp_path, RUNNER, 'cat > "$1/$RANK"', str(tmp_path), stdin=subprocess.PIPE)
    process.communicate("hello", timeout=60 * PATIENCE)
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["hello", ""]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on_to_every_rank(number, tmp_path):
    name = number.name.removeprefix("SIG")
    code = f"trap 'echo got > \"$1/got$RANK\"; exit 0' {name}; " + READY + "while :; do sleep 0.05; done"
    process = start_script(tmp_path, RUNNER, code, str(tmp_path))
    pids_written(tmp_path, 2)
    process.send_signal(number)
    process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 0
    assert all((tmp_path / f"got{rank}").exists() for rank in range(2))


def test_the_status_after_a_fatal_signal_is_128_and_its_number(tmp_path):
    process = start_script(tmp_path, RUNNER, READY + "exec sleep 1000", str(tmp_path))
    pids = pids_written(tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM
    assert not any(map(is_running, pids))


SLOW_RUNNER = """
    import os, signal, sys, threading, time
    from shmring.launch import run

    class Commands(run._Commands):
        def _reap(self, ranks):  # the signal comes while the main thread does not wait; another thread could take it
            if not os.path.exists(sys.argv[1]):
                open(sys.argv[1], "w").close()
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)
            super()._reap(ranks)

    run._Commands = Commands
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    sys.exit(run.run(["/bin/sh", "-c", "[ $RANK = 0 ] && exit 0; exec sleep 1000"], 2))
"""


def test_a_signal_that_another_thread_receives_reaches_the_ranks(tmp_path):
    process = start_script(tmp_path, SLOW_RUNNER, str(tmp_path / "sent"))
    process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_rank_may_close_its_output(stream, capfd):
    code = f"echo before >&{stream}; exec {stream}>&-; sleep 0.05"
    assert run(shell(code), 2, tag_output=True) == 0
    assert sorted("".join(capfd.readouterr()).splitlines()) == ["[0] before", "[1] before"]


def test_tagged_output_without_a_reader_ends_the_ranks_as_untagged_output_does(tmp_path):
    code = "import sys; from shmring.launch.run import run; sys.exit(run(['yes'], 2, tag_output=True))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() in ("[0] y\n", "[1] y\n")
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait(60 * PATIENCE) != 0
    assert "Traceback" not in stderr, stderr


def test_a_rank_that_cannot_be_started_leaves_no_pipe(monkeypatch):
    def start_one(command, environ, *args):
        if environ["RANK"] == "1":
            raise OSError(errno.EAGAIN, "no more processes")
        return Command(command, environ, *args)

    monkeypatch.setattr("shmring.launch.run.Command", start_one)
    with pytest.raises(OSError, match="no more processes"):
        run(["sleep", "1000"], 2, tag_output=True)


def test_a_second_ctrl_c_kills_ranks_that_ignore_the_first(tmp_path):
    code = "trap '' TERM; trap '> \"$1/got$RANK\"' INT; " + READY + "while :; do sleep 0.05; done"
    process = start_script(tmp_path, RUNNER, code, str(tmp_path))
    pids = pids_written(tmp_path, 2)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: all((tmp_path / f"got{rank}").exists() for rank in range(2)), "the first was not passed on")
    time.sleep(0.6)  # one within 0.5 s is taken as an echo of the first
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == 128 + signal.SIGKILL
    wait_for(lambda: not any(map(is_running, pids)), "ranks were left running")


def test_ranks_of_run_die_with_a_launcher_that_is_killed(tmp_path):
    process = start_script(tmp_path, RUNNER, READY + "exec sleep 1000", str(tmp_path))
    pids = pids_written(tmp_path, 2)
    process.kill()
    process.communicate(timeout=60 * PATIENCE)
    wait_for(lambda: not any(map(is_running, pids)), "ranks outlived their launcher")


def test_a_run_leaves_the_signal_mask_and_handlers_as_they_were():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGINT)
    run(["true"], 2)
    assert (signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getsignal(signal.SIGINT)) == before


def test_names_of_ranks_killed_while_they_meet_are_swept(tmp_path):
    # Rank 1 never comes to the rendezvous, and fails once rank 0 has put up its name.
    code = """
        import os, sys, time
        import shmring
        session = os.environ["SHMRING_SESSION"]
        if os.environ["RANK"] == "0":
            shmring.init()
        while not (names := [name for name in os.listdir("/dev/shm") if session in name]):
            time.sleep(0.01)
        open(sys.argv[1], "w").write(names[0])
        os._exit(5)
    """
    assert run(python(code, str(tmp_path / "name")), 2) == 5
    assert (tmp_path / "name").read_text().startswith("shmring-")
    assert (tmp_path / "name").read_text() not in harness.shared_names()


def test_errors_of_spawn_are_errors_of_the_family():
    assert issubclass(RankFailedError, ShmringError)


EMBEDDING = r"""
import subprocess, sys, threading
from pathlib import Path
from shmring.launch.run import run

started = Path(sys.argv[1])

def start():
    global child
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def start_and_end():
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()                 # its child is adopted by the main thread, which waits in `run`
    started.touch()

UNTIL_STARTED = "import sys, time, pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"
keeper = threading.Thread(target=start_and_end)
keeper.start()
assert run([sys.executable, "-c", UNTIL_STARTED, sys.argv[1]], 2) == 0
keeper.join()
assert child.poll() is None, child.returncode
child.communicate(b"\n", timeout=60)
assert child.returncode == 0
"""


def test_a_run_ends_no_child_of_an_embedding_program(tmp_path):
    run_python("-c", EMBEDDING, tmp_path / "started")


EMBEDDING_WITH_A_THREAD_THAT_ENDS = r"""
import subprocess, sys, threading
from shmring.launch import run

begin, before = threading.Event(), run.children

def start_and_end():
    global child
    begin.wait()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

def children_and_one_more_then():
    found = before()
    begin.set()
    keeper.join()                 # its child is adopted by the main thread
    return found

keeper = threading.Thread(target=start_and_end)
keeper.start()
run.children = children_and_one_more_then
assert run.run([sys.executable, "-c", ""], 2) == 0
assert child.poll() is None, child.returncode
child.communicate(b"\n", timeout=60)
assert child.returncode == 0
"""


def test_a_run_ends_no_child_that_a_thread_starts_while_the_run_begins():
    run_python("-c", EMBEDDING_WITH_A_THREAD_THAT_ENDS)


def test_a_process_in_the_middle_of_an_exec_is_no_zombie(monkeypatch):
    started = partial(subprocess.Popen, [sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    looked = []

    def no_environment_at_first(pid, environment=run_module._environment):
        looked.append(pid)
        return environment(pid) if len(looked) > 2 else b""

    monkeypatch.setattr(run_module, "_environment", no_environment_at_first)
    for variables, session, expected in (
        ({"SHMRING_SESSION": "own"}, "own", True),
        ({"SHMRING_SESSION": "own"}, "other", False),
        ({}, "own", False),
    ):
        looked.clear()
        with started(env=variables) as child:
            assert run_module._is_of(child.pid, session) == expected
            assert len(looked) > 2
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            assert run_module._is_of(child.pid, "other")  # a zombie
