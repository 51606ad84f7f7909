"""Predicted times: what the simulation of time must have right whatever the machine."""

from pathlib import Path

import pytest
from plan_costs import choose
from plan_predictions import prediction
from plan_tables import main
from plan_times import LinkModel, MachineModel, predict, two_sockets
from support.programs import run_python

from shmring.plan.hierarchical import all_reduce
from shmring.plan.hierarchy import Hierarchy
from shmring.plan.limits import Limits
from shmring.plan.steps import Await, Loop

TOOL = Path(__file__).resolve().parents[3] / "tools" / "plan_tables.py"
ONE = Hierarchy((0, 0, 0, 0))
TWO = Hierarchy((0, 0, 1, 1))
NO_LINK = (LinkModel(1e9, 1e9, 0.0),)


def flat(size, nbytes, kind="all_reduce", **limits):
    return [choose(kind, r, size, nbytes, limits=Limits(**limits)) for r in range(size)]


def test_without_latency_and_links_the_busiest_core_decides():
    machine = MachineModel((ONE.level,), NO_LINK, core_bytes_per_second=1e9, latency=0.0, step=0.0)
    # One shot: (p+3)s touched by each rank.
    assert predict(flat(4, 1000, one_shot_nbytes=10_000), machine) == pytest.approx(7 * 1000 / 1e9)


def test_without_bytes_the_syncs_that_depend_on_one_another_decide():
    machine = MachineModel((ONE.level,), NO_LINK, core_bytes_per_second=1e18, latency=1e-6, step=0.0)
    for plans, syncs in ((flat(4, 4096, one_shot_nbytes=10_000), 1), (flat(4, 4096, one_shot_nbytes=0), 2)):
        # Beside its latency, a wait for three others costs a look at each.
        assert predict(plans, machine) == pytest.approx(syncs * (1e-6 + 3e-6 / 4))


def test_a_link_that_many_use_slows_all_of_them_down():
    def seconds(link):
        machine = MachineModel(
            (TWO.level,), (LinkModel(link, 1e9, 0.0),), core_bytes_per_second=1e9, latency=0.0, step=0.0
        )
        return predict(flat(4, 1 << 20, "broadcast"), machine)

    # Two of the root's three readers are on the other side, each at 1e9 bytes a second while the link gives that.
    assert seconds(2e9) == pytest.approx(seconds(4e9))
    assert seconds(0.5e9) == pytest.approx(2 * (1 << 20) / 0.5e9, rel=0.3)
    assert seconds(0.25e9) > 1.8 * seconds(0.5e9)


def test_hierarchical_plans_need_less_of_a_slow_link():
    machine = MachineModel((TWO.level,), (LinkModel(1e8, 1e10, 1e-7),), core_bytes_per_second=1e10)
    hierarchical = [all_reduce(r, TWO, 1 << 22) for r in range(4)]
    ratio = predict(flat(4, 1 << 22), machine) / predict(hierarchical, machine)
    # Each way over the link goes 2s flat, s hierarchical.
    assert ratio == pytest.approx(2, rel=0.3)


def test_the_model_and_the_prediction_agree_on_large_messages():
    found = prediction("two-sockets", "all_reduce", 16, 1 << 22)
    assert found.chosen == "hierarchical"
    assert found.hierarchical_us < found.flat_us


def test_plans_that_deadlock_are_an_error():
    plans = flat(2, 4096)
    only_waits = tuple(
        Loop(loop.times, tuple(s for s in loop.steps if isinstance(s, Await))) for loop in plans[0].loops
    )
    with pytest.raises(ValueError, match="deadlock"):
        predict([plan._replace(loops=only_waits, rank=r) for r, plan in enumerate(plans)], two_sockets(2))


def test_the_command_prints_a_row_for_each_machine_and_collective(capsys, tmp_path):
    main(["predict", "--size", "8", "--sizes", "64K"])
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 2 + 2 * 4
    assert "64 KiB" in lines[0]


def test_the_command_draws(tmp_path):
    pytest.importorskip("matplotlib")
    # In a process of its own: matplotlib leaves font files open.
    arguments = ["predict", "--size", "4", "--sizes", "64K", "--plot", str(tmp_path / "p.png")]
    run_python(TOOL, *arguments)
    assert (tmp_path / "p.png").stat().st_size > 1000
