"""The command line, as its users start it."""

import json
import os
import signal
import subprocess
import sys

import pytest
from support.command import status_of_command
from support.programs import run_program, run_shmring

import shmring
from shmring.cli import COMMANDS, main, settings
from shmring.config import configure
from shmring.core.base.sysfs import parse_list
from shmring.core.memory import sweep
from shmring.core.placement.cpu_binding import UNITS, masks
from shmring.core.placement.topology import discover

HELLO = """
import sys, numpy, shmring
with shmring.init() as comm:
    x = numpy.ones(3)
    comm.all_reduce(x)
    sys.stdout.write(f"{comm.rank} {comm.size} {x.tolist()} {sys.argv[1:]}\\n")  # in one piece, buffered or not
"""


@pytest.fixture
def script(tmp_path):
    """A script that all-reduces and prints."""
    path = tmp_path / "hello.py"
    path.write_text(HELLO)
    return path


def expected_lines(n, argv):
    return [f"{rank} {n} {[float(n)] * 3} {argv}" for rank in range(n)]


@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_run_starts_a_script_with_its_arguments(script, dashes):
    done = run_shmring("run", "-n", "2", *dashes, str(script), "--n", "7", "-x")
    assert sorted(done.stdout.splitlines()) == expected_lines(2, ["--n", "7", "-x"])


def test_run_starts_a_module(script):
    done = run_shmring("run", "-n", "2", "-m", "hello", "-m", "x", cwd=script.parent)
    assert sorted(done.stdout.splitlines()) == expected_lines(2, ["-m", "x"])


@pytest.mark.parametrize("option", [[], ["--tag-output"], ["--prefix"]])
def test_run_starts_a_program_and_tags_its_output_on_request(option):
    done = run_shmring("run", "-n", "2", *option, "--", "/bin/sh", "-c", "echo $RANK of $WORLD_SIZE")
    tags = [f"[{rank}] " if option else "" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == [f"{tags[0]}0 of 2", f"{tags[1]}1 of 2"]


# Prints the rank and its processors.
WHERE = ("/bin/sh", "-c", 'echo "$RANK $(sed -n "s/Cpus_allowed_list:\\s*//p" /proc/self/status)"')


def places(done):
    """By rank: the processors that `WHERE` has printed."""
    lines = map(str.split, sorted(done.stdout.splitlines()))
    return [(int(rank), list(parse_list(processors))) for rank, processors in lines]


@pytest.mark.parametrize("unit", [None, *UNITS])
def test_run_binds_ranks_to_units_of_the_machine(unit):
    option = ["--bind", unit] if unit else []
    done = run_shmring("run", "-n", "3", *option, "--", *WHERE)
    assert done.stderr == ""
    expected = masks(discover(), 3, unit or "none")
    assert places(done) == [(rank, list(expected[rank])) for rank in range(3)]


@pytest.mark.sample(2)
@pytest.mark.parametrize("unit", UNITS)
def test_run_binds_ranks_within_what_it_may_use_itself(unit):
    last = max(os.sched_getaffinity(0))
    only_there = {"preexec_fn": lambda: os.sched_setaffinity(0, {last})}
    done = run_shmring("run", "-n", "2", "--bind", unit, "--", *WHERE, **only_there)
    assert places(done) == [(0, [last]), (1, [last])], done.stderr


def test_run_exits_with_the_status_of_the_rank_that_failed():
    done = run_shmring("run", "-n", "2", "--", "/bin/sh", "-c", "[ $RANK = 1 ] && exit 9; exec sleep 1000", status=9)
    assert "rank 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["no_such_script.py"], 127, "no_such_script.py: no such script"),
        (["./no_such_program"], 127, "no_such_program"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
    ],
)
def test_run_prints_why_it_cannot_start_a_command(command, status, message):
    done = run_shmring("run", "-n", "2", *command, status=status)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


