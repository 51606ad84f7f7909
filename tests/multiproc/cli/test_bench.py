"""``shmring bench`` as its users start it, and libraries that fail or give wrong results."""

import json
import os

import pytest
from support import mpi
from support.on_ranks import on_ranks
from support.programs import run_program, run_shmring

import shmring
from shmring.cli import bench
from shmring.cli.bench import LEAST_CYCLES, Ours, measure, parse_sizes

QUICK = ("--seconds", "0.01")


def rows_of(*args):
    """The rows of ``shmring bench ARGS``, whose results were right."""
    facts = json.loads(run_shmring("bench", *args, *QUICK, "--json").stdout)
    assert "processors" in facts["machine"]
    for row in facts["rows"]:
        assert row["problems"] == {}
        assert all(us > 0 for us in row["trip_us"])
        assert {len(us) for us in row["us"].values()} == {len(row["trip_us"])}
        assert len(row["trip_us"]) >= LEAST_CYCLES
    return facts["rows"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_every_collective_is_timed_and_right_for_an_odd_number_of_ranks(dtype):
    rows = rows_of("-n", "3", "--op", "all", "--sizes", "192Ki", "--dtype", dtype, "--peers", "none")
    assert [row["op"] for row in rows] == list(bench.SHAPES)
    assert [row["nbytes"] for row in rows if row["op"] != "barrier"] == [192 << 10] * (len(rows) - 1)


@pytest.mark.torch
def test_gloo_takes_part_where_torch_is():
    pytest.importorskip("torch")
    for row in rows_of("--op", "all", "--sizes", "8,64Ki", "--peers", "gloo"):
        assert list(row["us"]) == ["shmring", "gloo"]


@pytest.mark.mpi
@pytest.mark.parametrize("python", mpi.PYTHONS)
def test_mpi_takes_part_where_mpi4py_is(python):
    command = [python, "-m", "shmring", "bench", "--op", "all", "--sizes", "8,64Ki", "--peers", "mpi", "--json"]
    for row in json.loads(run_program(*command, *QUICK, env=mpi.environment()).stdout)["rows"]:
        assert row["problems"] == {}
        assert list(row["us"]) == ["shmring", mpi.flavour(python)]


def test_a_table_is_printed_and_a_peer_that_is_not_there_is_named(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    done = run_shmring("bench", "--op", "barrier", "all_gather", "--sizes", "8", "--peers", "gloo", *QUICK, env=env)
    assert "gloo cannot take part: ImportError: no torch here" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith(f"shmring {shmring.__version__}")
    assert "barrier, float32, 2 ranks: microseconds per call" in lines
    assert sum(line.startswith("      8 B ") for line in lines) == 1


class Wrong(Ours):
    statements = {"all_reduce": "comm.all_reduce(x, op='max')"}  # noqa: RUF012


class Swapped(Ours):
    statements = {"all_gather": "comm.all_gather(x, y); y[:] = y[::-1].copy()"}  # noqa: RUF012


class Raises(Ours):
    statements = dict.fromkeys(bench.SHAPES, "1 / 0")


class Differs(Ours):
    """Only one rank has no such call."""

    def statement(self, op, x, y):
        if self.comm.rank == 1:
            raise LookupError("not on this rank")
        return super().statement(op, x, y)


@on_ranks(2)
def test_a_library_that_fails_or_is_wrong_has_a_reason_and_no_time(comm):
    found = [one(one.__name__, comm) for one in (Wrong, Raises, Differs, Ours)]
    row = measure(comm, found, "all_reduce", "float64", 64, 0.01)
    assert row["problems"] == {
        "Wrong": "WRONG",
        "Raises": "ZeroDivisionError: division by zero",
        "Differs": "LookupError: not on this rank",
    }
    assert list(row["us"]) == ["Ours"]
    row = measure(comm, [Swapped("Swapped", comm), Ours("Ours", comm)], "all_gather", "int32", 64, 0.01, rewrite=True)
    assert row["problems"] == {"Swapped": "WRONG"}
    assert list(row["us"]) == ["Ours"]


def test_sizes_are_bytes_with_binary_units():
    assert parse_sizes("8, 4Ki,1M,2gib") == [8, 4096, 1 << 20, 2 << 30]
    for wrong in ("", "0", "8Ti", "-8", "4.5K"):
        with pytest.raises(ValueError, match="is not a size"):
            parse_sizes(wrong)
