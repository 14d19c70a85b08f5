"""The words that an owner may put into a job's comment, and how people call a task of an array."""

from __future__ import annotations

import pytest

from tidegauge.core.ids import JobId
from tidegauge.core.jobs.slurm import SlurmPlace, array_name, comment_words


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("tidegauge:keep", {"keep"}),
        ("night run; Tidegauge:KEEP, tidegauge:requeue", {"keep", "requeue"}),
        ('"tidegauge:keep".', {"keep"}),
        ("JS1:x|tidegauge:keep|y", {"keep"}),
        ("tidegauge:profile=stats", set()),
        ("tidegauge:keeper", {"keeper"}),
        ("tidegauge:keep-me", set()),
        ("mytidegauge:keep", set()),
        ("see docs.tidegauge:keep", set()),
        ("", set()),
        (None, set()),
    ],
)
def test_words_count_whatever_marks_stand_around_them(comment: str | None, words: set[str]) -> None:
    assert comment_words(comment) == words


def test_a_task_goes_by_its_arrays_name() -> None:
    assert array_name(SlurmPlace(JobId("127"), "0", 123, 4)) == "123_4"
    assert array_name(SlurmPlace(JobId("127"), "0")) is None
