"""Copies of workloads are what their owners submitted, and run with the changes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_hooks.kubernetes.workload_samples import owned_by, workload
from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, COPY_OF, REQUEUE
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, RequeueOrder, encode
from tidegauge_scheduler_hooks.kubernetes.owners import JOB, JOBSET, KINDS, OwnerKind, at
from tidegauge_scheduler_hooks.kubernetes.requeues import GENERATED_LABELS, MAX_NAME_CHARS, copy_name, copy_of
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload

ORDER = RequeueOrder(
    "d-1", 2, "leaks", 1.5, "m", {"TIDEGAUGE_MEMORY_FRACTION": "0.5"}, {"expandable_segments": "True"}, "2.11.0"
)
copied_kinds = pytest.mark.parametrize("kind", [JOB, JOBSET], ids=["Job", "JobSet"])


def submitted(kind: OwnerKind, name: str = "train") -> Any:
    """A workload as the API server keeps it."""
    obj = workload(kind.name, name)
    obj["metadata"].update(
        uid="u-1", resourceVersion="7", creationTimestamp="T", generation=2, generateName="train-", finalizers=["x/y"],
        ownerReferences=owned_by({**obj, "metadata": {"name": "c", "uid": "u-0"}}),
    )  # fmt: skip
    obj["metadata"]["annotations"][REQUEUE] = "{}"
    obj["spec"]["suspend"] = True
    obj["status"] = {"startTime": "T"}
    if kind is JOB:
        generated = {"batch.kubernetes.io/controller-uid": "u-1", "controller-uid": "u-1", "job-name": "train",
                     "batch.kubernetes.io/job-name": "train"}  # fmt: skip
        obj["metadata"]["labels"].update(generated)
        obj["spec"]["template"]["metadata"]["labels"].update(generated)
        obj["spec"]["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}}
    return obj


def environ_of(kind: OwnerKind, body: Any) -> list[dict[str, str]]:
    return [
        {one["name"]: one["value"] for one in at(body, path)["spec"]["containers"][0]["env"]}
        for path in kind.templates(body)
    ]


@copied_kinds
def test_a_copy_has_nothing_that_the_api_server_made(kind: OwnerKind) -> None:
    body = copy_of(Workload(kind, submitted(kind)), ORDER)
    assert set(body["metadata"]) == {"name", "namespace", "labels", "annotations"}
    assert "status" not in body
    assert "selector" not in body["spec"]
    labels = [body["metadata"]["labels"], *(at(body, path)["metadata"]["labels"] for path in kind.templates(body))]
    assert not any(name in found for found in labels for name in GENERATED_LABELS)


@copied_kinds
def test_a_copy_runs_with_the_changes(kind: OwnerKind) -> None:
    body = copy_of(Workload(kind, submitted(kind)), ORDER)
    assert body["spec"]["suspend"] is False
    for environ in environ_of(kind, body):
        assert environ["TIDEGAUGE_MEMORY_FRACTION"] == "0.5"
        assert environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:128,expandable_segments:True"
        assert environ["TIDEGAUGE_ATTEMPT"] == "2"


@copied_kinds
def test_workload_copy_includes_remembered_changes(kind: OwnerKind) -> None:
    obj = submitted(kind)
    obj["metadata"]["annotations"][CHANGES] = encode(Changes({"TIDEGAUGE_B": "1"}))
    assert environ_of(kind, copy_of(Workload(kind, obj), ORDER))[0]["TIDEGAUGE_B"] == "1"


@copied_kinds
def test_a_copy_stays_known_under_the_first_name(kind: OwnerKind) -> None:
    first = copy_of(Workload(kind, submitted(kind)), ORDER)
    assert (first["metadata"]["name"], first["metadata"]["labels"][COPY_OF]) == ("train-t2", "train")
    assert first["metadata"]["annotations"][ATTEMPT] == "2"
    second = copy_of(Workload(kind, first), RequeueOrder("d-2", 3, "leaks", 1.5, "m"))
    assert (second["metadata"]["name"], second["metadata"]["labels"][COPY_OF]) == ("train-t3", "train")
    assert environ_of(kind, second)[0]["TIDEGAUGE_MEMORY_FRACTION"] == "0.5", "what was changed before stays"


@copied_kinds
@given(extra=st.dictionaries(st.sampled_from("abcdef"), st.integers() | st.lists(st.text(max_size=3)), max_size=3))
def test_a_copy_keeps_all_that_its_owner_wrote(kind: OwnerKind, extra: dict[str, Any]) -> None:
    obj = submitted(kind)
    obj["spec"].update(extra)
    before = copy.deepcopy(obj)
    body = copy.deepcopy(dict(copy_of(Workload(kind, obj), ORDER)))
    assert obj == before
    for one in (body, before):
        one["spec"].pop("suspend")
        one["spec"].pop("selector", None)
        for path in kind.templates(one):
            found = at(one, path)
            found["metadata"] = {}
            found["spec"]["containers"][0]["env"] = []
    assert body["spec"] == before["spec"]


def test_workload_copy_changes_only_containers_with_gpus() -> None:
    obj = submitted(JOB)
    obj["spec"]["template"]["spec"]["containers"].append({"name": "logger", "image": "log:1"})
    assert "env" not in copy_of(Workload(JOB, obj), ORDER)["spec"]["template"]["spec"]["containers"][1]


def test_allocator_settings_that_cannot_be_read_are_not_overwritten() -> None:
    obj = submitted(JOB)
    secret = {"configMapKeyRef": {"name": "c", "key": "k"}}
    obj["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "PYTORCH_CUDA_ALLOC_CONF", "valueFrom": secret}]
    with pytest.raises(ValueError, match="PYTORCH_CUDA_ALLOC_CONF is set by valueFrom"):
        copy_of(Workload(JOB, obj), ORDER)


def test_a_job_with_a_selector_of_its_own_is_not_copied() -> None:
    obj = submitted(JOB)
    obj["spec"]["manualSelector"] = True
    with pytest.raises(ValueError, match="manualSelector"):
        copy_of(Workload(JOB, obj), ORDER)


def test_other_kinds_are_not_copied() -> None:
    with pytest.raises(ValueError, match="Job and JobSet"):
        copy_of(Workload(KINDS["RayJob"], workload("RayJob", "train")), ORDER)


@given(st.from_regex(r"[a-z]([a-z0-9.-]{0,250}[a-z0-9])?", fullmatch=True), st.integers(1, 10**6))
def test_names_of_copies_are_names_and_differ_by_attempt(name: str, attempt: int) -> None:
    found = copy_name(name, attempt)
    assert len(found) <= MAX_NAME_CHARS
    assert found.endswith(f"-t{attempt}")
    assert found != copy_name(name, attempt + 1)
    assert found == copy_name(name, attempt)


def test_long_names_with_the_same_beginning_have_different_copies() -> None:
    assert copy_name("x" * 70 + "a", 1) != copy_name("x" * 70 + "b", 1)
