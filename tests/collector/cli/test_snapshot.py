"""``tidegauge snapshot`` where no rank has to run: where files go, what is asked elsewhere, what is said instead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evidence_values import evidence, nothing_found
from sample_views import LEAK, identity, job_view, rank_summary
from scheduler_values import JOB
from tidegauge.cli.errors import CommandError
from tidegauge.cli.main import main
from tidegauge.cli.service_api import ask_remote_rank
from tidegauge.cli.snapshot.evidence import print_evidence
from tidegauge.cli.snapshot.ranks import Outputs, outputs_of
from tidegauge.cluster.api.http_api import HttpApi, json_route
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks, EvidenceWish, WishAnswer
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.views import JobView

NAME = "a-job-that-is-not-on-this-host"


def view(**changes: Any) -> JobView:
    """Rank 1 leaks, on another host than rank 0."""
    ranks = tuple(
        rank_summary(number, identity=identity(number, job_id=JobId(NAME)), **more)
        for number, more in ((0, {}), (1, {"verdict": LEAK}))
    )
    known = {"job_id": NAME, "ranks": ranks, "rank_hostnames": ("node0", "node7"), "rank_nodes": ("e0", "e7")}
    return job_view(**{**known, **changes})


@contextmanager
def serving(*views: JobView) -> Iterator[str]:
    api = HttpApi({"/api/v1/jobs": json_route(lambda _: {"jobs": views})}, host="127.0.0.1", port=0)
    api.start()
    try:
        yield api.url
    finally:
        api.stop()


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 3) -> str:
    """What the command says instead of doing it."""
    assert main(["snapshot", *arguments]) == code
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), ("Rank 1 runs on node7", "`tidegauge snapshot 1001`", "on the service's head")),
        (("--evidence",), ("`tidegauge snapshot 1001 --evidence`",)),
        (("--rank", "0"), ("Rank 0 runs on node0", "`tidegauge snapshot 1000`")),
        (("-o", "x.pickle"), ("the snapshot stays in the store of its node", "Rank 1 runs on node7")),
    ],
)
def test_snapshot_says_on_which_node_to_run_it_if_the_service_cannot_be_asked(
    more: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(view()) as url:
        text = said(capsys, NAME, "--api", url, *more)
    assert all(one in text for one in words), text


@pytest.mark.parametrize(
    ("views", "words"),
    [
        ((), "The service knows no running job"),
        ((view(running=False),), "The service knows no running job"),
        ((view(), view(attempt=1, user_name="grace")), "several users or attempts have a job"),
    ],
)
def test_a_job_that_cannot_be_meant_is_said_to_be_none(
    views: tuple[JobView, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(*views) as url:
        assert words in said(capsys, NAME, "--api", url)


def test_a_rank_that_does_not_run_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(view()) as url:
        assert "has no running rank 9" in said(capsys, NAME, "--api", url, "--rank", "9", code=2)


def test_without_a_service_it_says_both(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, NAME, "--api", "http://127.0.0.1:1")
    assert NAME in text
    assert "The service could not be asked" in text


@pytest.mark.parametrize("arguments", [("1", "--evidence", "--now"), ("1", "--evidence", "-o", "x")])
def test_evidence_has_no_files_and_waits_for_steps(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cannot be combined with --now or -o" in said(capsys, *arguments, code=2)


@pytest.mark.parametrize("events", ["-1", "100001", "many"])
def test_events_are_bounded(events: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["snapshot", "1", "--events", events])
    assert "is not a number of events from 0 to 100,000" in capsys.readouterr().err


def test_snapshot_output_path_selects_folder_or_file(tmp_path: Path) -> None:
    assert outputs_of(None, several=True) == Outputs(Path())
    assert outputs_of(tmp_path, several=True) == Outputs(tmp_path)
    assert outputs_of(Path("x/now.pickle"), several=False) == Outputs(Path("x"), Path("x/now.pickle"))
    assert outputs_of(Path("now.snap.zst"), several=False).file == Path("now.snap.zst")
    with pytest.raises(CommandError, match="there are several ranks"):
        outputs_of(Path("now.snap.zst"), several=True)
    with pytest.raises(CommandError, match=r"must end in \.snap\.zst, or in \.pickle"):
        outputs_of(Path("now.txt"), several=False)


@contextmanager
def coordinator(asks: EvidenceAsks, reply: dict[str, Any] | None, error: str | None) -> Iterator[list[EvidenceWish]]:
    """Somebody who takes wishes and answers all of them alike."""
    taken: list[EvidenceWish] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.005):
            for one in asks.take():
                taken.append(one)
                asks.answer(WishAnswer(one.wish_id, reply, error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()


def test_a_wish_goes_to_the_coordinator_and_its_answer_back(tmp_path: Path) -> None:
    asks = EvidenceAsks(tmp_path / "asks")
    with coordinator(asks, {"ok": True, "step": 7}, None) as taken:
        assert ask_remote_rank(asks, JOB, 1, {"command": "snapshot"}) == {"ok": True, "step": 7}
    assert [(one.job, one.rank, one.request) for one in taken] == [(JOB, 1, {"command": "snapshot"})]
    assert list((tmp_path / "asks").iterdir()) == []


def test_a_refusal_is_said_without_what_a_terminal_would_obey(tmp_path: Path) -> None:
    asks = EvidenceAsks(tmp_path / "asks")
    refusal = "busy \x1b[31m"
    with coordinator(asks, None, refusal), pytest.raises(CommandError, match=r"rank 1: busy \?\[31m"):
        ask_remote_rank(asks, JOB, 1, {"command": "snapshot"})


def test_a_folder_that_is_somebody_elses_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "asks").write_text("a file where a folder belongs")
    with pytest.raises(CommandError, match="run this as the user who runs it"):
        ask_remote_rank(EvidenceAsks(tmp_path / "asks"), JOB, 1, {})


def test_evidence_is_told_as_line_holder_cause_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    print_evidence(evidence())
    lines = capsys.readouterr().out.splitlines()
    assert "97 % of what grew on rank 1 in 30 steps was allocated at train.py:41 in step" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["holder", "cause", "because", "because", "advice"]
    assert "Trainer.history" in lines[1]


def test_snapshot_prints_missing_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    print_evidence(nothing_found())
    assert "missing     No steps came" in capsys.readouterr().out


GROUPS = (view(group_name="step 0"), view(group="step 1", group_name="step 1"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--rank", "1"), f"2 groups of job {NAME} have a rank 1: use --group 'step 0' or --group 'step 1'"),
        (("--group", "step 2"), f"job {NAME} has no group step 2: it has step 0, step 1"),
    ],
)
def test_a_rank_that_two_groups_have_is_not_guessed(
    more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(*GROUPS) as url:
        assert words in said(capsys, NAME, *more, "--api", url, code=2)


def test_the_group_that_is_meant_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    moved = tuple(replace(rank, process=ProcessId(rank.process.pid + 1000, 7)) for rank in GROUPS[1].ranks)
    with serving(GROUPS[0], replace(GROUPS[1], ranks=moved)) as url:
        assert "`tidegauge snapshot 2001`" in said(capsys, NAME, "--group", "step 1", "--rank", "1", "--api", url)
        assert "`tidegauge snapshot 1001`" in said(capsys, NAME, "--api", url), "the most alarming is meant"
