"""How bytes are cut: every byte once, in order, within the slots."""

import random
from itertools import pairwise

import pytest

from shmring.collectives.plan.limits import Limits
from shmring.collectives.plan.pipeline import even, merged, round_groups, round_up, rounds_of, slot_alignment
from shmring.collectives.plan.steps import IN, SLOT, Affine, Copy, Operand, Plan, describe
from shmring.collectives.plan.two_shot import slice_capacity


def test_even_parts_are_whole_lines_and_cover_all():
    for nbytes in (0, 1, 63, 64, 65, 640, 1000, 4096, 99_999):
        for parts in (1, 2, 3, 7, 64):
            bounds = even(nbytes, parts)
            assert len(bounds) == parts + 1
            assert (bounds[0], bounds[-1]) == (0, nbytes)
            assert bounds == sorted(bounds)
            assert all(b % 64 == 0 or b == nbytes for b in bounds)
            lines = [-(-(hi - lo) // 64) for lo, hi in pairwise(bounds)]
            assert max(lines) - min(lines) <= 1


def test_round_groups_cover_every_block_once_in_order_and_fit_the_slots(seed):
    rng = random.Random(seed)
    for _ in range(500):
        blocks, capacity = rng.randrange(1, 8), 64 * rng.choice((2, 3, 16, 40, 4096))
        load = rng.choice((max, sum))
        alignment = slot_alignment(1 if load is max else blocks, capacity, 1)
        sizes = [rng.choice((0, 1, 64, rng.randrange(20_000), rng.randrange(300))) for _ in range(blocks)]
        at, round = [0] * blocks, 0
        for group in round_groups(sizes, capacity, load, alignment):
            assert group.round == round
            assert group.starts == at
            assert load([round_up(n, alignment) for n in group.pieces]) <= capacity
            round += group.times
            at = [a + group.times * n for a, n in zip(at, group.pieces, strict=True)]
        assert at == sizes


def test_one_block_takes_the_fewest_rounds_in_equal_pieces_to_the_line():
    for nbytes in (1, 256, 4096, 4097, 65_536, 65_540, 999_999, 1 << 34):
        cut = round_groups([nbytes], 4096)
        least = -(-nbytes // 4096)
        assert rounds_of(cut) == least
        assert len(cut) <= 2
        assert cut[0].pieces[0] == (round_up(-(-nbytes // least), 64) if least > 1 else nbytes)


def test_equal_blocks_that_share_a_slot_take_at_most_one_round_more_than_the_fewest():
    for blocks in (2, 3, 7):
        for nbytes in (1000, 87_381, 87_382, 262_144, 1_000_000, 1 << 26):
            cut = round_groups([nbytes] * blocks, 262_144, sum)
            assert rounds_of(cut) <= -(-blocks * round_up(nbytes, 64) // 262_144) + 1
            assert len(cut) <= 2


def test_a_long_block_does_not_make_the_round_groups_of_many_short_ones_many():
    sizes = [10_000_000] + [100 * r for r in range(200)]
    assert len(round_groups(sizes, 4096)) <= 4


def test_slots_too_small_for_the_items_are_refused():
    with pytest.raises(ValueError, match="too few"):
        slot_alignment(9, 128, 16)


def test_copies_that_continue_one_another_are_merged_and_no_others():
    def copy(dst, src, nbytes, step=0):
        return Copy(Operand(SLOT, 0, Affine(dst, step)), Operand(IN, 0, Affine(src, step)), nbytes)

    assert merged([copy(0, 64, 64), copy(64, 128, 64), copy(128, 256, 64)]) == [copy(0, 64, 128), copy(128, 256, 64)]
    assert merged([copy(0, 0, 64, 64), copy(64, 64, 64, 128)]) == [copy(0, 0, 64, 64), copy(64, 64, 64, 128)]


def test_limits_refuse_what_no_plan_fits_into():
    for nslots, slot_nbytes, round_nbytes in ((3, 128, None), (4, 64, None), (4, 200, None), (4, 256, 64)):
        with pytest.raises(ValueError):
            Limits(nslots, slot_nbytes, round_nbytes)


def test_a_round_may_be_kept_smaller_than_a_slot():
    limits = Limits(slot_nbytes=4096, round_nbytes=1000)
    assert limits.capacity == 960
    assert slice_capacity(3, limits) == 320


def test_a_plan_is_readable():
    from shmring.collectives.plan.reduction import all_reduce_two_shot

    plan = all_reduce_two_shot(1, 3, 4096, 8, Limits(4, 256))
    text = str(plan)
    assert isinstance(plan, Plan)
    assert text == describe(plan)
    assert text.splitlines()[0] == "all_reduce, two_shot: rank 1 of 3, 22 rounds"
    assert "  8 times, i = 0..7" in text
    assert "await   round 1+2i of all others" in text
    assert "slot of 0 in round 1+2i [0], in of 1 [512+384i], slot of 2 in round 1+2i [128]" in text
