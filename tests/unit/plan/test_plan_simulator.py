"""The simulator finds what is wrong with plans: each test breaks one in one way."""

import pytest
from support.plans.cases import ALL_BUILDERS, call_of, planner
from support.plans.reference import verify
from support.plans.simulate import Deadlock, Misuse, Race, delaying, highest, in_turn, lowest, rushing

from shmring.collectives.plan import reduction, zero_copy
from shmring.collectives.plan.limits import Limits
from shmring.collectives.plan.steps import (
    IN,
    OUT,
    SLOT,
    ZERO,
    Affine,
    Await,
    Claim,
    Copy,
    Loop,
    Operand,
    Publish,
    Reduce,
    Release,
)

LIMITS = Limits(8, 192)
SIZE, ROOT, NBYTES = 3, 1, 2000


def edited(plan, edit):
    """The plan with ``edit(step)``, a list of steps, in place of every step."""
    loops = tuple(Loop(loop.times, tuple(new for s in loop.steps for new in edit(s))) for loop in plan.loops)
    return plan._replace(loops=loops)


def check(kind, algorithm, edit, victim=None, schedule=lowest, calls=1, place="out of place"):
    """Verify a collective in which the plan of ``victim`` (None: all) went through ``edit``."""
    whole = planner(algorithm, LIMITS)

    def plan(call, rank):
        return edited(whole(call, rank), edit) if victim in (None, rank) else whole(call, rank)

    verify([call_of(kind, SIZE, NBYTES, place, ROOT)] * calls, plan, LIMITS, schedule)


def without(*types):
    return lambda step: [] if isinstance(step, types) else [step]


@pytest.mark.sample(30)
@pytest.mark.parametrize(("kind", "algorithm"), ALL_BUILDERS)
@pytest.mark.parametrize("missing", [Claim, Publish, Await, Copy, Reduce])
def test_no_step_is_superfluous(kind, algorithm, missing):
    whole = planner(algorithm, LIMITS)
    call = call_of(kind, SIZE, NBYTES, root=ROOT)
    tried = 0
    for victim in range(SIZE):
        plan = whole(call, victim)
        for at, loop in enumerate(plan.loops):
            for k, step in enumerate(loop.steps):
                if not isinstance(step, missing):
                    continue
                rest = loop._replace(steps=loop.steps[:k] + loop.steps[k + 1 :])
                broken = plan._replace(loops=(*plan.loops[:at], rest, *plan.loops[at + 1 :]))
                if missing is Publish and is_last(plan, at, k, Publish):
                    continue  # the end of the plan publishes what it published
                tried += 1
                with pytest.raises((Deadlock, Misuse, Race, AssertionError)):
                    verify([call], lambda c, r, v=victim, b=broken: b if r == v else whole(c, r), LIMITS)
    assert tried or missing in (Copy, Reduce, Publish)


def is_last(plan, at, k, kind):
    rest = [*plan.loops[at].steps[k + 1 :], *(s for loop in plan.loops[at + 1 :] for s in loop.steps)]
    return plan.loops[at].times == 1 and not any(isinstance(s, kind) for s in rest)


def test_without_releases_no_rank_gets_a_slot_again():
    with pytest.raises(Deadlock, match=r"Claim.* of all_reduce"):
        check("all_reduce", "two_shot", without(Release), victim=0)


def test_a_slot_released_before_it_is_read_is_found():
    def early(step):
        return [Release(step.round), step] if isinstance(step, Await) else [step]

    with pytest.raises(Misuse, match="after it released it"):
        check("broadcast", "staged", early, victim=2)


def test_the_last_round_is_released_by_the_end_alone():
    def edit(step):
        return [step, Release(ZERO)] if isinstance(step, Publish) else [step]

    def plan(call, rank):
        return edited(reduction.all_reduce_one_shot(rank, SIZE, 64), edit)

    with pytest.raises(Misuse, match="last round"):
        verify([call_of("all_reduce", SIZE, 64)], plan)


