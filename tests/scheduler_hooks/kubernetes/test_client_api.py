"""``ClientApi`` against scripted answers: what goes out, what is repeated and what is not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_hooks.kubernetes.scripted_api import Reply, ScriptedApi, Seen
from tidegauge_scheduler_hooks.kubernetes.client import api as client_api
from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, open_api
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import MAX_CONNECTIONS
from tidegauge_scheduler_hooks.kubernetes.ports import (
    JOBS,
    NAMESPACES,
    PODS,
    ConflictError,
    ForbiddenError,
    InvalidError,
    ObjectNotFoundError,
    Patch,
)
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError
from waiting import PATIENCE_S, eventually

JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": {"notYetInvented": [1, None]}}


def scripted(*replies: Reply) -> Callable[[Seen], Reply]:
    """One after the other."""
    coming = iter(replies)
    return lambda _: next(coming)


class World:
    """An API that leads to whatever ``says`` is."""

    def __init__(self, folder: Path) -> None:
        self.says: Callable[[Seen], Reply] = lambda _: Reply(body=JOB)
        self.server = ScriptedApi(lambda seen: self.says(seen))
        self.kubeconfig = self.server.kubeconfig(folder)
        self.api: ClientApi = open_api(self.kubeconfig, timeout_s=40.0)  # a machine may stand still for the usual 10 s

    @property
    def requests(self) -> list[Seen]:
        return self.server.requests


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with world.server:
        yield world


def test_each_verb_goes_where_the_api_has_it(world: World) -> None:
    api = world.api
    api.get(JOBS, "research", "train")
    api.get(NAMESPACES, None, "research")
    api.create(JOBS, "research", JOB)
    api.replace(JOBS, "research", "train", JOB)
    api.patch(PODS, "research", "rank-0", {"status": {}}, how=Patch.STRATEGIC, subresource="status")
    assert [(seen.method, seen.path) for seen in world.requests] == [
        ("GET", "/apis/batch/v1/namespaces/research/jobs/train"),
        ("GET", "/api/v1/namespaces/research"),
        ("POST", "/apis/batch/v1/namespaces/research/jobs"),
        ("PUT", "/apis/batch/v1/namespaces/research/jobs/train"),
        ("PATCH", "/api/v1/namespaces/research/pods/rank-0/status"),
    ]
    assert {seen.token for seen in world.requests} == {"Bearer secret"}
    assert all(seen.user_agent.startswith("tidegauge/") for seen in world.requests)


def test_objects_come_and_go_as_they_are(world: World) -> None:
    assert world.api.create(JOBS, "research", JOB) == JOB
    assert world.requests[0].body == JOB


@pytest.mark.parametrize(
    ("how", "patch"),
    [
        (Patch.MERGE, {"spec": {"suspend": True, "gone": None}}),
        (Patch.STRATEGIC, {"spec": {"containers": [{"name": "a"}]}}),
        (Patch.JSON, [{"op": "test", "path": "/metadata/uid", "value": "u"}]),
    ],
)
def test_a_patch_is_sent_as_what_it_is(world: World, how: Patch, patch: Any) -> None:
    world.api.patch(JOBS, "research", "train", patch, how=how)
    assert world.requests[0].content_type == how.value
    assert world.requests[0].body == patch


def test_a_patch_that_is_not_of_its_kind_is_not_sent(world: World) -> None:
    with pytest.raises(InvalidError):
        world.api.patch(JOBS, "research", "train", {"spec": {}}, how=Patch.JSON)
    assert world.requests == []


@pytest.mark.parametrize("name", ["", ".", "..", "/", "train/status", "../../n1/jobs/train", "train%2Fstatus"])
def test_a_name_that_would_be_another_path_is_not_sent(world: World, name: str) -> None:
    with pytest.raises(InvalidError):
        world.api.get(JOBS, "research", name)
    assert world.requests == []


def test_a_name_stays_one_part_of_the_path(world: World) -> None:
    world.api.get(JOBS, "research", "train?x#y z")
    assert world.requests[0].path == "/apis/batch/v1/namespaces/research/jobs/train%3Fx%23y%20z"


def test_a_list_is_all_its_pages(world: World) -> None:
    world.says = scripted(
        Reply(body={"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{"metadata": {"name": "a"}}]}),
        Reply(body={"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}),
    )
    listing = world.api.listing(JOBS, None, label_selector="a=b", field_selector="metadata.name!=c")
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("batch/v1", "Job")}
    assert listing.metadata.resource_version == "7"
    first, second = (seen.query for seen in world.requests)
    assert first == {"limit": "500", "labelSelector": "a=b", "fieldSelector": "metadata.name!=c"}
    assert second == {**first, "continue": "more"}
    assert world.requests[0].path == "/apis/batch/v1/jobs"


def test_who_wrote_what_is_in_lists_and_not_in_what_caches_keep(world: World) -> None:
    item = {"metadata": {"name": "a", "managedFields": [{"manager": "kubectl"}]}}
    world.says = lambda _: Reply(body={"metadata": {"resourceVersion": "7"}, "items": [item]})
    (listed,) = world.api.list(JOBS)
    assert listed["metadata"]["managedFields"] == [{"manager": "kubectl"}]
    assert world.api.listing(JOBS, None).items[0]["metadata"] == {"name": "a"}


def test_pages_that_expired_are_asked_for_in_one(world: World) -> None:
    world.says = scripted(
        Reply(body={"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "old"}}]}),
        Reply(410),
        Reply(body={"metadata": {"resourceVersion": "9"}, "items": []}),
    )
    assert world.api.list(PODS, "research") == []
    assert world.requests[-1].query == {}


def test_too_many_requests_is_tried_again(world: World) -> None:
    world.says = scripted(Reply(429, headers={"Retry-After": "0"}), Reply(body=JOB))
    assert world.api.patch(JOBS, "research", "train", {}) == JOB


def test_a_wait_that_is_longer_than_the_call_is_left_to_the_caller(world: World) -> None:
    world.says = scripted(Reply(429, headers={"Retry-After": "60"}))
    with pytest.raises(TemporaryError) as error:
        world.api.get(JOBS, "research", "train")
    assert error.value.retry_after_s == 60


def test_a_write_without_an_answer_is_not_repeated(world: World) -> None:
    world.says = lambda _: Reply(hangs_up=True)
    writes: list[Callable[[], object]] = [
        lambda: world.api.create(JOBS, "research", JOB),
        lambda: world.api.patch(JOBS, "research", "train", {}),
        lambda: world.api.replace(JOBS, "research", "train", JOB),
    ]
    for write in writes:
        with pytest.raises(TemporaryError, match="may have taken effect"):
            write()
    assert len(world.requests) == 3


def test_a_read_without_an_answer_is_repeated(world: World) -> None:
    world.says = scripted(Reply(hangs_up=True), Reply(body=JOB))
    assert world.api.get(JOBS, "research", "train") == JOB


def test_a_server_error_is_not_repeated(world: World) -> None:
    world.says = scripted(Reply(500))
    with pytest.raises(TemporaryError):
        world.api.get(JOBS, "research", "train")


def test_a_redirection_is_not_followed(world: World) -> None:
    world.says = scripted(Reply(307, headers={"Location": "/elsewhere"}))
    with pytest.raises(PermanentError, match="307"):
        world.api.get(JOBS, "research", "train")


def test_kube_api_reports_a_reply_that_is_not_json_as_temporary(world: World) -> None:
    world.says = lambda _: Reply(body="<html>welcome</html>")
    with pytest.raises(TemporaryError, match="not a JSON object"):
        world.api.create(JOBS, "research", JOB)


@pytest.mark.parametrize(
    "body", [{}, {"status": "up"}, {"metadata": None}, {"metadata": {"name": 7}}, {"metadata": "x"}]
)
def test_json_that_is_no_object_of_kubernetes_is_no_answer(world: World, body: dict[str, Any]) -> None:
    """A proxy's, which says 200 to everything."""
    world.says = lambda _: Reply(body=body)
    with pytest.raises(TemporaryError, match="not a Kubernetes object"):
        world.api.get(JOBS, "research", "train")


