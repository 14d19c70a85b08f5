"""``ClientWatches`` against scripted lists and watches: nothing is missed, and nobody is pestered."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kubernetes.informer import SharedInformer

from scheduler_hooks.kubernetes.scripted_api import Reply
from scheduler_hooks.kubernetes.watch_world import GONE, WatchWorld, event, pod
from tidegauge_scheduler_hooks.kubernetes.client import feeds
from tidegauge_scheduler_hooks.kubernetes.client import watches as client_watches
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientStore, ClientWatches
from tidegauge_scheduler_hooks.kubernetes.ports import NAMESPACES, PODS, Object
from waiting import PATIENCE_S, eventually


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WatchWorld]:
    world = WatchWorld(tmp_path)
    with world.server:
        yield world


class Pause(NamedTuple):
    """Before a request: after so many failures in a row, or a no."""

    failures: int
    refused: bool


class Pauses:
    """Stands for ``feeds.pause_s`` (its lengths: ``test_client_feeds.py``): where the answer was no it is an hour."""

    def __init__(self) -> None:
        self.began: list[Pause] = []

    def __call__(self, failures: int, *, refused: bool, spread: float) -> float:
        self.began.append(Pause(failures, refused))
        return 3600.0 if refused else 0.0

    def waits_for(self, failures: int, *, refused: bool) -> bool:
        return self.began[-1:] == [Pause(failures, refused)]


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    pauses = Pauses()
    monkeypatch.setattr(feeds, "pause_s", pauses)
    return pauses


@pytest.fixture
def watches(world: WatchWorld) -> Iterator[ClientWatches]:
    watches = ClientWatches(world.api)
    yield watches
    watches.close()


def names(store: ClientStore) -> list[str]:
    return sorted(item["metadata"]["name"] for item in store.all())


def test_a_store_is_what_was_listed_and_what_came_since(world: WatchWorld, watches: ClientWatches) -> None:
    world.listed = (5, [pod("a", 3), pod("b", 4)])
    world.watches.put(
        iter([event("ADDED", pod("c", 6)), event("MODIFIED", pod("a", 7)), event("DELETED", pod("b", 8))])
    )
    store = watches.store(PODS, on_change=world.on_change)
    assert sorted(world.next_changes(2)) == [("uid-a", False), ("uid-b", False)]
    assert world.next_changes(3) == [("uid-c", False), ("uid-a", False), ("uid-b", True)]
    assert store.synced
    assert store.problem is None
    assert names(store) == ["a", "c"]
    found = store.get("research", "a")
    assert found is not None
    assert found is store.by_uid("uid-a")
    assert found["metadata"]["resourceVersion"] == "7"
    assert "managedFields" not in found["metadata"]
    assert store.get("research", "b") is None


def test_the_same_store_for_the_same_arguments(world: WatchWorld, watches: ClientWatches) -> None:
    store = watches.store(PODS, label_selector="a=b", on_change=world.on_change)
    assert watches.store(PODS, label_selector="a=b", on_change=world.on_change) is store
    assert watches.store(PODS, label_selector="a=c", on_change=world.on_change) is not store
    assert {world.next_watch().query["labelSelector"] for _ in range(2)} == {"a=b", "a=c"}


def test_after_a_cut_it_goes_on_from_the_last_version_it_saw(world: WatchWorld, watches: ClientWatches) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "30"}}}
    world.watches.put(iter([event("ADDED", pod("a", 20))]))
    world.watches.put(iter([bookmark]))
    watches.store(PODS)
    seen = [world.next_watch() for _ in range(3)]
    assert [watch.query["resourceVersion"] for watch in seen] == ["1", "20", "30"]
    assert {watch.query["allowWatchBookmarks"] for watch in seen} == {"true"}
    assert all(45 <= int(watch.query["timeoutSeconds"]) <= 60 for watch in seen)


@pytest.mark.parametrize("expired", [Reply(events=[GONE]), Reply(410)])
def test_a_version_that_is_gone_brings_a_new_list_and_the_difference(
    world: WatchWorld, watches: ClientWatches, expired: Reply
) -> None:
    world.listed = (5, [pod("a", 3), pod("again", 4, uid="first")])
    watched = threading.Event()

    def until_watched() -> Iterator[Mapping[str, Any]]:
        watched.wait(PATIENCE_S)
        yield GONE

    world.watches.put(until_watched())
    world.watches.put(expired)
    store = watches.store(PODS, on_change=world.on_change)
    world.next_changes(2)
    world.listed = (50, [pod("again", 40, uid="second"), pod("new", 41)])
    watched.set()
    assert sorted(world.next_changes(2)) == [("first", True), ("uid-a", True)]
    assert sorted(world.next_changes(2)) == [("second", False), ("uid-new", False)]
    assert names(store) == ["again", "new"]
    again = store.get("research", "again")
    assert again is not None
    assert again["metadata"]["uid"] == "second"
    assert store.by_uid("first") is None


def test_everything_is_listed_and_told_again_at_each_resync(world: WatchWorld) -> None:
    world.listed = (5, [pod("a", 3)])
    for _ in range(3):
        world.watches.put(iter([]))
    watches = ClientWatches(world.api, resync_s=0.0)
    try:
        watches.store(PODS, on_change=world.on_change)
        assert world.next_changes(3) == [("uid-a", False)] * 3
    finally:
        watches.close()


def test_a_kind_that_is_not_installed_is_a_quiet_state(
    world: WatchWorld, watches: ClientWatches, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world.refusal = Reply(404, "404 page not found")
    store = watches.store(PODS)
    eventually(lambda: store.kind_missing)
    assert not store.synced
    assert "its CRD is not installed" in str(store.problem)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_watch_that_was_forbidden_is_not_retried_at_once(
    world: WatchWorld, watches: ClientWatches, pauses: Pauses
) -> None:
    world.refusal = Reply(403)
    store = watches.store(PODS)
    eventually(lambda: store.problem is not None)
    eventually(lambda: pauses.waits_for(1, refused=True))
    assert len(world.server.requests) == 1


def test_watches_that_end_at_once_are_asked_for_ever_more_slowly(
    world: WatchWorld, watches: ClientWatches, pauses: Pauses
) -> None:
    for _ in range(9):
        world.watches.put(iter([]))
    watches.store(PODS)
    for _ in range(10):
        world.next_watch()
    assert pauses.began[1:] == [Pause(failures, refused=False) for failures in range(10)], "after the list's own"


def test_a_right_that_is_missing_is_a_problem_and_said_once(
    world: WatchWorld, watches: ClientWatches, caplog: pytest.LogCaptureFixture
) -> None:
    world.refusal = Reply(403, {"kind": "Status", "message": 'User "u" cannot list resource "pods" in API group ""'})
    store = watches.store(PODS)
    eventually(lambda: "no right to list pods in all namespaces" in str(store.problem))
    assert not store.synced
    assert not store.kind_missing
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_before_the_first_list_nothing_is_known(world: WatchWorld, watches: ClientWatches) -> None:
    answered = threading.Event()

    def nothing() -> Iterator[Mapping[str, Any]]:
        answered.wait(PATIENCE_S)
        yield from ()

    world.refusal = Reply(events=nothing())
    store = watches.store(PODS)
    assert not store.synced
    assert "no answer" in str(store.problem)
    answered.set()


def test_a_listener_that_fails_ends_no_watch(
    world: WatchWorld, watches: ClientWatches, caplog: pytest.LogCaptureFixture
) -> None:
    world.listed = (5, [pod("a", 3), pod("b", 4)])

    def fails(item: Object, deleted: bool) -> None:
        world.on_change(item, deleted)
        raise RuntimeError("a defect")

    watches.store(PODS, on_change=fails)
    world.next_changes(2)
    eventually(lambda: len(caplog.records) == 2)
    assert "a defect" in caplog.text


def test_namespaces_are_watched_one_by_one_and_the_clusters_objects_once(world: WatchWorld) -> None:
    watches = ClientWatches(world.api, namespaces=["research", "vision"])
    try:
        watches.store(PODS)
        watches.store(NAMESPACES)
        assert {world.next_watch().path for _ in range(3)} == {
            "/api/v1/namespaces/research/pods",
            "/api/v1/namespaces/vision/pods",
            "/api/v1/namespaces",
        }
    finally:
        watches.close()


def test_close_ends_watches_that_wait_and_those_that_are_refused(world: WatchWorld) -> None:
    before = set(threading.enumerate())
    watches = ClientWatches(world.api)
    watches.store(PODS)
    world.next_watch()
    world.refusal = Reply(403)
    refused = watches.store(NAMESPACES)
    eventually(lambda: "forbidden" in str(refused.problem))
    watches.close()

    def left() -> list[threading.Thread]:
        return [thread for thread in set(threading.enumerate()) - before if thread.name == "SharedInformer"]

    eventually(lambda: left() == [])  # long before the server ends the one, or the other asks again


class EndingInformer(SharedInformer):
    """Its watch ends just when another thread has looked whether there is one."""

    _own: Any = None
    _shown: Any = None

    @property
    def _watch(self) -> Any:
        if threading.current_thread() is self._thread:
            return self._own
        shown, self._shown = self._shown, None
        return shown

    @_watch.setter
    def _watch(self, watch: Any) -> None:
        self._own = watch
        self._shown = watch or self._shown


def test_a_watch_that_ends_by_itself_while_it_is_ended_is_no_failure(
    world: WatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_watches, "SharedInformer", EndingInformer)
    failed: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    watches = ClientWatches(world.api)
    watches.store(PODS)
    world.next_watch()
    watches.close()
    assert failed == []


def test_a_cut_is_no_news_and_no_traceback(
    world: WatchWorld, watches: ClientWatches, caplog: pytest.LogCaptureFixture
) -> None:
    def broken_off() -> Iterator[Mapping[str, Any]]:
        yield event("ADDED", pod("a", 7))
        raise ConnectionAbortedError

    world.watches.put(Reply(hangs_up=True))
    world.watches.put(broken_off())
    watches.store(PODS)
    for _ in range(3):
        world.next_watch()
    assert caplog.records == []


def test_watch_logs_an_unexpected_event_with_its_traceback(
    world: WatchWorld, watches: ClientWatches, caplog: pytest.LogCaptureFixture
) -> None:
    world.watches.put(iter([{"type": "ADDED", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}}]))
    world.watches.put(iter([{"type": "ERROR", "object": {"code": 500, "reason": "InternalError", "message": "etcd"}}]))
    watches.store(PODS)
    for _ in range(3):
        world.next_watch()
    defect, refused = caplog.records
    assert defect.exc_info is not None
    assert "InternalError: etcd" in refused.getMessage()
