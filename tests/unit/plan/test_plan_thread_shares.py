"""Thread shares: the collectives of all threads make up the whole collective, and have no byte in common."""

import random
from itertools import product

import numpy as np
import pytest
from plan_costs import choose
from support.plans.cases import PLACES, call_of, roots_of, small
from support.plans.reference import prepare
from support.plans.simulate import RankBuffers, Simulator, at_random

from shmring.collectives.plan.choose import PLANNED
from shmring.collectives.plan.cost import cost
from shmring.collectives.plan.kinds import COLLECTIVES
from shmring.collectives.plan.limits import Costs, Limits
from shmring.collectives.plan.steps import Copy
from shmring.collectives.plan.thread_shares import BLOCKS, cut, spaced, split_limit, waking

FORMS = [(kind, place) for kind in PLANNED for place in PLACES]


def plans_of(call, threads, limits):
    """For every thread where its share begins, and the plans of all ranks; None if it is not cut."""
    shares = cut(call.kind, call.size, call.nbytes, threads, 0)
    if shares is None:
        return None
    sizes = [shares.nbytes] * (threads - 1) + [shares.last_nbytes]
    return [
        (
            t * shares.nbytes,
            [
                spaced(choose(call.kind, r, call.size, n, call.itemsize, root=call.root, limits=limits), n, call.nbytes)
                for r in range(call.size)
            ],
        )
        for t, n in enumerate(sizes)
    ]


def forget(memory):
    """Forget all loads and stores: threads of different shares have no clock in common."""
    for clocks in (memory.writer, memory.written_at, memory.read_at):
        clocks[:] = 0


def run_shares(call, threads, limits, seed, only=None):
    """Run the shares one after the other over the same buffers; what is in these in the end, and what should be."""
    rng = np.random.default_rng(seed)
    whole = [choose(call.kind, r, call.size, call.nbytes, call.itemsize, root=call.root) for r in range(call.size)]
    _, buffers, expected = prepare(call, whole, rng)
    for t, (begin, plans) in enumerate(plans_of(call, threads, limits)):
        assert [p.in_place for p in plans] == [p.in_place for p in whole]
        if only not in (None, t):
            continue
        for own in buffers:
            forget(own.in_memory)
            forget(own.out_memory)
        shifted = [RankBuffers(b.in_memory, b.in_at + begin, b.out_memory, b.out_at + begin) for b in buffers]
        Simulator([(plans, shifted)], limits, call.itemsize, seed).run(at_random(seed))
    return buffers, expected


@pytest.mark.sample(6)
@pytest.mark.parametrize(("kind", "place"), FORMS)
def test_the_shares_of_all_threads_make_the_whole(kind, place, seed, long_run):
    rng = random.Random(f"{seed} {kind} {place}")
    groups = list(product((2, 3, 5), (2, 3, 4, 7)))
    for size, threads in groups if long_run else rng.sample(groups, 5):
        limits = small(size, rng.choice((4, 8)), rng.randrange(3))
        nbytes = 8 * rng.choice((8 * threads, 8 * threads + 1, 300, 1000, rng.randrange(64 * threads, 2000)))
        call = call_of(kind, size, nbytes, place, rng.choice(roots_of(kind, size)))
        if plans_of(call, threads, limits) is None:
            continue
        buffers, expected = run_shares(call, threads, limits, seed)
        for own, (in_bytes, out_bytes) in zip(buffers, expected, strict=True):
            np.testing.assert_array_equal(own.in_memory.data, in_bytes)
            np.testing.assert_array_equal(own.out_memory.data, out_bytes)


@pytest.mark.parametrize("kind", PLANNED)
def test_no_two_shares_write_the_same_byte(kind, seed):
    size, threads, limits = 3, 3, small(3)
    call = call_of(kind, size, 1048, root=1)
    written = [np.zeros(call.out_nbytes(r), int) for r in range(size)]
    for t in range(threads):
        touched, _ = run_shares(call, threads, limits, seed, only=t)
        untouched, _ = prepare(
            call, [choose(kind, r, size, 1048, root=1) for r in range(size)], np.random.default_rng(seed)
        )[1:]
        for r in range(size):
            written[r] += touched[r].out_memory.data != untouched[r].out_memory.data
            assert (touched[r].in_memory.data == untouched[r].in_memory.data).all()
    assert max(w.max(initial=0) for w in written) == 1