@pytest.mark.parametrize("items", ["x", {"a": 1}, [None], [1], [{}], [{"metadata": None}], [{"metadata": {"name": 1}}]])
def test_a_list_of_anything_else_is_no_answer(world: World, items: Any) -> None:
    world.says = lambda _: Reply(body={"metadata": {"resourceVersion": "7"}, "items": items})
    with pytest.raises(TemporaryError, match="not a list of objects"):
        world.api.list(JOBS, "research")


def test_a_page_without_items_is_empty_only_if_it_is_a_list(world: World) -> None:
    world.says = scripted(
        Reply(body={"metadata": {"resourceVersion": "7"}, "items": None}), Reply(body={"status": "up"})
    )
    assert world.api.list(JOBS, "research") == []
    with pytest.raises(TemporaryError, match="not a list of objects"):
        world.api.list(JOBS, "research")


def test_refusals_are_raised_as_what_they_are(world: World) -> None:
    world.says = scripted(Reply(404, "404 page not found"), Reply(409), Reply(403))
    with pytest.raises(ObjectNotFoundError):
        world.api.get(JOBS, "research", "train")
    with pytest.raises(ConflictError):
        world.api.patch(JOBS, "research", "train", {})
    with pytest.raises(ForbiddenError):
        world.api.patch(JOBS, "research", "train", {})


