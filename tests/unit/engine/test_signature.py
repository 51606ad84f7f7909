"""Signatures: the largest group that they allow."""

import secrets

import pytest

import shmring
from shmring.engine.kinds import check_size, explain

MAX_RANKS = 16383  # one less than the 14 bits of root + 1 count


def test_the_root_of_the_largest_group_fits_and_spills_into_no_other_field():
    root = MAX_RANKS - 1
    assert root + 1 < 1 << 14
    assert explain(4 << 58 | 15 << 54 | 15 << 50 | (root + 1) << 36 | 8) == f"broadcast(bytes x 8, root={root})"


def test_more_ranks_than_a_signature_can_distinguish_are_refused():
    check_size(MAX_RANKS)
    with pytest.raises(ValueError, match="size=16384: a communicator has at most 16383 ranks"):
        check_size(MAX_RANKS + 1)
    with pytest.raises(ValueError, match="at most 16383 ranks"):
        shmring.init(rank=0, size=MAX_RANKS + 1, session=secrets.token_hex(8), rendezvous_timeout=0)
