"""The fake API server does what the adapter's and the controller's tests rely on."""

from __future__ import annotations

import pytest

from fakes.kube import FakeKube
from fakes.kube_patches import field_selected, patched, selected
from tidegauge_scheduler_hooks.kubernetes.ports import (
    JOBS,
    PODS,
    ConflictError,
    InvalidError,
    KubeApi,
    Object,
    ObjectNotFoundError,
    Patch,
    Watches,
)
from tidegauge_scheduler_hooks.ports import TemporaryError


def job(name: str = "train", **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"suspend": False}}


def test_fake_kube_implements_the_ports() -> None:
    api: KubeApi = FakeKube()
    watches: Watches = FakeKube()
    assert api
    assert watches


def test_a_created_object_has_what_a_server_gives_it() -> None:
    kube = FakeKube(now=lambda: 0.0)
    made = kube.create(JOBS, "research", {**job(), "status": {"active": 3}})
    assert made["apiVersion"] == "batch/v1"
    assert made["kind"] == "Job"
    assert made["metadata"]["namespace"] == "research"
    assert made["metadata"]["creationTimestamp"] == "1970-01-01T00:00:00Z"
    assert made["metadata"]["uid"] != kube.create(JOBS, "research", job("other"))["metadata"]["uid"]
    assert "status" not in made
    with pytest.raises(ConflictError, match="already exists"):
        kube.create(JOBS, "research", job())


def test_a_patch_with_a_stale_version_is_a_conflict_and_changes_nothing() -> None:
    kube = FakeKube()
    seen = kube.create(JOBS, "research", job())["metadata"]["resourceVersion"]
    kube.patch(JOBS, "research", "train", {"metadata": {"annotations": {"a": "b"}}})
    with pytest.raises(ConflictError):
        kube.patch(JOBS, "research", "train", {"metadata": {"resourceVersion": seen}, "spec": {"suspend": True}})
    assert kube.peek(JOBS, "research", "train")["spec"]["suspend"] is False


def test_a_patch_that_changes_nothing_keeps_the_version() -> None:
    kube = FakeKube()
    made = kube.create(JOBS, "research", job())
    assert kube.patch(JOBS, "research", "train", {"spec": {"suspend": False}}) == made


def test_status_is_written_by_its_own_door_only() -> None:
    kube = FakeKube()
    kube.create(PODS, "research", job("rank-0"))
    kube.patch(PODS, "research", "rank-0", {"status": {"phase": "Failed"}})
    assert "status" not in kube.peek(PODS, "research", "rank-0")
    kube.patch(PODS, "research", "rank-0", {"spec": {}, "status": {"phase": "Running"}}, subresource="status")
    assert kube.peek(PODS, "research", "rank-0")["status"] == {"phase": "Running"}


def test_a_put_with_a_stale_version_is_a_conflict() -> None:
    kube = FakeKube()
    first = kube.create(JOBS, "research", job())
    kube.replace(JOBS, "research", "train", {**first, "spec": {"suspend": True}})
    with pytest.raises(ConflictError):
        kube.replace(JOBS, "research", "train", {**first, "spec": {}})
    assert kube.peek(JOBS, "research", "train")["spec"] == {"suspend": True}


def test_fake_kube_returns_copies_of_its_objects() -> None:
    kube = FakeKube()
    body = job()
    made = kube.create(JOBS, "research", body)
    body["spec"]["suspend"] = made["spec"]["suspend"] = True
    store = kube.store(JOBS)
    assert kube.get(JOBS, "research", "train")["spec"]["suspend"] is False
    assert store.all()[0]["spec"]["suspend"] is False


def test_a_fault_strikes_once_and_the_kind_it_is_meant_for() -> None:
    kube = FakeKube()
    kube.create(JOBS, "research", job())
    kube.fail_next(TemporaryError("busy"), verb="patch")
    kube.get(JOBS, "research", "train")
    with pytest.raises(TemporaryError):
        kube.patch(JOBS, "research", "train", {"spec": {"suspend": True}})
    assert kube.patch(JOBS, "research", "train", {"spec": {"suspend": True}})["spec"]["suspend"] is True
    assert [call.verb for call in kube.calls] == ["create", "get", "patch", "patch"]


