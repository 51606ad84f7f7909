"""The comparison of what the processes give for a group: consistent, or a reason that all of them find."""

import itertools

import pytest

from shmring.jax.world import inconsistency


@pytest.mark.parametrize(
    "given",
    [
        [(0, 0), (0, 1), (0, 2)],
        [(5, 1), (5, 0), (7, 0), (7, 1)],
        [(0, 0), (2048, 0)],
        [(0, 0), (0, 1), (4096, 0), (4096, 1)],
    ],
)
def test_groups_with_each_place_once_are_made(given):
    assert inconsistency(given, {}) == ""


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ([(0, 0), (0, 2)], "the group whose first device is 0 has devices at the places 0 (rank 0), 2 (rank 1)"),
        ([(0, 1), (0, 3)], "places 1 (rank 0), 3 (rank 1)"),
        ([(0, 0), (0, 0)], "places 0 (rank 0), 0 (rank 1)"),
        ([(0, 0), (1, 1)], "first device is 1 has devices at the places 1 (rank 1)"),
        ([(0, 0), (1, 0), (2, 0), (2, 1)], "different sizes (1 from device 0, 1 from device 1, 2 from device 2)"),
    ],
)
def test_other_places_are_a_reason_which_names_them(given, part):
    assert part in inconsistency(given, {})


def test_rows_and_columns_of_a_mesh_in_different_orders_never_look_like_a_mesh():
    rows, columns = [(0, 0), (0, 1), (2, 0), (2, 1)], [(0, 0), (1, 0), (0, 1), (1, 1)]
    for choice in itertools.product((0, 1), repeat=3):  # what ranks 1 to 3 make; rank 0 gives the same for both
        given = [rows[0]] + [(rows, columns)[which][rank] for rank, which in enumerate(choice, 1)]
        assert (inconsistency(given, {}) == "") == (len(set(choice)) == 1), given


def test_a_device_of_two_processes_and_two_devices_of_one_are_found_in_later_groups():
    owner = {}
    assert inconsistency([(0, 0), (0, 1)], owner) == ""
    assert "rank 1 gives device 0 as its own, which is of rank 0" in inconsistency([(0, 1), (0, 0)], owner)
    assert "rank 0 gives device 9" in inconsistency([(9, 0), (9, 1)], owner)
    assert inconsistency([(0, 0), (2048, 0)], owner) == ""
