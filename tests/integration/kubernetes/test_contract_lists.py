"""Lists and watches: selectors, pages, versions, bookmarks. Holds on a real API server, too."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kubernetes.target import Connection, pod
from kube_emulator import Emulator

MERGE = "application/merge-patch+json"


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
def three(admin: Connection, maps: str) -> list[str]:
    """The names of three config maps of apps x, y and none."""
    for name, labels in (("a", {"app": "x"}), ("b", {"app": "y"}), ("c", {})):
        admin.do("POST", maps, {"metadata": {"name": name, "labels": {**labels, "ours": "1"}}})
    return ["a", "b", "c"]


def names(listed: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def label(admin: Connection, path: str, **labels: str) -> None:
    admin.do("PATCH", path, {"metadata": {"labels": labels}}, content_type=MERGE)


def test_a_list_has_kind_and_version(admin: Connection, maps: str) -> None:
    listed = admin.do("GET", maps)
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert listed["metadata"]["resourceVersion"].isdigit()


def test_items_of_built_in_kinds_do_not_repeat_the_kind(admin: Connection, maps: str, three: list[str]) -> None:
    assert all("kind" not in item and "apiVersion" not in item for item in admin.do("GET", maps)["items"])


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("app=x", ["a"]),
        ("app!=x", ["b", "c"]),
        ("app in (x,y)", ["a", "b"]),
        ("app notin (x)", ["b", "c"]),
        ("app", ["a", "b"]),
        ("!app", ["c"]),
    ],
)
def test_labels_select(admin: Connection, maps: str, three: list[str], selector: str, expected: list[str]) -> None:
    assert names(admin.do("GET", maps, labelSelector=f"ours=1,{selector}")) == expected


def test_fields_select(admin: Connection, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for name in ("a", "b"):
        admin.do("POST", pods, pod(name, spec={"schedulerName": "nobody"}))
    assert names(admin.do("GET", pods, fieldSelector="metadata.name=a")) == ["a"]
    assert names(admin.do("GET", pods, fieldSelector="status.phase!=Pending")) == []
    assert admin.ask("GET", pods, fieldSelector="spec.nope=1").refusal == (400, "BadRequest")


def test_pages_together_are_the_list_of_the_first_moment(admin: Connection, maps: str, three: list[str]) -> None:
    first = admin.do("GET", maps, limit=2, labelSelector="ours=1")
    admin.do("DELETE", f"{maps}/c")
    second = admin.do("GET", maps, limit=2, labelSelector="ours=1", **{"continue": first["metadata"]["continue"]})
    assert names(first) + names(second) == three
    assert "continue" not in second["metadata"]


def test_a_watch_begins_after_its_version(admin: Connection, maps: str, three: list[str]) -> None:
    version = admin.do("GET", maps)["metadata"]["resourceVersion"]
    label(admin, f"{maps}/a", k="1")
    admin.do("DELETE", f"{maps}/b")
    with admin.watch(maps, resourceVersion=version) as events:
        seen = [(event["type"], event["object"]["metadata"]["name"]) for event in (next(events), next(events))]
    assert seen == [("MODIFIED", "a"), ("DELETED", "b")]


def test_a_watch_without_a_version_begins_with_what_is_there(admin: Connection, maps: str, three: list[str]) -> None:
    with admin.watch(maps, labelSelector="ours=1") as events:
        first = [next(events) for _ in three]
    assert {(event["type"], event["object"]["metadata"]["name"]) for event in first} == {
        ("ADDED", name) for name in three
    }
    assert all(event["object"]["kind"] == "ConfigMap" for event in first)


def test_an_object_that_leaves_the_selection_is_deleted(admin: Connection, maps: str, three: list[str]) -> None:
    version = admin.do("GET", maps)["metadata"]["resourceVersion"]
    label(admin, f"{maps}/b", app="z")
    label(admin, f"{maps}/c", app="y")
    with admin.watch(maps, resourceVersion=version, labelSelector="app=y") as events:
        seen = [(event["type"], event["object"]["metadata"]["name"]) for event in (next(events), next(events))]
    assert seen == [("DELETED", "b"), ("ADDED", "c")]


def test_deleted_objects_come_with_the_version_of_their_deletion(
    admin: Connection, maps: str, three: list[str]
) -> None:
    before = admin.do("GET", maps)["metadata"]["resourceVersion"]
    admin.do("DELETE", f"{maps}/a")
    with admin.watch(maps, resourceVersion=before) as events:
        gone = next(events)["object"]["metadata"]
    with admin.watch(maps, resourceVersion=gone["resourceVersion"], timeoutSeconds=1) as events:
        assert list(events) == []


def test_a_watch_ends_after_its_timeout(admin: Connection, maps: str) -> None:
    version = admin.do("GET", maps)["metadata"]["resourceVersion"]
    with admin.watch(maps, resourceVersion=version, timeoutSeconds=1) as events:
        assert list(events) == []  # it returns: the server has closed the stream


def test_initial_events_end_with_a_bookmark(admin: Connection, maps: str, three: list[str]) -> None:
    options = {
        "sendInitialEvents": "true",
        "allowWatchBookmarks": "true",
        "resourceVersionMatch": "NotOlderThan",
        "labelSelector": "ours=1",
    }
    with admin.watch(maps, **options) as events:
        seen = [next(events) for _ in range(4)]
    assert [event["type"] for event in seen] == ["ADDED", "ADDED", "ADDED", "BOOKMARK"]
    assert seen[3]["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"


def test_a_version_that_is_none_is_refused(admin: Connection, maps: str) -> None:
    assert admin.ask("GET", maps, resourceVersion="abc").refusal == (400, "BadRequest")
    watched = admin.ask("GET", maps, watch="true", resourceVersion="abc")
    assert watched.refusal == (500, None), "of a watch the server says so, and means the same"
    assert "invalid syntax" in watched.body["message"]


def test_a_watch_from_before_a_compaction_is_gone(
    admin: Connection, maps: str, three: list[str], emulator: Emulator
) -> None:
    version = admin.do("GET", maps)["metadata"]["resourceVersion"]
    label(admin, f"{maps}/a", k="1")
    emulator.compact()
    with admin.watch(maps, resourceVersion=version) as events:
        told = list(events)
    assert [event["type"] for event in told] == ["ERROR"]
    assert (told[0]["object"]["code"], told[0]["object"]["reason"]) == (410, "Expired")
    assert told[0]["object"]["message"].startswith("too old resource version")


def test_a_page_from_before_a_compaction_is_gone(
    admin: Connection, maps: str, three: list[str], emulator: Emulator
) -> None:
    token = admin.do("GET", maps, limit=1)["metadata"]["continue"]
    label(admin, f"{maps}/a", k="1")
    emulator.compact()
    answer = admin.ask("GET", maps, limit=1, **{"continue": token})
    assert answer.refusal == (410, "Expired")
