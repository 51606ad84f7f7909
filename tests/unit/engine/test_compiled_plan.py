"""Compiled plans: where the payload of a round lies in its slot."""

import pytest

from shmring.collectives.engine.compiled_plan import places_in_slot


@pytest.mark.parametrize("size", [2, 3, 8, 100])
@pytest.mark.parametrize("slot_nbytes", [128, 65536, 65536 + 64, 262144])
def test_places_are_lines_apart_and_lie_within_the_slot(size, slot_nbytes):
    for used_nbytes in {0, 1, 63, 64, 65, 4096, 5000, slot_nbytes // 3, slot_nbytes // 2, slot_nbytes}:
        if used_nbytes > slot_nbytes:
            continue
        places, distance = places_in_slot(used_nbytes, slot_nbytes, size)
        assert places & (places - 1) == 0
        assert distance % 64 == 0
        assert (places - 1) * distance + used_nbytes <= slot_nbytes
        assert used_nbytes <= distance or places == 1


def test_two_ranks_go_round_the_whole_slot_and_many_round_a_part_of_it():
    assert places_in_slot(65536, 262144, 2) == (4, 65536)
    assert places_in_slot(65536, 262144, 4) == (2, 131072)
    assert places_in_slot(65536, 262144, 8) == (1, 262144)
    assert places_in_slot(200000, 262144, 2) == (1, 262144)
