"""Cartesian grids of ranks."""

import itertools

import pytest

import shmring


@pytest.mark.parametrize("dims", [(1,), (5,), (2, 3), (3, 1, 4), (2, 2, 2, 2)])
@pytest.mark.parametrize("periodic", [False, True])
def test_coordinates_and_ranks_are_inverse_and_neighbours_are_one_step_away(dims, periodic):
    grid = shmring.grid(dims, periodic)
    places = list(itertools.product(*map(range, dims)))
    assert [grid.coordinates(rank) for rank in range(grid.size)] == places
    assert [grid.rank(place) for place in places] == list(range(grid.size))
    for rank, place in enumerate(places):
        for axis, pair in enumerate(grid.neighbours(rank)):
            for step, found in zip((-1, 1), pair, strict=True):
                there = list(place)
                there[axis] += step
                if periodic:
                    there[axis] %= dims[axis]
                expected = places.index(tuple(there)) if tuple(there) in places else None
                assert found == expected


def test_axes_may_differ():
    grid = shmring.grid((2, 3), (True, False))
    assert grid.neighbours(0) == [(3, 3), (None, 1)]
    assert grid.rank((5, 2)) == 5
    assert grid.rank((0, 3)) is None
    assert repr(grid) == "shmring.grid((2, 3), periodic=(True, False))"


@pytest.mark.parametrize(
    ("dims", "size", "found"),
    [((0, 0), 6, (3, 2)), ((0, 0), 16, (4, 4)), ((0,), 7, (7,)), ((2, 0), 6, (2, 3)), ((0, 0, 0), 12, (3, 2, 2)),
     ((2, 3), 6, (2, 3)), ((0, 4, 0), 4, (1, 4, 1))],
)  # fmt: skip
def test_zeros_are_chosen_for_a_number_of_ranks(dims, size, found):
    assert shmring.grid(dims, size=size).dims == found


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dims": (0, 2)}, "must be positive"),
        ({"dims": ()}, "must be positive"),
        ({"dims": (2, -1), "size": 2}, "must be positive"),
        ({"dims": (0, 4), "size": 6}, "size=6 ranks"),
        ({"dims": (2, 2), "size": 6}, "size=6 ranks"),
        ({"dims": (2, 2), "periodic": (True,)}, "one for each of 2 axes"),
    ],
)
def test_impossible_grids_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        shmring.grid(**arguments)


def test_places_outside_are_refused():
    grid = shmring.grid(4)
    with pytest.raises(ValueError, match="rank 4: must be from 0 to 3"):
        grid.coordinates(4)
    with pytest.raises(ValueError, match="the grid has 1 axes"):
        grid.rank((1, 1))