def test_a_slot_overwritten_before_its_readers_released_it_is_found():
    def later(step):  # claims a round that is free, and overwrites one that is not
        return [Claim(ZERO)] if isinstance(step, Claim) else [step]

    with pytest.raises(Misuse, match="claimed to 0"):
        check("all_reduce", "one_shot", later, victim=1, schedule=delaying(0))


@pytest.mark.parametrize("schedule", [lowest, highest, in_turn(), rushing(0), delaying(0)])
def test_a_race_is_found_whatever_order_the_run_took(schedule):
    def no_exit(step):
        return [] if isinstance(step, Await) and step.round.start == 1 else [step]

    def no_entry(step):
        return [] if isinstance(step, Await) and step.round.start == 0 else [step]

    for edit in (no_exit, no_entry):
        with pytest.raises(Race):
            check("all_reduce", "zero_copy", edit, victim=0, schedule=schedule)


def test_an_all_to_all_in_place_on_shared_arrays_is_a_race():
    def plan(call, rank):
        return zero_copy.all_to_all(rank, SIZE, NBYTES)._replace(in_place=0)

    with pytest.raises(Race):
        verify([call_of("all_to_all", SIZE, NBYTES, "in place")], plan)


@pytest.mark.parametrize(
    "disorder",
    [
        lambda s: s[::-1],
        lambda s: (s[1], s[0], *s[2:]),
        lambda s: (*s[:-1], s[0]),
        lambda s: s[:-1],
        lambda s: (*s, s[0]),
    ],
    ids=["reversed", "swapped", "one twice", "one missing", "one too many"],
)
def test_a_fold_out_of_order_or_with_an_operand_too_many_or_too_few_is_found(disorder):
    def edit(step):
        return [step._replace(sources=disorder(step.sources))] if isinstance(step, Reduce) else [step]

    with pytest.raises(AssertionError, match="differs"):
        check("all_reduce", "two_shot", edit)


def test_a_fold_in_two_steps_is_found_even_if_its_order_is_right():
    def edit(step):
        if not isinstance(step, Reduce):
            return [step]
        return [step._replace(sources=step.sources[:2]), step._replace(sources=(step.dst, *step.sources[2:]))]

    with pytest.raises(AssertionError, match="differs"):
        check("all_reduce", "one_shot", edit)


def test_staging_after_the_output_was_overwritten_in_place_is_found():
    def plan(call, rank):
        whole = reduction.exscan(rank, SIZE, 64)
        steps = [s for loop in whole.loops for s in loop.steps]
        # Rank 1 folds first and stages then: right out of place.
        order = steps[3:5] + steps[:3] + steps[5:] if rank == 1 else steps
        return whole._replace(loops=(Loop(1, tuple(order)),))

    verify([call_of("exscan", SIZE, 64)], plan)
    with pytest.raises(AssertionError, match="differs"):
        verify([call_of("exscan", SIZE, 64, "in place")], plan)


def test_a_private_plan_that_reads_a_peers_buffer_is_found():
    def edit(step):
        return [step._replace(src=Operand(IN, 1, ZERO))] if isinstance(step, Copy) else [step]

    with pytest.raises(Misuse, match="private plan"):
        check("all_gather", "staged", edit, victim=0)


def test_bytes_of_a_slot_that_no_rank_wrote_are_not_read():
    def edit(step):
        if not isinstance(step, Copy) or step.src.space is not SLOT:
            return [step]
        return [step._replace(src=step.src._replace(offset=Affine(step.src.offset.start + 8)))]

    with pytest.raises(Misuse, match=r"has not written|touches"):
        check("broadcast", "staged", edit, victim=2)


def test_an_operand_that_overlaps_a_destination_in_part_is_found():
    def edit(step):
        if not isinstance(step, Reduce):
            return [step]
        return [step._replace(dst=Operand(OUT, 0, Affine(8)))]

    with pytest.raises(Misuse, match="overlaps"):
        check("reduce_scatter", "staged", edit, victim=0, place="in place")


def test_a_buffer_is_not_left():
    def edit(step):
        return [step._replace(nbytes=step.nbytes + 8)] if isinstance(step, Copy) else [step]

    with pytest.raises(Misuse, match=r"touches .* of \d+ bytes|writes to byte \d+ of a slot, past"):
        check("broadcast", "staged", edit)
