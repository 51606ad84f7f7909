"""The oracle of collectives itself: its answers by hand, and that `check` finds a wrong byte anywhere."""

import numpy as np
import pytest
from support.inputs import lay_out
from support.oracle import KINDS, check, draw, result

ROWS = [np.array([[1, 2], [3, 4]]), np.array([[10, 20], [30, 40]])]  # of two ranks, two blocks of two
RAGGED = [np.array([1, 2, 3]), np.array([4, 5, 6])]


@pytest.mark.parametrize(
    ("kind", "more", "wanted"),
    [
        ("all_reduce", {}, [[[11, 22], [33, 44]]] * 2),
        ("reduce", {"root": 1, "op": "max"}, [None, [[10, 20], [30, 40]]]),
        ("scan", {}, [[[1, 2], [3, 4]], [[11, 22], [33, 44]]]),
        ("exscan", {}, [None, [[1, 2], [3, 4]]]),
        ("reduce_scatter", {}, [[11, 22], [33, 44]]),
        ("broadcast", {"root": 1}, [[[10, 20], [30, 40]]] * 2),
        ("all_gather", {}, [[[[1, 2], [3, 4]], [[10, 20], [30, 40]]]] * 2),
        ("gather", {"root": 0}, [[[[1, 2], [3, 4]], [[10, 20], [30, 40]]], None]),
        ("scatter", {"root": 1}, [[10, 20], [30, 40]]),
        ("all_to_all", {}, [[[1, 2], [10, 20]], [[3, 4], [30, 40]]]),
    ],
)
def test_results_are_those_by_hand(kind, more, wanted):
    found = [result(kind, ROWS, rank, **more) for rank in range(2)]
    assert [None if x is None else x.tolist() for x in found] == wanted


def test_results_with_counts_are_those_by_hand():
    counts = [1, 2]
    assert [result("reduce_scatter", RAGGED, r, counts=counts).tolist() for r in (0, 1)] == [[5], [7, 9]]
    assert [result("scatter", RAGGED, r, root=1, counts=counts).tolist() for r in (0, 1)] == [[4], [5, 6]]
    assert result("all_gather", RAGGED, 0, counts=[3, 3]).tolist() == [1, 2, 3, 4, 5, 6]
    both = [result("all_to_all", RAGGED, r, counts=[[1, 2], [3, 0]]).tolist() for r in (0, 1)]
    assert both == [[1, 4, 5, 6], [2, 3]]


class Model:
    """A driver that gives the answer of the oracle, but for a byte that ``spoil`` changes."""

    is_functional, name = False, "the model"

    def __init__(self, rank, size, spoil):
        self.rank, self.size, self.spoil = rank, size, spoil

    def put(self, x, layout):
        return lay_out(x, layout)

    def call(self, case, x, out, keywords):
        wanted = case.expected(case.inputs(self.size), self.rank)
        target = x if out is None and (case.place == "in" or case.kind == "broadcast") else out
        if wanted is None:
            if self.spoil:
                x.reshape(-1).view(np.uint8)[:1] ^= 1
            return target if case.kind == "exscan" else None
        target = np.empty_like(wanted) if target is None else target
        target[...] = wanted
        if self.spoil:
            target.reshape(-1).view(np.uint8)[-1:] ^= 1
        return target


@pytest.mark.parametrize("kind", KINDS)
def test_check_finds_every_byte_that_is_wrong(kind, seed):
    for case in draw(8, seed, lambda case: case.is_plain and not case.counts and 0 < case.count < 5000, kind=kind):
        for rank in range(3):
            check(Model(rank, 3, spoil=False), case)
            if kind != "exscan" or rank or case.place == "out":
                with pytest.raises(AssertionError, match=kind):
                    check(Model(rank, 3, spoil=True), case)
