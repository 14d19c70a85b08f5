"""``one_line``: what somebody else chose neither moves a cursor nor breaks a line."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.text import MAX_LINE_CHARS, one_line


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
