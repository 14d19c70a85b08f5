"""Questions of an API server and their answers: always a yes, whatever is wrong with the question."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kube import FakeKube
from fakes.kube_patches import patched
from scheduler_hooks.kubernetes.injection_pods import ONE_GPU
from tidegauge.core.jobs.kubernetes import IMAGE_PYTHONPATH, INJECTED, PROFILE_LABEL
from tidegauge.rate_limited_log import LINES_PER_MINUTE
from tidegauge_scheduler_hooks.kubernetes.injection.left_alone import MAX_WAITING, OwnersToTell
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import MAX_POD_BYTES, Injector
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, Patch
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

POD: dict[str, Any] = {
    "metadata": {"name": "p", "labels": {PROFILE_LABEL: "auto"}},
    "spec": {"containers": [{"name": "main"}]},
}


def injector(labels: Mapping[str, str] | None = None) -> Injector:
    said = {"labels": labels or {}, "annotations": {IMAGE_PYTHONPATH: ""}}
    return Injector(InjectionOptions("i"), lambda namespace: said if namespace == "team" else None)


def question(pod: Any = POD, **changes: Any) -> bytes:
    request = {"uid": "u-1", "operation": "CREATE", "namespace": "team", "object": pod, "resource": {
        "group": "", "version": "v1", "resource": "pods"}, **changes}  # fmt: skip
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def response(given_injector: Injector, body: bytes) -> Any:
    review = given_injector.answer(body)
    assert (review["apiVersion"], review["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert review["response"]["uid"] == "u-1"
    assert review["response"]["allowed"] is True
    return review["response"]


def test_the_answer_carries_the_patch() -> None:
    asked = injector()
    answer = response(asked, question())
    assert answer["patchType"] == "JSONPatch"
    after: Any = patched(POD, json.loads(base64.b64decode(answer["patch"])), Patch.JSON)
    assert after["metadata"]["annotations"] == {INJECTED: "1"}
    assert "warnings" not in answer
    assert asked.counts() == {("injected", ""): 1, ("failed", ""): 0}


def test_the_namespaces_label_counts_where_the_pod_says_nothing() -> None:
    silent = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "resources": ONE_GPU}]}}
    assert "patch" in response(injector({PROFILE_LABEL: "stats"}), question(silent))
    unknown = injector({PROFILE_LABEL: "stats"})
    assert "patch" not in response(unknown, question(silent, namespace="other"))
    assert unknown.counts() == {("injected", ""): 0, ("failed", ""): 0, ("skipped", "not_asked"): 1}


def test_a_pod_that_is_too_large_has_a_warning_if_it_asks() -> None:
    large = {**POD, "spec": {"containers": [{"name": "main", "args": ["x" * MAX_POD_BYTES]}]}}
    [warning] = response(injector(), question(large))["warnings"]
    assert "not watched: its description is larger than 1 MiB" in warning
    assert "warnings" not in response(injector(), question({**large, "metadata": {"name": "p"}}))


def test_warnings_are_short_and_printable() -> None:
    shouted = {**POD, "metadata": {"name": "p", "labels": {PROFILE_LABEL: "\x1b[31m" + "x" * 500}}}
    (warning,) = response(injector(), question(shouted))["warnings"]
    assert warning.startswith("tidegauge: label tidegauge.dev/memory-profile=")
    assert len(warning) <= 240
    assert warning.isprintable()


@pytest.mark.parametrize("changes", [{"operation": "UPDATE"}, {"resource": {"resource": "jobs"}}, {"resource": None}])
def test_injection_review_leaves_all_but_new_pods_alone(changes: Any) -> None:
    asked = injector()
    assert "patch" not in response(asked, question(**changes))
    assert asked.counts()["skipped", "no_new_pod"] == 1


def test_a_pod_that_would_not_fit_into_etcd_any_more_is_left_alone() -> None:
    asked = injector()
    large = {**POD, "metadata": {**POD["metadata"], "annotations": {"x": "y" * MAX_POD_BYTES}}}
    assert "patch" not in response(asked, question(large))
    assert asked.counts()["skipped", "too_large"] == 1


@pytest.mark.parametrize(
    "pod", [None, [], {"metadata": {"labels": {PROFILE_LABEL: "auto"}}, "spec": {"containers": [None]}},
            {"metadata": "x"}, {"metadata": {"labels": {PROFILE_LABEL: 1}}}],
)  # fmt: skip
def test_a_pod_that_is_none_is_allowed_as_it_is_and_counted(pod: Any) -> None:
    asked = injector()
    assert "patch" not in response(asked, question(pod))
    assert asked.counts()["failed", ""] == 1


def test_pods_that_are_none_cannot_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    asked = injector()
    for _ in range(3 * LINES_PER_MINUTE):
        asked.answer(question([]))
    assert sum(record.exc_info is not None for record in caplog.records) <= LINES_PER_MINUTE + 1
    assert asked.counts()["failed", ""] == 3 * LINES_PER_MINUTE


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"[]", b"{}", b"[" * 100_000, b'{"request": {}}', b"\xff", question().replace(b"k8s.io/v1", b"v9")],
)
def test_injection_review_refuses_a_body_that_is_no_admission_review(body: bytes) -> None:
    asked = injector()
    with pytest.raises(ValueError, match="not an AdmissionReview"):
        asked.answer(body)
    assert asked.counts()["failed", ""] == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "spec", "containers", "name", "env", "labels", "annotations", PROFILE_LABEL]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_whatever_the_object_is_the_answer_is_a_yes(pod: Any) -> None:
    response(injector({PROFILE_LABEL: "auto"}), question(pod))


OWNED: dict[str, Any] = {
    "metadata": {"generateName": "p-", "ownerReferences": [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}]},
    "spec": {"containers": [{"name": "main", "resources": ONE_GPU}]},
}  # fmt: skip


def test_who_made_a_pod_that_its_namespace_cannot_vouch_for_is_told_once_by_an_event() -> None:
    kube, owners = FakeKube(), OwnersToTell()
    said = {"labels": {PROFILE_LABEL: "auto"}}
    asked = Injector(InjectionOptions("i"), lambda _: said, left_alone=owners.note)
    for dry_run in (True, False, False):
        answer = response(asked, question(OWNED, dryRun=dry_run))
        assert "patch" not in answer
        assert f"annotation {IMAGE_PYTHONPATH}" in answer["warnings"][0]
        owners.tell(kube)
        assert len(kube.list(EVENTS)) == (0 if dry_run else 1)
    [event] = kube.list(EVENTS)
    assert event["regarding"] == {
        "apiVersion": "batch/v1", "kind": "Job", "namespace": "team", "name": "train", "uid": "u"}  # fmt: skip
    assert event["reason"] == "GpuMemoryNotWatched"
    assert "PYTHONPATH" in event["note"]


def test_who_made_a_pod_with_an_optional_pythonpath_is_told_by_an_event_although_the_pod_asks_itself() -> None:
    kube, owners = FakeKube(), OwnersToTell()
    source = {"secretKeyRef": {"name": "n", "key": "k", "optional": True}}
    container = {"name": "main", "env": [{"name": "PYTHONPATH", "valueFrom": source}]}
    asking = {"metadata": {**OWNED["metadata"], "labels": {PROFILE_LABEL: "auto"}}, "spec": {"containers": [container]}}
    assert "patch" not in response(Injector(InjectionOptions("i"), lambda _: None, left_alone=owners.note),
                                   question(asking))  # fmt: skip
    owners.tell(kube)
    [event] = kube.list(EVENTS)
    assert "optional key" in event["note"]


def test_who_made_a_pod_that_says_itself_that_it_was_injected_is_told_by_an_event() -> None:
    kube, owners = FakeKube(), OwnersToTell()
    marked = {**OWNED["metadata"], "labels": {PROFILE_LABEL: "auto"}, "annotations": {INJECTED: "1"}}
    asked = Injector(InjectionOptions("i"), lambda _: None, left_alone=owners.note)
    assert INJECTED in response(asked, question({**OWNED, "metadata": marked}))["warnings"][0]
    owners.tell(kube)
    [event] = kube.list(EVENTS)
    assert (event["reason"], INJECTED in event["note"]) == ("GpuMemoryNotWatched", True)


def test_owners_that_cannot_be_told_now_are_told_later_and_those_that_cannot_be_told_at_all_are_not_tried_again() -> (
    None
):
    kube, owners = FakeKube(), OwnersToTell()
    owners.note("team", OWNED["metadata"], "why")
    kube.fail_next(TemporaryError("busy"))
    with pytest.raises(TemporaryError):
        owners.tell(kube)
    owners.tell(kube)
    assert len(kube.list(EVENTS)) == 1
    other = {"ownerReferences": [{**OWNED["metadata"]["ownerReferences"][0], "uid": "v"}]}
    owners.note("team", other, "why")
    kube.fail_next(PermanentError("no right"))
    with pytest.raises(PermanentError):
        owners.tell(kube)
    owners.tell(kube)
    assert len(kube.list(EVENTS)) == 1


def owned_by(uid: str) -> dict[str, Any]:
    return {"ownerReferences": [{**OWNED["metadata"]["ownerReferences"][0], "uid": uid}]}


def test_a_flood_in_one_namespace_keeps_no_owner_of_another_from_being_told() -> None:
    kube, owners = FakeKube(), OwnersToTell()
    for number in range(3 * MAX_WAITING):
        owners.note("flood", owned_by(f"f{number}"), "why")
    owners.note("team", owned_by("u"), "why")
    for number in range(3 * MAX_WAITING):
        owners.note("flood", owned_by(f"g{number}"), "why")
    owners.tell(kube)
    told = [event["regarding"]["namespace"] for event in kube.list(EVENTS)]
    assert (told.count("team"), told.count("flood")) == (1, MAX_WAITING - 1)
