from __future__ import annotations

import pytest

from tidegauge_exporter.metrics.families import MAX_LABEL_CHARS, label_value


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (None, ""),
        (0, "0"),
        ("GPU-1", "GPU-1"),
        ("two words, \u00fcml\u00e4ut", "two words, \u00fcml\u00e4ut"),
        ("a\nb\x00c\x1b[31m", "a?b?c?[31m"),
        ("\udcff", "?"),
        ("\u202egnp.exe", "?gnp.exe"),  # right-to-left override
    ],
)
def test_a_label_is_printable_text(value: object, label: str) -> None:
    assert label_value(value) == label


def test_a_long_label_is_cut_and_shows_it() -> None:
    cut = label_value("x" * 10_000)
    assert len(cut) == MAX_LABEL_CHARS
    assert cut.endswith("x\u2026")


def test_a_label_at_the_limit_is_whole() -> None:
    assert label_value("x" * MAX_LABEL_CHARS) == "x" * MAX_LABEL_CHARS
