"""Numbers and sizes as the kernel writes them."""

import pytest

from shmring.core.base.sysfs import number_in, size_in


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("512", 512),
        ("48K", 48 << 10),
        ("32768K", 32 << 20),
        ("3M", 3 << 20),
        ("1G", 1 << 30),
        ("", 0),
        ("K", 0),
        ("-1", 0),
    ],
)
def test_sizes_with_and_without_a_unit(text, nbytes):
    assert size_in(text) == nbytes


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("0x1f", 31), ("-1", -1), ("", -1), ("many", -1)])
def test_numbers_decimal_or_hexadecimal(text, number):
    assert number_in(text) == number
