from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.cli.sizes import parse_cap, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("85899345920", 85899345920),
        ("80GiB", 80 << 30),
        ("80 gib", 80 << 30),
        ("80G", 80 << 30),
        ("1.5MiB", 3 << 19),
        ("80GB", 80 * 10**9),
        ("512B", 512),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "0", "-1GiB", "80 gigs", "GiB", "1e9", "٨", "0.1", "9" * 40, "9" * 5000, "nan", "8 EiB"]
)
def test_parse_size_refuses_an_invalid_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a size above 0"):
        parse_size(text)


@given(st.integers(1, (1 << 63) - 1))
def test_whole_bytes_stay_what_they_are(count: int) -> None:
    assert parse_size(str(count)) == count


def test_a_cap_without_its_unit_is_refused_and_not_taken_for_bytes() -> None:
    """``--cap 76`` would be answered, and the answer that nothing fits would be about 76 bytes."""
    with pytest.raises(argparse.ArgumentTypeError, match="less than the smallest segment"):
        parse_cap("76")
    assert parse_cap("2MiB") == 2 << 20