def test_credentials_that_are_refused_are_read_again(world: World, tmp_path: Path) -> None:
    def only_new(seen: Seen) -> Reply:
        world.server.kubeconfig(tmp_path, token="new")
        return Reply(body=JOB) if seen.token == "Bearer new" else Reply(401)

    world.says = only_new
    assert world.api.create(JOBS, "research", JOB) == JOB


def test_credentials_that_stay_refused_are_said_to_be(world: World) -> None:
    world.says = lambda _: Reply(401)
    for _ in range(2):
        with pytest.raises(ForbiddenError, match="does not accept the credentials"):
            world.api.get(JOBS, "research", "train")
    assert len(world.requests) == 3  # they are not read again for every call


def test_kube_api_names_an_unreachable_server(tmp_path: Path) -> None:
    with ScriptedApi(lambda _: Reply(body=JOB)) as gone:
        kubeconfig = gone.kubeconfig(tmp_path)
    with pytest.raises(TemporaryError, match=rf"no connection to the API server {gone.url}.*refused") as error:
        open_api(kubeconfig, timeout_s=0.2).create(JOBS, "research", JOB)
    assert "may have taken effect" not in str(error.value)


def test_a_machine_that_stood_still_is_no_limit_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]

    def late(seconds: float) -> None:
        now_s[0] += seconds + 0.3

    with ScriptedApi(lambda _: Reply(body=JOB)) as gone:
        kubeconfig = gone.kubeconfig(tmp_path)
    monkeypatch.setattr(client_api, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=late))
    with pytest.raises(TemporaryError, match="no connection to the API server"):
        open_api(kubeconfig, timeout_s=0.4).get(JOBS, "research", "train")


def test_a_server_that_says_nothing_is_given_up(world: World) -> None:
    def hang(seen: Seen) -> Reply:
        return Reply(events=iter(world.server.forever))

    world.says = hang
    with pytest.raises(TemporaryError, match=r"nothing within 0\.3 s"):
        open_api(world.kubeconfig, timeout_s=0.3).get(JOBS, "research", "train")
    eventually(lambda: len(world.requests) > 0)  # the server may take it in later than the client gives it up
    assert len(world.requests) == 1


def test_own_limit_refuses_what_would_wait_too_long(world: World) -> None:
    api = open_api(world.kubeconfig, qps=0.01, burst=1)
    api.get(JOBS, "research", "train")
    with pytest.raises(TemporaryError, match="own rate limit"):
        api.get(JOBS, "research", "train")
    assert len(world.requests) == 1


def test_no_kubeconfig_outside_a_pod_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(PermanentError, match="not in a pod"):
        open_api(None)


@pytest.mark.parametrize("text", ["", "a: [", "[]", "apiVersion: v1\ncurrent-context: x\n"])
def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(PermanentError, match="broken"):
        open_api(path)


def test_requests_of_all_that_the_webhook_answers_at_once_are_no_log_lines(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    together = threading.Barrier(MAX_CONNECTIONS)

    def answer(_: Seen) -> Reply:
        together.wait(PATIENCE_S)
        return Reply(body=JOB)

    world.says = answer
    api = open_api(world.kubeconfig, qps=1000.0, burst=MAX_CONNECTIONS, timeout_s=PATIENCE_S)
    with ThreadPoolExecutor(MAX_CONNECTIONS) as threads:
        list(threads.map(lambda _: api.get(JOBS, "research", "train"), range(MAX_CONNECTIONS)))
    assert not [record for record in caplog.records if record.name == "urllib3.connectionpool"]
