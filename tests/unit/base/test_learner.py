"""The learner on simulated machines: it finds what is fastest within its budget, and ranks never disagree."""

import itertools
import math
import random

import pytest
from support import compiled

Learner = compiled.load("learner_hooks").Learner
STORES, PATH, OUTPUT, SCHEDULE, THREADS = range(5)
NEAR, FAR, XEON, ZEN = (10, 28, 12, 40), (40, 10, 30, 20), (20, 17, 12, 15), (40, 14, 30, 10)
UNIT = 1000  # nanoseconds
ALL = 4, 2, 4, 3, 2  # values of each dimension


class Rank:
    """A rank that decides, on a machine with a clock of its own."""

    def __init__(self, nvalues, **how):
        self.learner, self.word = Learner(nvalues, **how), 0

    def call(self, inside, between=0, trip_ns=0):
        """One call: ``inside`` and ``between`` give the time within it and after it, by variant. The variant and its
        time."""
        self.word = self.learner.look() or self.word
        variant = self.learner.begin(self.word)
        took = inside(variant)
        if self.learner.is_timed:
            self.learner.note(int(took), int(took + (between(variant) if between else 0)), trip_ns)
        return variant, took


def of_stores(costs, noise=None):
    def inside(variant):
        return costs[variant[0]] * UNIT * (1 if noise is None else noise())

    return inside


def noisy(generator):
    """Calls are often slower than they could be, and sometimes far slower; never faster."""

    def factor():
        return 1 + generator.expovariate(20) + (generator.random() < 0.01) * generator.uniform(1, 50)

    return factor


def loss(made, best):
    return sum(took for _, took in made) / (len(made) * best * UNIT) - 1


@pytest.mark.parametrize("window", [4, 6, 20])
@pytest.mark.parametrize("costs", [NEAR, FAR, XEON, ZEN])
def test_the_fastest_stores_are_found_and_kept(costs, window):
    rank = Rank([4], window=window)
    made = [rank.call(of_stores(costs)) for _ in range(3000)]
    best = costs.index(min(costs))
    late = [variant[0] for variant, _ in made[-1000:]]
    assert late.count(best) > 900


@pytest.mark.parametrize("window", [4, 20, 70])
def test_trials_lose_little(window):
    rank = Rank([4, 1, 4], window=window)
    made = [rank.call(lambda v: UNIT * NEAR[v[STORES]] * (1, 1.1, 2.7, 4)[v[OUTPUT]]) for _ in range(1000)]
    assert loss(made, NEAR[0]) < 0.025
    assert loss(made[:20], NEAR[0]) < 0.5


@pytest.mark.parametrize("seed", range(8))
def test_noise_and_stragglers_decide_nothing_for_long(seed):
    generator = random.Random(seed)
    for costs in (NEAR, FAR, XEON, ZEN):
        rank = Rank([4], window=6)
        inside = of_stores(costs, noisy(generator))
        made = [rank.call(inside) for _ in range(6000)]
        best = costs.index(min(costs))
        late = [costs[variant[0]] for variant, _ in made[-2000:]]
        assert sum(late) < 1.05 * len(late) * costs[best]


