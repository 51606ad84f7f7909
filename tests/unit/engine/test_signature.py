"""Signatures: the largest group that they allow."""

import re
import secrets
from pathlib import Path

import pytest
from support.capi import compiler
from support.programs import run_program

import shmring
from shmring.collectives.engine.kinds import check_size, explain
from shmring.collectives.plan.kinds import KINDS
from shmring.dtypes import DTYPES, OPS

MAX_RANKS = 8191  # one less than the 13 bits of root + 1 count
HEADER = Path(shmring.__file__).parent / "collectives" / "engine" / "signature.h"


@pytest.mark.parametrize(
    ("field", "now", "text"),
    [("DTYPE", len(DTYPES), "an element type"), ("OP", len(OPS), "an operation"), ("KIND", len(KINDS), "a kind")],
)
def test_a_number_more_than_a_field_has_room_for_does_not_compile(tmp_path, field, now, text):
    """By a header whose field is a bit narrower than the numbers of today need."""
    (tmp_path / "kinds.h").write_text((HEADER.parent / "kinds.h").read_text())
    narrow = (now - 1).bit_length() - 1
    header = re.sub(rf"(SHMRING_{field}_BITS = )\d+", rf"\g<1>{narrow}", HEADER.read_text())
    (tmp_path / "signature.h").write_text(header)
    (tmp_path / "code.c").write_text('#include "signature.h"\n')
    command = [
        *compiler("C11"),
        f"-I{HEADER.parents[2]}",
        "-c",
        str(tmp_path / "code.c"),
        "-o",
        str(tmp_path / "code.o"),
    ]
    with pytest.raises(AssertionError, match=f"{text}.*more than a signature has numbers for"):
        run_program(*command)


def test_the_root_of_the_largest_group_fits_and_spills_into_no_other_field():
    root = MAX_RANKS - 1
    assert root + 1 < 1 << 13
    assert explain(4 << 58 | 15 << 54 | 31 << 49 | (root + 1) << 36 | 8) == f"broadcast(bytes x 8, root={root})"


def test_more_ranks_than_a_signature_can_distinguish_are_refused():
    check_size(MAX_RANKS)
    with pytest.raises(ValueError, match="size=8192: a communicator has at most 8191 ranks"):
        check_size(MAX_RANKS + 1)
    with pytest.raises(ValueError, match="at most 8191 ranks"):
        shmring.init(rank=0, size=MAX_RANKS + 1, session=secrets.token_hex(8), rendezvous_timeout=0)
