"""The line on a job that ended: how full its GPUs were, what to ask for instead, where to read more."""

from __future__ import annotations

import shlex

import pytest

from sample_views import GIB, job_record
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.end_words import end_sentence, size_advice
from tidegauge.core.job_records.record import JobEnd, RankPeak

SMALL = RankPeak(3, "node7", 8 * GIB, 9 * GIB, 80 * GIB, nontorch_bytes=GIB, gpu_bytes=80 * GIB)
RECORD = job_record(end=JobEnd.COMPLETED, started_unix_s=0.0, ended_unix_s=7200.0, gpus=8, fullest=SMALL, ooms=0)


def test_a_job_that_asked_for_too_much_reads_what_would_do() -> None:
    assert end_sentence(RECORD) == (
        "ended after 2 h (completed); rank 3 on node7: 9.0 GiB of 80.0 GiB reserved (11%), 8.0 GiB allocated, 1.0 GiB "
        "outside PyTorch; this job had 8 × 80.0 GiB, needed 10.0 GiB each at most in the last run; with a margin "
        "(11.0 GiB) 1/4 of this GPU (MIG 2g.20gb, or --gpu-share 1/4) would do; `tidegauge job 4711` has all of it"
    )


def test_a_job_that_had_an_incident_names_its_page() -> None:
    assert end_sentence(RECORD._replace(incidents=(3, 12))).endswith(
        "; `tidegauge report 12` makes a page of its incident"
    )


@pytest.mark.parametrize(
    "record",
    [
        RECORD._replace(ended_unix_s=599.0),
        RECORD._replace(ooms=1),
        RECORD._replace(fullest=SMALL._replace(limit_bytes=None)),
        RECORD._replace(fullest=SMALL._replace(reserved_bytes=70 * GIB)),
    ],
)
def test_a_short_run_an_oom_and_a_full_gpu_have_no_advice(record: object) -> None:
    assert size_advice(record) is None  # type: ignore[arg-type]


def test_a_rank_whose_memory_outside_pytorch_is_not_known_has_room_for_it() -> None:
    told = size_advice(RECORD._replace(fullest=SMALL._replace(nontorch_bytes=None)))
    assert told is not None
    assert "needed 11.0 GiB (2.0 GiB of it assumed for memory outside PyTorch) each at most" in told


@pytest.mark.parametrize("name", ["a b", "$(reboot)", "two\nlines", "x" * 500, "\x1b[31mred"])
def test_the_name_a_user_gave_is_one_quoted_word_of_the_line(name: str) -> None:
    text = end_sentence(RECORD._replace(job=JobKey(name, 0, 1001)))
    command = text.split("`")[1]
    assert len(shlex.split(command)) == 3
    assert command.isprintable()
    assert len(text) < 500
