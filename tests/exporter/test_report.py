from __future__ import annotations

import csv
import gzip
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from html_text import Page
from sample_views import GIB, LEAK, MIB, NOW_S, identity, uuid_of
from tidegauge.core.ids import JobId
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge_exporter.report import RankReport, Reading, ReportInput, headline, render_report
from tidegauge_exporter.report_values import worst_first

DATA = Path(__file__).parent / "data"


def steady(steps: int = 200) -> tuple[Reading, ...]:
    return tuple(Reading(step, step * 0.1, 10 * GIB, 12 * GIB) for step in range(steps))


def growing(steps: int = 200) -> tuple[Reading, ...]:
    return tuple(
        Reading(step, step * 0.1, 10 * GIB + max(step - 40, 0) * 12 * MIB, 13 * GIB, 700 * MIB) for step in range(steps)
    )


def rank(number: int, verdict: Verdict = OK, readings: tuple[Reading, ...] | None = None, **who: Any) -> RankReport:
    return RankReport(
        identity=identity(number, hostname="node7", **who),
        verdict=verdict,
        readings=readings if readings is not None else steady(),
        gpu=number,
        uuid=uuid_of(number),
        gpu_name="NVIDIA H200",
        limit_bytes=80 * GIB,
    )


def report(*ranks: RankReport, **changes: Any) -> ReportInput:
    return replace(ReportInput("4711", ranks, NOW_S, job_name="llm"), **changes)


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        (
            (rank(0), rank(1, LEAK)),
            "Rank 1 leaks 12.0 MiB per step since step 40; at this rate it runs out of memory in 14\u201322 min.",
        ),
        (
            (rank(0), rank(1, LEAK._replace(signal=Signal.RESERVED, seconds_to_oom=Band(7e4, 9e4, math.inf)))),
            "Rank 1 loses 12.0 MiB per step to fragmentation since step 40;"
            " at this rate it runs out of memory in 19 h or more.",
        ),
        (
            (rank(0, LEAK._replace(signal=Signal.NONTORCH, seconds_to_oom=None)),),
            "Rank 0 grows by 12.0 MiB per step outside PyTorch's allocator since step 40;"
            " at this rate it runs out of memory in 8,000\u201313,000 steps.",
        ),
        (
            (rank(0, LEAK._replace(signal=Signal.HOST, seconds_to_oom=None, steps_to_oom=None)),),
            "Rank 0 leaks 12.0 MiB per step of host memory since step 40.",
        ),
        (
            (rank(0, LEAK._replace(severity=Severity.NOTE, bytes_per_step=Band(512.0, 512.0, 512.0))),),
            "Rank 0 leaks 512 B per step since step 40; at this rate it would take weeks to matter.",
        ),
        (
            (rank(0, LEAK), rank(1), rank(2, LEAK._replace(seconds_to_oom=Band(60.0, 70.0, 80.0)))),
            "Ranks 0 and 2 leak. The worst, rank 2, leaks 12.0 MiB per step since step 40;"
            " at this rate it runs out of memory in 60\u201380 s.",
        ),
        ((rank(0, Verdict(LeakState.LEAK)),), "Rank 0 leaks memory."),
        (
            (rank(0), rank(1, Verdict(LeakState.SUSPECTED))),
            "Rank 1 may leak: memory grows, but not for long enough to be sure.",
        ),
        ((rank(0), rank(1)), "No leak in 199 steps: memory does not keep growing on any of the 2 ranks."),
        ((rank(0),), "No leak in 199 steps: memory does not keep growing on the rank."),
        ((rank(0, readings=()),), "Nothing was recorded for this job."),
        ((), "Nothing was recorded for this job."),
    ],
)
def test_the_headline_says_it_in_one_sentence(ranks: tuple[RankReport, ...], sentence: str) -> None:
    assert headline(report(*ranks)) == sentence
    assert sentence in " ".join(Page(render_report(report(*ranks))).words)


def test_a_leak_without_an_end_in_sight_promises_none() -> None:
    never = LEAK._replace(seconds_to_oom=Band(math.inf, math.inf, math.inf))
    assert headline(report(rank(0, never))) == "Rank 0 leaks 12.0 MiB per step since step 40."


def test_many_culprits_are_counted_not_listed() -> None:
    assert headline(report(*(rank(number, LEAK) for number in range(9)))).startswith("9 ranks leak. The worst, rank 0,")


def test_the_worst_rank_comes_first() -> None:
    soon = LEAK._replace(seconds_to_oom=Band(1.0, 2.0, 3.0))
    note = LEAK._replace(severity=Severity.NOTE)
    ranks = (rank(0), rank(1, note), rank(2, Verdict(LeakState.SUSPECTED)), rank(3, LEAK), rank(4, soon))
    assert [each.identity.rank for each in worst_first(ranks)] == [4, 3, 1, 2, 0]


def test_the_page_needs_nothing_beside_itself() -> None:
    html = render_report(report(rank(0), rank(1, LEAK, growing())))
    page = Page(html)
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?://", html)


def test_what_a_job_calls_itself_is_text_not_markup() -> None:
    evil = "<script>alert(1)</script>\"'"
    hostile = rank(0, LEAK, job_id=JobId(evil), alloc_conf=evil, torch_version=evil)
    html = render_report(report(hostile, job_id=evil, job_name=evil, user_name=evil, cluster=evil, notes=(evil,)))
    page = Page(html)
    assert "script" not in page.tags
    assert "".join(page.words).count(evil) >= 7


def test_the_page_shows_when_growth_began_and_when_it_was_established() -> None:
    words = Page(render_report(report(rank(0), rank(1, LEAK, growing())))).words
    assert "growth begins, step 40" in words
    assert "leak established, step 120" in words
    assert "rank 1" in words


def test_the_page_says_what_was_measured_where() -> None:
    words = " ".join(Page(render_report(report(rank(0), rank(1), notes=("On the fake-GPU rig.",)))).words)
    assert "On the fake-GPU rig." in words
    assert "199 steps in 20 s, on 2 of 2 ranks." in words
    assert "2.13.0" in words


def test_growth_outside_pytorch_has_its_own_curve() -> None:
    outside = LEAK._replace(signal=Signal.NONTORCH)
    assert 'class="curve bad nontorch"' in render_report(report(rank(0, outside, growing())))
    assert 'class="curve calm nontorch"' not in render_report(report(rank(0, OK, growing())))


def test_a_job_of_a_thousand_ranks_is_a_page_that_opens() -> None:
    culprit = rank(700, LEAK, growing(1000))
    ranks = [culprit if number == 700 else rank(number, readings=steady(1000)) for number in range(1000)]
    html = render_report(report(*ranks))
    words = Page(html).words
    assert len(html) < 2_000_000
    assert "rank 700" in words
    assert "999 others" in words
    assert "936 more ranks are not listed." in words


def test_readings_of_a_real_leak_are_drawn() -> None:
    with gzip.open(DATA / "ddp_rank1_leak.csv.gz", "rt", newline="") as lines:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(lines)]
    readings = tuple(
        Reading(int(r["step"]), r["t"], int(r["allocated"]), int(r["reserved"]), int(r["nvml_process"] - r["reserved"]))
        for r in rows
    )
    html = render_report(report(rank(1, LEAK, readings)))
    assert len(readings) == 300
    assert '<polygon class="gain bad allocated"' in html
    assert "888.9 MiB" in Page(html).words
