"""What the webhook says of earlier runs to who submits a job: in memory, and never a no."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_hooks.kubernetes.workload_samples import workload
from tidegauge_scheduler_hooks.kubernetes.injection.history import (
    MAX_SENTENCE_CHARS,
    SubmissionHistory,
)
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import MAX_WARNING_CHARS, Injector
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.lines_of_jobs import MAX_FILE_BYTES

SENTENCE = "earlier runs had 8 × 80.0 GiB, needed 9.1 GiB each at most in 3 runs; 1/8 of this GPU would do"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tidegauge_history.tsv"
    file.write_text(f"team-a\ttrain\t{SENTENCE}\n")
    return file


@pytest.fixture
def history(file: Path) -> SubmissionHistory:
    history = SubmissionHistory(file)
    history.refresh()
    return history


def said(history: SubmissionHistory, obj: Any, **changes: Any) -> list[str]:
    kind = KINDS.get(obj["kind"])
    plural = ("", "pods") if kind is None else (kind.resource.group, kind.resource.plural)
    request = {
        "uid": "u", "operation": "CREATE", "namespace": "team-a", "object": obj,
        "resource": {"group": plural[0], "version": "v1", "resource": plural[1]}, **changes,
    }  # fmt: skip
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()
    response = Injector(InjectionOptions("i"), lambda _: {}, history.sentence).answer(body)["response"]
    assert response["allowed"] is True
    assert "patch" not in response
    warnings: list[str] = response.get("warnings", [])
    return warnings


@pytest.mark.parametrize("kind", KINDS)
def test_who_submits_a_workload_hears_what_its_earlier_runs_needed(history: SubmissionHistory, kind: str) -> None:
    assert said(history, workload(kind, "train")) == [f"tidegauge: {SENTENCE}"]


def test_who_creates_a_pod_hears_it_too(history: SubmissionHistory) -> None:
    assert said(history, {"kind": "Pod", "metadata": {"name": "train"}}) == [f"tidegauge: {SENTENCE}"]


def test_others_hear_nothing(history: SubmissionHistory) -> None:
    job = workload("Job", "train")
    assert said(history, workload("Job", "other")) == []
    assert said(history, job, namespace="team-b") == []
    assert said(history, job, operation="UPDATE") == []
    assert said(history, job, resource={"group": "apps", "resource": "deployments"}) == []
    assert said(history, {**job, "metadata": {"generateName": "train-"}}) == []


def test_a_controller_that_makes_a_job_is_told_nothing(history: SubmissionHistory) -> None:
    job = workload("Job", "train")
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "s", "uid": "u", "controller": True}
    assert said(history, {**job, "metadata": {**job["metadata"], "ownerReferences": [owner]}}) == []


def test_the_file_is_read_again_and_may_be_missing(history: SubmissionHistory, file: Path) -> None:
    file.write_text("team-a\ttrain\tnews\n")
    assert history.sentence("team-a", "train") == SENTENCE, "from memory"
    history.refresh()
    assert history.sentence("team-a", "train") == "news"
    file.unlink()
    history.refresh()
    assert history.sentence("team-a", "train") is None
    none = SubmissionHistory(None)
    none.refresh()
    assert none.sentence("team-a", "train") is None


def test_a_file_that_cannot_be_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = SubmissionHistory(tmp_path)  # a folder
    for _ in range(3):
        history.refresh()
    assert history.sentence("team-a", "train") is None
    assert len(caplog.records) == 1


def test_no_more_than_a_bound_is_read(file: Path) -> None:
    with file.open("a") as more:
        more.write("x" * MAX_FILE_BYTES + "\nteam-a\tbehind\tfar\n")
    history = SubmissionHistory(file)
    history.refresh()
    assert history.sentence("team-a", "train") == SENTENCE
    assert history.sentence("team-a", "behind") is None


def test_line_that_the_bound_cuts_is_left_out(file: Path) -> None:
    filler = "x" * (MAX_FILE_BYTES - file.stat().st_size - len("\nteam-a\tlast\tearlier runs need"))
    file.write_text(f"{file.read_text()}{filler}\nteam-a\tlast\tearlier runs needed 9.1 GiB\n")
    history = SubmissionHistory(file)
    history.refresh()
    assert history.sentence("team-a", "train") == SENTENCE
    assert history.sentence("team-a", "last") is None


@given(st.binary(max_size=300))
def test_any_file_says_something_short_or_nothing(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / f"history-{os.getpid()}"
    file.write_bytes(b"team-a\ttrain\t" + raw)
    history = SubmissionHistory(file)
    history.refresh()
    for text in said(history, workload("Job", "train")):
        assert len(text) <= min(MAX_WARNING_CHARS, MAX_SENTENCE_CHARS + len("tidegauge: "))
        assert text.isprintable()
