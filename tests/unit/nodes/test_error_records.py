"""Errors as records: the same kind, numbers and text in another process, without pickle."""

import pytest

from shmring.errors import AbortedError, CollectiveTimeoutError, MismatchError, PeerLostError, SegmentError
from shmring.nodes.group import RECORD_NBYTES, pack_error, unpack_error


@pytest.mark.parametrize(
    "error",
    [
        PeerLostError("gone", 3, 1234), PeerLostError("gone"), CollectiveTimeoutError("late: é", (1, 2)),
        CollectiveTimeoutError("late"), MismatchError("differ", (0, 5)), AbortedError("enough", 7),
    ],
    ids=repr,
)  # fmt: skip
def test_an_error_is_the_same_afterwards(error):
    found = unpack_error(pack_error(error).ljust(RECORD_NBYTES, b"\0"))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert {**vars(found), "account": ""} == {**vars(error), "account": ""}


def test_other_errors_and_long_texts():
    found = unpack_error(pack_error(SegmentError("no such file")))
    assert type(found) is AbortedError
    assert str(found) == "no such file"
    record = pack_error(CollectiveTimeoutError("é" * 5000, tuple(range(1000))))
    assert len(record) <= RECORD_NBYTES
    assert unpack_error(record).late == tuple(range(64))


@pytest.mark.parametrize("record", [b"", b"\xff" * 40, b"\x00\xff\xff\xff", b"\x01\x05\x00\x00" + bytes(40)])
def test_a_malformed_record_is_an_error_of_its_own(record):
    assert isinstance(unpack_error(record), AbortedError)
