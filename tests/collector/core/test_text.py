"""Texts of others: what they chose neither moves a cursor, breaks a line, nor stays in memory."""

from __future__ import annotations

import tracemalloc
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.text import MAX_LINE_CHARS, MAX_SHARED, one_line, shared


def test_text_one_line_replaces_escape_sequences_line_ends_and_lone_surrogates() -> None:
    assert one_line("a\x1b[2Jb\nc\udcff") == "a?[2Jb?c?"
    assert one_line("a\u202eb\u2028c", replacement=" ") == "a b c", "changes of direction, line separators"


@given(st.text(), st.integers(0, 20) | st.none())
def test_text_one_line_hides_invisible_characters_and_keeps_all_others(text: str, most: int | None) -> None:
    line = one_line(text, most)
    assert len(line) == len(text[:most])
    invisible = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
    for shown, given_ in zip(line, text):
        hidden = unicodedata.category(given_) in invisible and given_ != " "
        assert shown == ("?" if hidden else given_)


def test_text_one_line_is_cut_by_default_and_whole_on_demand() -> None:
    assert len(one_line("x" * 10_000)) == MAX_LINE_CHARS
    assert one_line("x" * 10_000, None) == "x" * 10_000


def test_texts_that_are_equal_are_one_object_and_those_that_never_come_again_do_not_stay() -> None:
    """``sys.intern`` would keep each for ever on Python 3.12: strangers' texts, in every report."""
    assert shared(str(4_711_000)) is shared(str(4_711_000))
    tracemalloc.start()
    try:
        for number in range(10 * MAX_SHARED):
            shared(f"{number}-{'x' * 100}")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 2 * 250 * MAX_SHARED
