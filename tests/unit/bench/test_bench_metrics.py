"""What the benchmark prints: sizes, spreads, bandwidths, ratios, tables."""

import json
from dataclasses import replace

import pytest

from shmring.bench import metrics, stored
from shmring.bench.competitors import OURS, Competitor, RankLayout
from shmring.bench.report import Verdict, as_json
from shmring.bench.runner import Result, Row, Settings
from shmring.bench.tables import Table, as_markdown, times_text
from shmring.bench.worker.probe import title_of_mpi
from shmring.cli.arguments import BadArgument
from shmring.cli.bench import _layout, _pythons
from shmring.placement.cpus import allowed_processors
from shmring.placement.topology import Cache, discover


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", [8]),
        ("64Ki, 8,8", [8, 65536]),
        ("1M,2MiB,1gb", [1 << 20, 2 << 20, 1 << 30]),
        ("8..1Ki", [8, 16, 64, 256, 1024]),
        ("4..4", [4]),
        ("8..64Mi", [8, *(4**power for power in range(2, 14))]),
        (metrics.DEFAULT_SIZES, [8, 64, 512, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]),
    ],
)
def test_sizes_are_lists_and_ranges(text, sizes):
    assert metrics.parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "8Ti", "-8", "x", "64..8", "1.5Ki", "8,,16"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError):
        metrics.parse_sizes(text)


@pytest.mark.parametrize(
    ("nbytes", "text"), [(8, "8 B"), (4096, "4 KiB"), (5000, "5000 B"), (3 << 20, "3 MiB"), (2 << 30, "2 GiB")]
)
def test_sizes_are_printed_exactly(nbytes, text):
    assert metrics.size_text(nbytes) == text


@pytest.mark.parametrize(
    ("us", "text"), [(None, "-"), (0.0042, "0.0042"), (0.17, "0.17"), (9.99, "9.99"), (9.999, "10.0"), (99.96, "100")]
)
def test_times_have_about_three_digits(us, text):
    assert metrics.time_text(us) == text


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 1.5),
        ("reduce", 1),
        ("broadcast", 1),
        ("all_gather", 0.75),
        ("all_to_all", 0.75),
        ("scatter", 0.75),
    ],
)
def test_bus_bandwidth_counts_what_crosses_between_four_ranks(op, factor):
    assert metrics.bus_bandwidth(op, 1 << 20, 1000.0, 4) == pytest.approx(factor * (1 << 20) / 1e6)


def test_a_round_trip_carries_its_bytes_twice_and_a_barrier_none():
    assert metrics.algorithm_bandwidth("ping_pong", 1000, 1.0) == 2.0
    assert metrics.bus_bandwidth("barrier", 0, 1.0, 2) == 0


def test_spread_is_median_quartiles_and_extremes():
    assert metrics.summary([5.0, 1.0, 4.0, 2.0, 3.0]) == {"median": 3, "q1": 2, "q3": 4, "min": 1, "max": 5}
    assert set(metrics.summary([7.0]).values()) == {7.0}


def test_a_ratio_compares_cycle_by_cycle():
    near_then_far = [1.0, 1.0, 4.0, 4.0, 4.0]
    assert metrics.ratio(near_then_far, [2 * us for us in near_then_far]) == 0.5


def test_cycles_are_grouped_by_the_placement_of_the_processors():
    near, far = [100.0, 110.0, 90.0, 105.0, 95.0, 140.0], [380.0, 1000.0, 350.0, 400.0, 390.0, 360.0]
    # The sixth begins near and ends far: it belongs to neither.
    assert metrics.placements(near + far) == [[0, 1, 2, 3, 4], [6, 7, 8, 9, 10, 11]]
    assert metrics.placements(far + near) == [[6, 7, 8, 9, 10, 11], [0, 1, 2, 3, 4]]
    for together in ([], [100.0], near, far, [*near, 1000.0], [100.0, 150.0] * 9, [100.0, 400.0] * 9):
        assert metrics.placements(together) == [list(range(len(together)))]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri", "MPICH 5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI user@localhost\0", "Open MPI 5.0.11"),
        ("Intel(R) MPI Library 2021.19.0 for Linux* OS\n", "Intel MPI 2021.19.0"),
    ],
)
def test_mpi_libraries_are_recognised_by_their_version_text(text, title):
    assert title_of_mpi(text) == title