BAD_ARGUMENTS = [
    ("run -n 0 true", "-n/--ranks: 0 must be at least 1"),
    ("run -n two true", "-n/--ranks: 'two' is not a whole number"),
    ("run -n 8192 true", "size=8192: a communicator has at most 8191 ranks"),
    ("run -n 99999999999999999999 true", "size=99999999999999999999: a communicator has at most"),
    ("run -n 2", "no command given"),
    ("run -n 2 --", "no command given"),
    ("run -n 2 -m", "no command given"),
    ("run -n 2 --grace nan true", "--grace: 'nan' must be 0 or more seconds; inf: no limit"),
    ("run -n 2 --grace=-1 true", "--grace: '-1' must be 0 or more seconds"),
    ("run -n 2 --nodes 3 true", "--nodes 3: at most as many as there are ranks, 2"),
    ("run -n 2 --nodes 0 true", "--nodes: 0 must be at least 1"),
    ("run -n 2 --bind socket true", "--bind: invalid choice: 'socket'"),
    ("info --channels --interval nan", "--interval: 'nan' must be above 0"),
    ("info --channels --interval=-1", "--interval: '-1' must be above 0"),
    ("info --channels --interval 1e30", "--interval: '1e30' must be above 0 and below a million"),
    ("info all", "unrecognized arguments: all"),
    ("bench --sizes foo", "--sizes: 'foo' is not a size"),
    ("bench --sizes 8,0", "--sizes: '0' is not a size"),
    ("bench --op foo", "--op: invalid choice: 'foo'"),
    ("bench --peers foo", "--peers: invalid choice: 'foo'"),
    ("bench -n x", "-n/--ranks: 'x' is not a whole number"),
    ("bench --seconds inf", "--seconds: 'inf' must be above 0"),
    ("demo -n 0", "-n/--ranks: 0 must be at least 1"),
    ("selftest -n 0", "-n/--ranks: 0 must be at least 1"),
    ("demo --seed=-1", "--seed: -1 must not be negative"),
    ("dance", "invalid choice: 'dance'"),
]


@pytest.mark.parametrize(("line", "message"), BAD_ARGUMENTS)
def test_a_bad_argument_is_status_2_and_a_message_that_has_the_value(line, message, capsys):
    try:
        status = main(line.split())
    except SystemExit as error:
        status = error.code
    assert (status, message in (stderr := capsys.readouterr().err)) == (2, True), stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("KERNEL", "none"), ("FILE_PREFIX", "a/b")],
)
def test_a_bad_setting_is_status_2_and_a_message_that_has_the_value(name, value):
    done = run_shmring("info", env={**os.environ, f"SHMRING_{name}": value}, status=2)
    assert f"SHMRING_{name}" in done.stderr
    assert value in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_command_is_no_command(capsys):
    assert main(["run", "-n", "2", ""]) == 2
    assert "no command given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("$INFO >/dev/full", 1, "No space left on device"),
        ("exec 3> >(true); wait $!; $INFO >&3", 128 + signal.SIGPIPE, ""),  # the reader has ended
        ("$INFO >&-", 0, ""),
    ],
)
def test_a_standard_output_that_cannot_be_written_is_no_traceback(line, status, message):
    env = {**os.environ, "INFO": f"{sys.executable} -m shmring info --json"}
    done = run_program("/bin/bash", "-c", line, status=status, env=env)
    assert message in done.stderr
    assert "Exception" not in done.stderr
    assert "Traceback" not in done.stderr


def test_info_shows_kernels_topology_limits_launcher_and_leftovers():
    done = run_shmring("info")
    titles = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    expected = ["version", "kernels", "topology", "limits", "launcher", "settings", "thresholds", "ranks"]
    assert titles[:8] == expected
    assert "leftovers" in titles
    assert shmring.kernels()["chosen"] in done.stdout
    assert f"shmring {shmring.__version__}" in done.stdout
    assert "/dev/shm" in done.stdout


@pytest.fixture
def info(capsys, monkeypatch):
    """``info(*ARGS, **environment)``: what ``shmring info ARGS`` prints in that environment."""

    def run(*args, **environment):
        with monkeypatch.context() as changes:
            for name, value in environment.items():
                changes.setenv(name, value)
            assert status_of_command("info", *args) == 0
        return capsys.readouterr().out

    return run


