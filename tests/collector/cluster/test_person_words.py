"""Many words in a text: as words, and fast."""

from __future__ import annotations

import pytest

from tidegauge.cluster.personal_data.words import Words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"job of ada.", True), (b"/home/ada/x", True), (b"adam", False), (b"xada", False), (b"ada", True),
        (b"ran /srv/a b.py now", True), (b"ran /srv/a b.pyc", False), (b"srv/a b.py", False), (b"", False),
        (b"job 4711_3", True), (b"job 47110", False), (b"team-a/llm-2", True),
    ],
)  # fmt: skip
def test_a_word_is_found_with_no_letter_or_digit_beside_it(text: bytes, found: bool) -> None:
    assert Words({"ada", "/srv/a b.py", "4711", "team-a/llm", "..."}).are_in(text) is found


def test_words_are_replaced_where_they_are_words() -> None:
    assert Words({"ada"}).replaced("by ada (adam): ada\u2019s", "x") == "by x (adam): x\u2019s"


def test_a_log_is_searched_for_twenty_thousand_jobs_word_by_word() -> None:
    looked_at = Words(str(number) for number in range(1_000_000, 1_020_000))
    text = b"2026-11-29 20:00:00,000 INFO tidegauge: job 999 of bob ran /home/bob/train.py\n" * 10_000
    assert not looked_at.are_in(text)
    assert looked_at.are_in(text + b"job 1000007")
