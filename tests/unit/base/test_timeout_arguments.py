"""The timeout parser that every call with a timeout uses, and errors that have no caller."""

import math
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from shmring.core.base.timeouts import timeout_ns
from shmring.core.base.unraisable import report_unraisable

NO_LIMIT = -1


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (1, 10**9),
        (2.5, 2_500_000_000),
        (1e-9, 1),
        (1e-12, 0),
        (True, 10**9),
        (False, 0),
        (np.float64(0.5), 500_000_000),
        (np.float32(0.25), 250_000_000),
        (np.int64(3), 3 * 10**9),
        (np.uint8(2), 2 * 10**9),
        (np.array(1.5), 1_500_000_000),
        (Fraction(1, 4), 250_000_000),
        (Decimal("0.5"), 500_000_000),
        (9e9, 9 * 10**18),
    ],
)
def test_seconds_become_nanoseconds(seconds, expected):
    assert timeout_ns(seconds) == expected


@pytest.mark.parametrize(
    "seconds", [None, math.inf, np.float32("inf"), 9.3e9, 2**63 * 1e-9, 1e300, 10**12, 10**400, np.uint64(2**64 - 1)]
)
def test_none_infinity_and_what_int64_cannot_hold_are_no_limit(seconds):
    assert timeout_ns(seconds) == NO_LIMIT


@pytest.mark.parametrize("seconds", [-1, -1e-300, -math.inf, math.nan, np.float64("nan"), np.int8(-1), -(10**400)])
def test_negative_numbers_and_nan_are_refused_by_value(seconds):
    with pytest.raises(ValueError, match="0 or more seconds, or None for no limit") as caught:
        timeout_ns(seconds)
    assert str(caught.value).startswith(f"timeout={seconds!r}:")


@pytest.mark.parametrize("seconds", ["1", b"1", 1j, [1], (), object(), ..., np.array([1.0, 2.0])])
def test_what_is_not_a_real_number_is_refused_by_type(seconds):
    with pytest.raises(TypeError, match=f"must be a number of seconds, .* not {type(seconds).__name__}"):
        timeout_ns(seconds)


def test_an_error_of_the_conversion_itself_comes_through():
    class Interrupted:
        def __float__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timeout_ns(Interrupted())


def test_an_error_without_a_caller_goes_to_the_hook(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    error = ValueError("in a callback")
    report_unraisable(error, timeout_ns)
    (argument,) = seen
    assert (argument.exc_type, argument.exc_value, argument.object) == (ValueError, error, timeout_ns)