def test_a_lost_answer_leaves_what_was_done() -> None:
    kube = FakeKube()
    kube.fail_next(TemporaryError("no answer"), answer_lost=True)
    with pytest.raises(TemporaryError):
        kube.create(JOBS, "research", job())
    assert kube.get(JOBS, "research", "train")["spec"] == {"suspend": False}


def test_a_store_sees_changes_and_what_leaves_its_selection() -> None:
    kube = FakeKube()
    kube.create(JOBS, "research", job(watched="yes"))
    kube.create(JOBS, "research", job("other"))
    seen: list[tuple[str, bool]] = []

    def on_change(item: Object, deleted: bool) -> None:
        seen.append((item["metadata"]["name"], deleted))

    store = kube.store(JOBS, label_selector="watched=yes", on_change=on_change)
    assert kube.store(JOBS, label_selector="watched=yes", on_change=on_change) is store
    kube.patch(JOBS, "research", "train", {"metadata": {"labels": {"watched": None}}})
    assert seen == [("train", False), ("train", True)]
    assert store.all() == []
    kube.patch(JOBS, "research", "train", {"metadata": {"labels": {"watched": "yes"}}})
    uid = kube.peek(JOBS, "research", "train")["metadata"]["uid"]
    assert store.by_uid(uid) == store.get("research", "train") == kube.get(JOBS, "research", "train")
    kube.remove(JOBS, "research", "train")
    assert store.by_uid(uid) is None


def test_a_lagging_store_catches_up() -> None:
    kube = FakeKube()
    store = kube.store(JOBS)
    kube.lag()
    kube.create(JOBS, "research", job())
    assert store.all() == []
    kube.catch_up()
    assert [item["metadata"]["name"] for item in store.all()] == ["train"]


def test_fake_kube_distinguishes_a_missing_object_from_a_missing_kind() -> None:
    kube = FakeKube()
    kube.missing_kinds.add("Pod")
    with pytest.raises(ObjectNotFoundError) as no_object:
        kube.get(JOBS, "research", "train")
    with pytest.raises(ObjectNotFoundError) as no_kind:
        kube.list(PODS)
    assert (no_object.value.kind_missing, no_kind.value.kind_missing) == (False, True)
    assert not kube.store(PODS).synced


def test_patches_of_each_kind() -> None:
    pod: Object = {"spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b"}]}, "labels": {"k": "v", "l": "w"}}
    assert patched(pod, {"labels": {"k": None}}, Patch.MERGE)["labels"] == {"l": "w"}
    one = {"spec": {"containers": [{"name": "a", "tty": True}]}}
    assert patched(pod, one, Patch.MERGE)["spec"] == one["spec"]
    assert patched(pod, one, Patch.STRATEGIC)["spec"]["containers"] == [
        {"name": "a", "image": "x", "tty": True},
        {"name": "b"},
    ]
    operations = [
        {"op": "test", "path": "/labels/k", "value": "v"},
        {"op": "add", "path": "/labels/a~1b", "value": "c"},
        {"op": "add", "path": "/spec/containers/-", "value": {"name": "c"}},
        {"op": "remove", "path": "/spec/containers/0"},
        {"op": "replace", "path": "/labels/l", "value": "x"},
    ]
    after = patched(pod, operations, Patch.JSON)
    assert after["labels"] == {"k": "v", "l": "x", "a/b": "c"}
    assert [one["name"] for one in after["spec"]["containers"]] == ["b", "c"]
    assert len(pod["spec"]["containers"]) == 2


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/labels/k", "value": "other"},
        {"op": "remove", "path": "/labels/none"},
        {"op": "replace", "path": "/labels/none", "value": "x"},
        {"op": "add", "path": "/none/deeper", "value": "x"},
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(operation: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        patched({"labels": {"k": "v"}}, [operation], Patch.JSON)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        ("a=b", True),
        ("a==c", False),
        ("a!=c,!z", True),
        ("a,z", False),
        ("a in (b,c),d notin (e)", True),
        ("a in (c)", False),
        (None, True),
    ],
)
def test_label_selectors(selector: str | None, chosen: bool) -> None:
    assert selected(selector, {"a": "b", "d": "f"}) is chosen


def test_field_selectors() -> None:
    pod = {"metadata": {"name": "rank-0"}, "status": {"phase": "Running"}}
    assert field_selected("metadata.name=rank-0,status.phase!=Failed", pod)
    assert not field_selected("spec.nodeName=gpu-1", pod)
