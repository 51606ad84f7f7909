"""Plans of all ranks, run by the simulator: right results, no deadlock, no race, no slot overwritten too early."""

import random

import pytest
from plan_costs import choose
from support.plans.cases import ALL_BUILDERS, BLOCKS, FORMS, PLACES, call_of, planner, roots_of, small
from support.plans.reference import verify
from support.plans.simulate import at_random, delaying, highest, in_turn, lowest, rushing

from shmring.collectives.plan.choose import PLANNED
from shmring.collectives.plan.limits import Limits

each_builder = pytest.mark.parametrize(("kind", "algorithm"), ALL_BUILDERS)
each_form = pytest.mark.parametrize(("kind", "algorithm", "place"), FORMS)


def sizes_around_thresholds(size, limits):
    """Vectors (or blocks) of nothing, an item, about a line for each rank, about a slot, and of many rounds."""
    lines, slot = 64 * size, limits.slot_nbytes
    near = {at + off for at in (64, lines, slot, 2 * slot, size * slot, 3 * size * slot) for off in (-8, 0, 8)}
    return sorted({0, 8, *near})


@pytest.mark.sample(8)
@each_form
def test_every_plan_gives_the_modelled_result_for_one_to_nine_ranks(kind, algorithm, place, seed, long_run):
    rng = random.Random(f"{seed} {kind} {algorithm} {place}")
    for size in range(1, 10):
        limits = small(size, rng.choice((4, 8)), rng.randrange(3))
        sizes = sizes_around_thresholds(size, limits)
        for nbytes in sizes if long_run else rng.sample(sizes, 2 if size < 6 else 1):
            call = call_of(kind, size, nbytes, place, rng.choice(roots_of(kind, size)))
            verify([call], planner(algorithm, limits), limits, at_random(rng.random()), seed)


@pytest.mark.sample(20)
@each_form
def test_every_rank_can_be_root(kind, algorithm, place, seed):
    for size in (2, 3, 5):
        limits = small(size)
        for root in roots_of(kind, size):
            verify([call_of(kind, size, 1000, place, root)], planner(algorithm, limits), limits, lowest, seed)


@pytest.mark.sample(4)
@each_builder
def test_every_plan_stands_every_order_of_ranks(kind, algorithm, seed):
    size = 4
    limits = small(size)
    schedules = [lowest, highest, in_turn(), at_random(seed), at_random(seed + 1)]
    schedules += [adverse(rank) for rank in range(size) for adverse in (rushing, delaying)]
    for schedule in schedules:
        # Twice, so that the second meets the slots that the first has left.
        verify([call_of(kind, size, 1688, root=1)] * 2, planner(algorithm, limits), limits, schedule, seed)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("kind", "algorithm", "owners"), [("all_reduce", "two_shot", 0), ("reduce", "sliced", 1)])
def test_two_shot_plans_are_right_for_every_number_of_chunks_and_every_tail(kind, algorithm, owners, place, seed):
    for size in (2, 3, 4):
        limits = small(size)
        n = size - owners
        staged = n - 1 if not owners else n
        chunk = n * (limits.capacity // staged // 64 * 64)
        for chunks in range(1, 6):
            for nbytes in (chunks * chunk + off for off in (-72, -64, -8, 0, 8, 64, 72)):
                call = call_of(kind, size, nbytes, place, size - 1)
                verify([call], planner(algorithm, limits), limits, lowest, seed)


@each_builder
def test_items_of_every_size_are_folded_whole(kind, algorithm, seed):
    for itemsize in (1, 2, 4, 16):
        for size in (2, 5):
            limits = small(size)
            call = call_of(kind, size, 41 * itemsize, itemsize=itemsize)
            verify([call], planner(algorithm, limits), limits, highest, seed)


@each_builder
def test_slots_too_small_for_a_line_per_rank_are_packed_tighter_or_refused(kind, algorithm, seed):
    size, limits = 9, Limits(4, 128)
    call = call_of(kind, size, 1000, itemsize=4)
    if algorithm in ("two_shot", "exchange", "sliced"):
        with pytest.raises(ValueError, match="too few"):
            planner(algorithm, limits)(call, 0)
    else:
        verify([call], planner(algorithm, limits), limits, lowest, seed)


UNEVEN = [form for form in FORMS if form[0] in BLOCKS or form[:2] == ("reduce_scatter", "staged")]


@pytest.mark.parametrize(("kind", "algorithm", "place"), UNEVEN)
def test_blocks_may_differ_in_size_and_be_empty(kind, algorithm, place, seed):
    rng = random.Random(f"{seed} {kind} {algorithm} {place}")
    for size in (1, 2, 3, 4, 6):
        limits = small(size)
        for _ in range(4):
            draw = [rng.choice((0, 0, 1, 63, 64, 65, 700, rng.randrange(3000))) for _ in range(size * size)]
            nbytes = draw[:size]
            if kind == "all_to_all":
                # Symmetric in place, where every rank sends each peer as much as it receives from it.
                nbytes = [draw[i * size : (i + 1) * size] for i in range(size)]
                if place == "in place":
                    nbytes = [[nbytes[min(i, j)][max(i, j)] for j in range(size)] for i in range(size)]
            call = call_of(kind, size, nbytes, place, rng.choice(roots_of(kind, size)), itemsize=1)
            verify([call], planner(algorithm, limits), limits, at_random(rng.random()), seed)


def test_collectives_of_all_kinds_follow_one_another_in_the_same_slots(seed, long_run):
    rng = random.Random(seed)
    for _ in range(300 if long_run else 25):
        size = rng.randrange(2, 6)
        limits = small(size, rng.choice((4, 8)), rng.randrange(2))
        calls, shared = [], {}
        for _ in range(6):
            kind = rng.choice(PLANNED)
            place, root = rng.choice(PLACES), rng.choice(roots_of(kind, size))
            call = call_of(kind, size, 8 * rng.choice((0, 1, 7, 40, 200)), place, root)
            calls.append(call)
            shared[call] = rng.random() < 0.3

        def plan(call, rank, limits=limits, shared=shared):
            return choose(
                call.kind,
                rank,
                call.size,
                call.nbytes,
                call.itemsize,
                root=call.root,
                limits=limits,
                shared_arrays=shared[call],
                in_place=call.in_place,
            )

        schedule = rng.choice([at_random(rng.random()), rushing(0), delaying(size - 1), in_turn()])
        verify(calls, plan, limits, schedule, seed)


@pytest.mark.parametrize("kind", PLANNED)
def test_slots_of_a_page_and_vectors_of_many_rounds(kind, seed):
    limits = Limits(8, 4096, one_shot_nbytes=0, flat_reduce_nbytes=0)

    def plan(call, rank):
        return choose(kind, rank, call.size, call.nbytes, call.itemsize, root=call.root, limits=limits)

    verify([call_of(kind, 3, 50_000)], plan, limits, at_random(seed), seed)