def test_ranks_get_a_processor_each_where_there_are_enough():
    allowed = sorted(allowed_processors())
    assert _layout(1, "auto") == RankLayout(1, ((allowed[0],),), nprocessors=1)
    assert _layout(1, "none").processors is None
    crowd = _layout(len(allowed) + 1, "auto")
    assert crowd.processors is None
    assert crowd.crowded
    assert _layout(2, f"{allowed[0]},{allowed[0]}").crowded


@pytest.mark.parametrize("bind", ["here", "0,x", "4095", ""])
def test_processors_that_are_not_there_are_refused(bind):
    with pytest.raises(BadArgument, match="--bind"):
        _layout(1, bind)


def test_interpreters_have_labels(tmp_path):
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    assert list(_pythons([f"a={program}", str(program)])) == ["", "a", "env"]
    with pytest.raises(BadArgument, match="used twice"):
        _pythons([f"a={program}", f"a={program}"])
    with pytest.raises(BadArgument, match="not a program"):
        _pythons([f"a={tmp_path}"])


def competitor(name):
    return Competitor(name, name.upper(), "python", lambda *_: [])


FIELD = [competitor("shmring"), competitor("slow"), competitor("quick"), competitor("wrong"), competitor("without")]


def a_row(nbytes=1 << 20):
    return Row(
        "all_reduce",
        "float32",
        2,
        nbytes,
        trip_ns=[110.0, 112.0, 500.0],
        copy_us=[18.0, 18.5, 19.0],
        results={
            "shmring": Result(us=[20.0, 21.0, 22.0]),
            "slow": Result(us=[100.0, 100.0, 100.0]),
            "quick": Result(us=[40.0, 42.0, 44.0]),
            "wrong": Result(problem="WRONG answer on rank 1", failed=True),
            "without": Result(problem="has no all_reduce"),
        },
    )


def test_ours_is_compared_with_the_best_peer():
    assert Verdict.of(a_row(), FIELD) == ("shmring", "quick", 0.5)
    assert Verdict.of(a_row(), FIELD[1:]) == (None, "quick", None)
    assert Verdict.of(a_row(), FIELD[:1]) == ("shmring", None, None)


def test_a_line_has_everybodys_median_the_ceiling_and_the_ratio():
    table = Table(FIELD)
    lines = table.lines(a_row())
    assert [line.split() for line in lines[2:4]] == [
        ["size", "trip", "copy", "shmring", "slow", "quick", "wrong", "without", "algbw", "busbw", "speed"],
        ["1", "MiB", "0.112", "18.5", "21.0", "±2%", "100", "±0%", "42.0", "±2%", "WRONG", "-", "49.9", "49.9",
         *["2", "times", "as", "fast", "as", "quick"]],
    ]  # fmt: skip
    assert [line.strip() for line in lines[4:]] == ["without: has no all_reduce", "wrong: WRONG answer on rank 1"]
    assert len(table.lines(a_row())) == 1  # heads and reasons once


def test_a_block_has_all_figures_of_each():
    lines = Table(FIELD, is_long=True).lines(a_row())
    assert lines[2].split() == ["size", "median", "q1", "q3", "min", "algbw", "busbw", "cycles", "rewriting"]
    assert "1 MiB quick 42.0 41.0 43.0 40.0 25 25 3" in [" ".join(line.split()) for line in lines]
    assert any("is 2 times as fast as quick" in line for line in lines)


