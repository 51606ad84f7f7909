"""Plans on shared arrays as the engine executes them: after an exchange of all ranks with all others."""

import random
from pathlib import Path

import numpy as np
import pytest
from plan_costs import FORMULAS, choose
from support.plans.cases import FORMS, call_of, planner, roots_of, small
from support.plans.reference import CollectiveCall, prepare, verify
from support.plans.simulate import (
    Memory,
    Race,
    RankBuffers,
    Simulator,
    at_random,
    delaying,
    highest,
    in_turn,
    lowest,
    rushing,
)

from shmring.collectives.plan import zero_copy
from shmring.collectives.plan.steps import Affine, Await, Claim, Copy, Loop, Publish, Reduce
from shmring.collectives.plan.zero_copy import entered

ZERO_COPY_FORMS = [form for form in FORMS if form[1] == "zero_copy"]
SCHEDULES = [lowest, highest, in_turn(), rushing(0), delaying(1), at_random(1)]


def after_exchange(plan):
    """What the engine executes: a round in which every rank awaits all others, then the plan without its entry."""
    if not plan.zero_copy:
        return plan
    moved = [
        step if isinstance(step, (Copy, Reduce)) else step._replace(round=Affine(1))
        for loop in entered(plan).loops
        for step in loop.steps
    ]
    exchange = (Claim(Affine(0)), Publish(Affine(0)), Await(Affine(0)))
    return plan._replace(rounds=2, loops=(Loop(1, (*exchange, *moved)),))


@pytest.mark.sample(6)
@pytest.mark.parametrize(("kind", "algorithm", "place"), ZERO_COPY_FORMS)
def test_after_an_exchange_no_plan_needs_its_entry_round(kind, algorithm, place, seed):
    rng = random.Random(f"{seed} {kind} {place}")
    for size in (1, 2, 3, 5):
        limits = small(size)
        plan = planner(algorithm, limits)
        for nbytes in (0, 8, 64 * size + 8, 3000):
            for schedule in SCHEDULES:
                call = call_of(kind, size, nbytes, place, rng.choice(roots_of(kind, size)))
                verify([call] * 2, lambda c, r, plan=plan: after_exchange(plan(c, r)), limits, schedule, seed)


def test_without_an_exchange_the_entry_round_is_needed(seed):
    limits = small(3)
    plan = planner("zero_copy", limits)
    with pytest.raises(Race):
        verify([call_of("all_reduce", 3, 3000)] * 2, lambda c, r: entered(plan(c, r)), limits, rushing(0), seed)


def test_a_plan_that_maps_nothing_stays_as_it_is():
    alone = choose("all_reduce", 0, 1, 1000, 8, shared_arrays=True)
    assert entered(alone) is alone


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("root", [0, 2])
def test_one_result_is_complete_for_all_and_written_once(kind, root, seed):
    build = {"all_reduce": zero_copy.all_reduce_shared, "all_gather": zero_copy.all_gather_shared}[kind]
    size, nbytes = 3, 1000
    for schedule in SCHEDULES:
        for frame in (lambda plan: plan, after_exchange):
            call = CollectiveCall(kind, size, nbytes)
            plans = [frame(build(r, size, nbytes, 8, root=root)) for r in range(size)]
            _, buffers, expected = prepare(call, plans, np.random.default_rng(seed))
            # The outputs of the other ranks are not touched; all would read the root's.
            unused = [Memory(f"unused {r}", buffers[r].out_memory.data.copy(), size) for r in range(size)]
            own = [
                RankBuffers(b.in_memory, 0, b.out_memory if r == root else unused[r], 0) for r, b in enumerate(buffers)
            ]
            Simulator([(plans, own)], small(size), 8, seed).run(schedule)
            assert (own[root].out_memory.data == expected[root][1]).all()
            for r in range(size):
                assert (own[r].in_memory.data == expected[r][0]).all()
                assert r == root or (own[r].out_memory.data == buffers[r].out_memory.data).all()


def test_the_page_on_shared_arrays_has_the_cost_of_the_plans():
    page = (Path(__file__).resolve().parents[3] / "docs" / "shared-arrays.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    seen = set()
    for kind, shared, private_text, shared_text, *ratios in rows:
        kind = kind.strip("`")
        (private,) = [f for (k, _), f in FORMULAS.items() if k == kind and f.text == private_text]
        algorithm = "zero_copy_shared" if "one shared result" in shared else "zero_copy"
        formula = FORMULAS[kind, algorithm]
        assert formula.text.startswith(shared_text)
        assert ratios == [f"{formula.units(p) / private.units(p):.2f}" for p in (2, 8)]
        seen.add((kind, algorithm))
    assert seen == {name for name in FORMULAS if name[1].startswith("zero_copy")}