def test_info_writes_json_for_programs(info):
    facts = json.loads(info("--json"))
    assert facts["version"]["shmring"] == shmring.__version__
    assert facts["kernels"]["chosen"] in facts["kernels"]["runnable"]
    assert facts["topology"]["processors"] == sorted(os.sched_getaffinity(0))
    assert {"memory lock", "address space", "open files", "processes"} <= set(facts["limits"])


def test_info_shows_the_thresholds_and_where_they_come_from(info):
    settings = {"SHMRING_SLOT_NBYTES": "8192", "SHMRING_ONE_SHOT_NBYTES": "77"}
    found = json.loads(info("--json", **settings))["thresholds"]
    assert found["slot_nbytes"] == {"value": 8192, "why": "SHMRING_SLOT_NBYTES"}
    assert found["one_shot_nbytes"] == {"value": 77, "why": "SHMRING_ONE_SHOT_NBYTES"}
    assert found["nslots"] == {"value": 8, "why": "default"}
    assert found["latency_us"]["value"] is None
    assert found["pair_queue_nbytes"]["value"] == configure(slot_nbytes=8192).pair_queue_limit(2) > 0
    assert found["pair_queue_nbytes"]["why"].startswith("derived: ")
    given = json.loads(info("--json", SHMRING_PAIR_QUEUE_NBYTES="8192"))["thresholds"]["pair_queue_nbytes"]
    assert given == {"value": 8192, "why": "SHMRING_PAIR_QUEUE_NBYTES"}
    assert "slot_nbytes=8192  (SHMRING_SLOT_NBYTES)" in info(**settings)
    assert "SHMRING_NSLOTS='many'" in info(SHMRING_NSLOTS="many")


def test_info_shows_which_launcher_started_it(info):
    job = {"OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "x"}
    assert json.loads(info("--json", OMPI_COMM_WORLD_SIZE="2", **job))["launcher"]["job"]["rank"] == 1
    launcher = json.loads(info("--json", **job))["launcher"]
    assert (launcher["name"], launcher["job"]) == ("openmpi", None)
    assert "OMPI_COMM_WORLD_SIZE is not" in launcher["problem"]
    assert json.loads(info("--json"))["launcher"]["name"] is None


LEAVER = """
import os, signal
from shmring.core.memory.segment import OUTBOX, create
from shmring.core.memory.spelling import segment_name
kept = create(segment_name(os.environ["KEY"], "0"), kind=OUTBOX, nbytes=8192, rank=0, size=2)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_info_shows_and_cleans_what_a_dead_job_left(info):
    key = f"left{os.getpid()}"
    subprocess.run([sys.executable, "-c", LEAVER], env={**os.environ, "KEY": key}, check=False)
    try:
        names = {x.name for x in sweep.leftovers() if key in x.name}
        assert len(names) == 1, "the dead job should have left one name"
        shown = info()
        assert "stale" in shown
        assert "--clean" in shown
        facts = json.loads(info("--json"))
        assert names <= {x["name"] for x in facts["leftovers"] if x["status"] == "stale"}
        cleaned = json.loads(info("--json", "--clean"))
        assert names <= set(cleaned["removed"])
        assert not names & {x["name"] for x in cleaned["leftovers"]}
    finally:
        sweep.sweep(key)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: shmring {name}" in capsys.readouterr().out


def test_the_overview_lists_every_command_and_the_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"shmring {shmring.__version__}\n"


def test_a_defect_keeps_its_traceback(monkeypatch):
    """An internal `ValueError` or `ImportError` is neither an argument nor a setting."""
    from shmring.cli import info

    for error in (ValueError("internal"), ImportError("internal")):

        def fail(args, error=error):
            raise error

        monkeypatch.setattr(info, "main", fail)
        with pytest.raises(type(error), match="internal"):
            main(["info"])


@pytest.mark.parametrize("error", [ValueError("a wrong number"), ImportError("no module named inner")])
def test_an_error_that_names_no_variable_is_a_defect_and_no_setting(error, monkeypatch):
    def parse():
        raise error

    monkeypatch.setitem(settings._PARSERS, "kernel", parse)
    with pytest.raises(type(error), match=str(error)):
        main(["selftest"])


def test_a_setting_that_a_command_does_not_read_does_not_stop_it():
    run_shmring("top", "--once", env={**os.environ, "SHMRING_NSLOTS": "many"})