def test_a_row_whose_processors_were_moved_is_split_on_request():
    row = a_row()
    row.trip_ns = [100.0] * 6 + [400.0] * 6
    row.copy_us = [18.0] * 12
    row.results = {"shmring": Result(us=[20.0] * 6 + [50.0] * 6), "quick": Result(us=[40.0] * 12), "off": Result()}
    field = [competitor(name) for name in row.results]
    assert len(Table(field).lines(row)) == 4
    near, far = (line.split() for line in Table(field, is_split=True).lines(row)[3:])
    assert (near[2], near[4], near[-6]) == ("0.100", "20.0", "2")
    assert (far[2], far[4], far[-6]) == ("0.400", "50.0", "0.8")
    assert len(Table(field, is_long=True, is_split=True).lines(row)) == 2 * len(Table(field, True).lines(row)) - 3


def test_json_keeps_every_time_of_every_cycle():
    layout = RankLayout(2, None, 2)
    settings = Settings([("all_reduce", 1 << 20)], "float32", 1.0, None, 0.01, False, 30.0)
    report = json.loads(json.dumps(as_json([a_row()], FIELD, {}, layout, settings)))
    (row,) = report["rows"]
    assert row["round_trip_ns"] == [110.0, 112.0, 500.0]
    assert (row["best_peer"], row["ratio"]) == ("quick", 0.5)
    assert row["results"]["shmring"]["us"] == [20.0, 21.0, 22.0]
    assert row["results"]["shmring"]["median_us"] == 21.0
    assert row["results"]["wrong"] == {"statement": "", "problem": "WRONG answer on rank 1"}
    assert [one["is_ours"] for one in report["competitors"]] == [True, False, False, False, False]


MACHINE = replace(
    discover(),
    model="Some Processor",
    processors=(0, 1),
    nodes=(),
    caches=(Cache(1, 1 << 15, 64, (0,)), Cache(2, 1 << 20, 64, (0,)), Cache(3, 1 << 25, 64, (0, 1))),
)


def markdown(rows, size=2, competitors=FIELD):
    layout = RankLayout(size, None if size > 2 else ((0,), (1,)), 2)
    settings = Settings([("all_reduce", 1 << 20)], "float32", 1.0, None, 0.01, True, 30.0)
    return as_markdown(rows, competitors, layout, settings, MACHINE).splitlines()


def test_the_tables_for_a_machine_have_the_form_of_the_page():
    row, small = a_row(), a_row(8)
    row.trip_ns = small.trip_ns = [100.0] * 3
    row.results["quick"].version = "Quick MPI 3"
    small.results["slow"].us = [39.0] * 3
    alone = Row("barrier", "float32", 2, 0, [100.0] * 3, results={one.name: Result() for one in FIELD})
    alone.results["shmring"].us = [0.2] * 3
    lines = markdown([row, small, alone])
    assert lines[0] == "### Some Processor, 2 processors, 1 MiB and 32 MiB of cache"
    assert "slow (s)" in lines[2]
    assert "Quick MPI 3 (q)" in lines[2]
    assert "wrong (wr)" in lines[2]
    assert "one on each of the processors 0, 1" in lines[2]
    assert lines[-6:] == [
        "Round trips of 0.10 us:",
        "",
        "| call | 8 B | 1 MiB |",
        "| --- | --- | --- |",
        "| all_reduce | 21.0, 39.0 s, **1.86** | 21.0, 42.0 q, **2.0** |",
        "| barrier | 0.20 |  |",
    ]


def test_the_tables_keep_near_and_far_apart():
    row, far = a_row(8), a_row(16)
    row.trip_ns = [100.0] * 6 + [400.0] * 6
    row.copy_us = [18.0] * 12
    far.trip_ns = [410.0] * 3
    row.results = {one.name: Result() for one in FIELD} | {"shmring": Result(us=[20.0] * 6 + [50.0] * 6)}
    lines = markdown([row, far])
    assert [line for line in lines if line.endswith(" us:")] == [
        "Near, round trips of 0.10 us:",
        "Far, round trips of 0.40-0.41 us:",
    ]
    assert [line for line in lines if line.startswith("| all_reduce")] == [
        "| all_reduce | 20.0 |",
        "| all_reduce | 50.0 | 21.0, 42.0 q, **2.0** |",
    ]
    assert not any(line.startswith("Near") for line in markdown([row, far], size=4))  # that is the scheduler's