def test_where_most_looks_find_a_change_every_alternative_has_its_turn():
    # As with more ranks than processors, where the time within a call depends on when the others get a processor.
    rank, calls = Rank([4, 2, 4], window=6), itertools.count()

    def inside(variant):
        return UNIT * (20 if variant[OUTPUT] == 2 else 100) * (1 + next(calls) // 8 % 2)

    made = [rank.call(inside)[0] for _ in range(2000)]
    assert [variant[OUTPUT] for variant in made[-500:]].count(2) > 400


@pytest.mark.parametrize("before", [NEAR, FAR, ZEN])
@pytest.mark.parametrize("after", [NEAR, FAR, ZEN])
def test_a_change_of_the_machine_is_followed_within_two_hundred_calls(before, after):
    if before == after:
        return
    rank = Rank([4], lead=2, window=4)
    for _ in range(2000):
        rank.call(of_stores(before))
    made = [rank.call(of_stores(after)) for _ in range(200)]
    assert made[-1][0][0] == after.index(min(after))


@pytest.mark.parametrize("window", [4, 20])
@pytest.mark.parametrize("lead", [2, 10])
def test_processors_that_are_moved_to_and_fro_are_followed(lead, window):
    # Measured on a Zen 4: of streaming stores the calls do not show it, as they take equally long near and far.
    generator = random.Random(7)
    rank, noise = Rank([4], lead=lead, window=window), noisy(generator)
    for move in range(8):
        costs, trip_ns, best = ((15, 20, 15, 15), 30, (0, 2, 3)) if move % 2 == 0 else ((72, 20, 72, 73), 130, (1,))
        made = [rank.call(of_stores(costs, noise), trip_ns=trip_ns * noise())[0][STORES] for _ in range(1000)]
        # The first time nothing is known of the other place.
        assert sum(stores in best for stores in made[400 if move < 2 else 200 :]) > 540


def test_stores_are_tried_with_staged_arrays_where_direct_ones_are_in_use():
    # Far: staged by ordinary stores is slower than direct, by streaming ones faster.
    rank = Rank([4, 2], window=6)
    made = [rank.call(lambda v: UNIT * (105, 19, 105, 110)[v[STORES]] if v[PATH] else UNIT * 72) for _ in range(300)]
    assert {variant[:2] for variant, _ in made[-50:]} == {(1, 1)}


def test_an_exchange_is_tried_with_ordinary_stores():
    # Far: without an exchange ordinary stores are the slowest, and an exchange is slow with streaming ones.
    rank = Rank([4, 1, 1, 3], guess=(1,), window=6, exchange=2)
    costs = {0: (96, 46, 96, 140), 1: (98, 50, 98, 140), 2: (37, 50, 41, 50)}
    made = [rank.call(lambda v: UNIT * costs[v[SCHEDULE]][v[STORES]])[0] for _ in range(400)]
    assert [(variant[STORES], variant[SCHEDULE]) for variant in made[-50:]].count((0, 2)) > 40


@pytest.mark.parametrize("seed", range(20))
def test_the_best_variant_of_any_independent_costs_is_found(seed):
    generator = random.Random(seed)
    costs = [[generator.uniform(1, 3) for _ in range(n)] for n in (4, 1, 4, 3, 2)]

    def inside(variant):
        return 1e5 * math.prod(of[value] for of, value in zip(costs, variant, strict=True))

    rank = Rank([4, 1, 4, 3, 2], window=4)
    made = [rank.call(inside) for _ in range(6000)]
    least = 1e5 * math.prod(map(min, costs))
    assert inside(made[-1][0]) < 1.1 * least


def test_what_the_call_saves_and_the_next_accesses_pay_for_is_not_chosen():
    # The second kind of stores to the output makes calls faster, but what follows slower.
    rank = Rank([1, 1, 3], window=4)
    calls, pauses = (10, 5, 12), (10, 30, 10)
    made = [rank.call(lambda v: calls[v[OUTPUT]] * UNIT, lambda v: pauses[v[OUTPUT]] * UNIT) for _ in range(2000)]
    assert [variant[OUTPUT] for variant, _ in made[-500:]].count(0) > 490


def test_a_variant_that_is_far_slower_is_not_run_to_its_end():
    rank = Rank([2], window=100)
    made = [rank.call(of_stores((10, 45)))[0][0] for _ in range(2000)]
    runs = [len(list(run)) for kind, run in itertools.groupby(made) if kind == 1]
    assert runs
    assert max(runs) <= 3


# ---- agreement -------------------------------------------------------------------------------------------------------


def run_ranks(generator, size, lead, ncalls, inside, ahead):
    """The variants of all calls, by rank. Ranks take steps in random order, at most ``ahead`` calls ahead of rank 0 or
    behind it. A rank loads a word of rank 0 at some call after it was published, at the latest ``lead`` calls after."""
    deciding = Rank(ALL, lead=lead, window=generator.choice([2, 4, 9]))
    others = [Learner(ALL, lead=lead) for _ in range(size - 1)]
    words = [(-lead, 0)]  # before which call each was published
    seen, made = [0] * size, [[] for _ in range(size)]
    while min(map(len, made)) < ncalls:
        rank = generator.randrange(size)
        call = len(made[rank])
        if call == ncalls:
            continue
        if rank == 0 and call - min(map(len, made)) < ahead:
            before = deciding.word
            made[0].append(deciding.call(inside)[0])
            if deciding.word != before:
                words.append((call, deciding.word))
        elif rank and call - len(made[0]) < ahead:
            while seen[rank] + 1 < len(words) and (words[seen[rank] + 1][0] + lead <= call or generator.random() < 0.3):
                seen[rank] += 1
            made[rank].append(others[rank - 1].begin(words[seen[rank]][1]))
    return made


def changing(generator):
    """A machine that is another one now and then."""
    table = {}

    def inside(variant):
        if generator.random() < 0.01:
            table.clear()
        return table.setdefault(variant, generator.uniform(1e3, 5e3))

    return inside


@pytest.mark.sample(4)
@pytest.mark.parametrize("lead", [2, 10])
@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_ranks_never_disagree(size, lead, seed):
    generator, used = random.Random(f"{seed} {size} {lead}"), set()
    for _ in range(max(64 // size, 4)):
        made = run_ranks(generator, size, lead, 400, changing(generator), ahead=lead)
        assert all(one == made[0] for one in made)
        used.update(made[0])
        assert len({*made[0]}) > 1
    assert len(used) > 2  # there was something to agree about


def test_ranks_disagree_where_words_arrive_too_late(seed):
    # The check above is able to fail: ranks are farther apart than the learner was made for.
    generator = random.Random(seed)
    found = [run_ranks(generator, 3, 2, 400, changing(generator), ahead=30) for _ in range(20)]
    words_late = [run_ranks(generator, 3, 40, 400, changing(generator), ahead=2) for _ in range(20)]
    assert all(one == made[0] for made in words_late for one in made)
    assert any(one != made[0] for made in found for one in made)