@pytest.mark.parametrize("kind", PLANNED)
def test_shares_cost_together_what_the_whole_costs(kind):
    # Bytes read and written: more threads move no byte more. Sizes at which no share has a ragged end.
    size, threads, nbytes = 4, 4, 64 * 12 * 4
    limits = Limits(8, 65536, one_shot_nbytes=0, flat_reduce_nbytes=0)
    for rank in range(size):
        whole = cost(choose(kind, rank, size, nbytes, limits=limits))
        shares = cut(kind, size, nbytes, threads, 0)
        assert shares == (nbytes // threads, nbytes // threads)
        part = cost(spaced(choose(kind, rank, size, shares.nbytes, limits=limits), shares.nbytes, nbytes))
        assert part.touched_nbytes * threads == whole.touched_nbytes
        assert (part.awaits, part.publishes) == (whole.awaits, whole.publishes)


def test_a_copy_of_several_blocks_is_cut_where_they_lie_apart():
    # In the plan of packed blocks the root of a scatter copies the others' blocks at once.
    packed = choose("scatter", 0, 4, 128)
    parts = [s for loop in spaced(packed, 128, 1024).loops for s in loop.steps if isinstance(s, Copy)]
    assert [s.nbytes for loop in packed.loops for s in loop.steps if isinstance(s, Copy)] == [384, 128]
    assert [(s.src.offset.start, s.nbytes) for s in parts] == [(1024, 128), (2048, 128), (3072, 128), (0, 128)]


@pytest.mark.parametrize("kind", PLANNED)
def test_plans_of_packed_blocks_stay_as_they_are(kind):
    plan = choose(kind, 1, 3, 1024)
    again = spaced(plan, 1024, 1024)
    assert (again.rounds, again.in_place, cost(again)) == (plan.rounds, plan.in_place, cost(plan))


@pytest.mark.parametrize("kind", PLANNED)
def test_shares_are_whole_lines_but_for_the_last_and_make_up_the_whole(kind):
    for threads in range(2, 33):
        for nbytes in (1, 64, 64 * threads, 64 * threads + 1, 1000 * threads - 8, 1 << 20, (1 << 20) - 4):
            shares = cut(kind, 4, nbytes, threads, 0)
            if shares is None:
                assert nbytes < 64 * threads * threads  # too few lines to give every thread some
                continue
            assert shares.nbytes % 64 == 0
            assert 0 < shares.last_nbytes <= shares.nbytes
            assert (threads - 1) * shares.nbytes + shares.last_nbytes == nbytes


def test_small_messages_and_single_threads_are_not_cut():
    assert cut("all_reduce", 2, 1 << 20, 1, 0) is None
    assert cut("all_reduce", 2, (1 << 20) - 1, 4, 1 << 20) is None
    assert cut("all_reduce", 2, 1 << 20, 4, 1 << 20) is not None
    # Blocks count together.
    for kind in filter(BLOCKS.get, BLOCKS):
        nbytes = (1 << 20) // COLLECTIVES[kind].most_blocks(4)
        assert cut(kind, 4, nbytes, 4, 1 << 20) is not None
        assert cut(kind, 4, nbytes - 1, 4, 1 << 20) is None


def test_the_limit_is_where_what_is_saved_pays_for_the_waking():
    costs = Costs(bytes_per_second=1e10, dispatch=2e-5)
    for threads in (2, 4, 32):
        saved = 2 * split_limit(threads, costs) / 1e10 * (1 - 1 / threads)
        assert saved == pytest.approx(waking(threads, costs))
    assert split_limit(1, costs) == float("inf")


def test_helpers_are_woken_as_deep_as_a_binary_tree_of_them_is():
    depth = [waking(threads, Costs(dispatch=1.0)) for threads in (1, 2, 3, 4, 7, 8, 32)]
    assert depth == [0, 1, 1, 2, 2, 3, 5]