@pytest.mark.leaks  # matplotlib keeps the files of fonts open
def test_plots_are_drawn_for_sizes(tmp_path):
    pytest.importorskip("matplotlib")
    from shmring.bench.plot import draw

    rows = [a_row(1 << 10), a_row(1 << 20), Row("barrier", "float32", 2, 0, results={"shmring": Result(us=[1.0])})]
    for ending in ("png", "svg"):
        draw(rows, FIELD, str(tmp_path / f"plot.{ending}"))
        assert (tmp_path / f"plot.{ending}").stat().st_size > 10_000
    with pytest.raises(ValueError, match="size"):
        draw(rows[2:], FIELD, str(tmp_path / "nothing.png"))


def test_ours_are_known_by_name_whatever_the_interpreter():
    assert competitor("shmring@old").is_ours
    assert not competitor("mpich@shmring").is_ours
    assert all(competitor(name).is_ours for name in OURS)


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.0007, "1400"), (0.5, "2"), (0.9, "1.1"), (1.25, "0.8"), (0.05, "20"), (0.11, "9.1")]
)
def test_a_ratio_of_times_is_a_number_of_times_as_fast(ratio, text):
    assert times_text(ratio) == f"{text} times as fast as"


def stored_with(monkeypatch, *rows):
    run = {"shmring": "0.1.0", "machine": "Some Processor", "date": "2026-11-24", "versions": {}, "rows": list(rows)}
    monkeypatch.setattr(stored, "stored", lambda: run)


def test_rows_stand_beside_those_of_the_stored_run_that_have_the_same_call(monkeypatch):
    row, other = a_row(), a_row(8)
    row.trip_ns = [100.0] * 3
    us = {"shmring": 30.0, "gloo": 900.0, "mpich": 60.0}
    there = {"op": row.op, "dtype": row.dtype, "ranks": row.size, "nbytes": row.nbytes, "trip_us": 0.2, "us": us}
    stored_with(monkeypatch, there)
    head, title, heads, only = stored.beside([row, other], FIELD)
    assert head.startswith("\nHere: ")
    assert "There: Some Processor, 2026-11-24" in head
    assert title == f"  {row.op}, float32, {row.size} processes, microseconds:"
    assert heads.split() == ["bytes", "trip", "here,", "there", "shmring", "there", "fastest", "other", "there"]
    assert only.split() == ["1", "MiB", "0.10,", "0.20", "21.0", "30.0", "42.0", "quick", "60.0", "mpich"]
    stored_with(monkeypatch)
    assert stored.beside([row], FIELD) == []


def test_what_could_not_be_measured_is_named_with_the_reason(monkeypatch):
    row = a_row()
    row.trip_ns = [100.0] * 3
    us = {"shmring": 30.0, "gloo": 900.0, "mpich": 60.0}
    stored_with(monkeypatch, {"op": row.op, "dtype": "float32", "ranks": 2, "nbytes": 8, "trip_us": 0.2, "us": us})
    lines = stored.left_out([row], FIELD, {"mpich": "mpiexec is missing"}, RankLayout(2, None, 2))
    assert "  mpich: mpiexec is missing" in lines
    assert "  gloo: no Python here has torch; --python LABEL=PATH looks in another" in lines
    assert any(line.startswith("  wrong: WRONG") for line in lines)
    assert any("other distances" in line for line in lines)
    assert "  3 ranks with a processor each: there are 2" in stored.left_out([row], FIELD, {}, RankLayout(3, None, 2))


def test_reports_are_stored_in_short():
    row = {"op": "barrier", "dtype": "float32", "ranks": 2, "nbytes": 0, "round_trip_ns": [100, 120, 140]}
    results = {"shmring": {"us": [1.0, 2.0], "median_us": 1.2345}, "gloo": {"us": [], "problem": "died"}}
    gloo = {"name": "gloo", "title": "torch"}
    report = {"shmring": "9", "competitors": [gloo], "rows": [{**row, "results": results}]}
    found = stored.condensed([report], "today", "here")
    del row["round_trip_ns"]
    assert found["rows"] == [{**row, "trip_us": 0.12, "us": {"shmring": 1.23}}]
