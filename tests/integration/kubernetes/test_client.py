"""The client behind its ports, on an API server: a real one, or the emulator where the server must fail at a word."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from integration.kubernetes.target import KubeTarget, eventually, pod
from kube_emulator import Emulator
from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.ports import (
    JOBS,
    NAMESPACES,
    PODS,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Object,
    ObjectNotFoundError,
    Patch,
    Resource,
)
from tidegauge_scheduler_hooks.ports import TemporaryError

NOT_INSTALLED = Resource("tidegauge.test", "v1", "submarines", "Submarine")


def job(name: str, **labels: str) -> dict[str, Any]:
    container = {"name": "main", "image": "example.org/train:1"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {"suspend": True, "template": template},
    }


def names(objects: Sequence[Object]) -> list[str]:
    return sorted(item["metadata"]["name"] for item in objects)


def test_an_object_is_made_read_changed_and_listed(kube_api: ClientApi, namespace: str) -> None:
    made = kube_api.create(JOBS, namespace, job("train", watched="yes"))
    kube_api.create(JOBS, namespace, job("other"))
    assert made["metadata"]["uid"] == kube_api.get(JOBS, namespace, "train")["metadata"]["uid"]
    assert names(kube_api.list(JOBS, namespace)) == ["other", "train"]
    assert names(kube_api.list(JOBS, namespace, label_selector="watched=yes")) == ["train"]
    assert names(kube_api.list(JOBS, namespace, field_selector="metadata.name=other")) == ["other"]
    assert kube_api.list(JOBS, namespace)[0]["kind"] == "Job"
    assert namespace in names(kube_api.list(NAMESPACES))
    merged = kube_api.patch(
        JOBS, namespace, "train", {"metadata": {"labels": {"watched": None}, "annotations": {"a": "b"}}}
    )
    assert "watched" not in merged["metadata"].get("labels", {})
    assert merged["metadata"]["annotations"]["a"] == "b"
    operation = {"op": "replace", "path": "/metadata/annotations/a", "value": "c"}
    assert kube_api.patch(JOBS, namespace, "train", [operation], how=Patch.JSON)["metadata"]["annotations"]["a"] == "c"


def test_a_strategic_patch_merges_and_status_has_its_own_door(kube_api: ClientApi, namespace: str) -> None:
    kube_api.create(PODS, namespace, pod("rank-0"))
    one = {"spec": {"containers": [{"name": "one", "image": "example.org/one:2"}]}}
    after = kube_api.patch(PODS, namespace, "rank-0", one, how=Patch.STRATEGIC)
    assert {entry["name"]: entry["image"] for entry in after["spec"]["containers"]} == {
        "one": "example.org/one:2",
        "two": "example.org/two:1",
    }
    condition = {"type": "tidegauge.dev/GpuMemoryIncident", "status": "True"}
    status = {"status": {"conditions": [condition]}}
    after = kube_api.patch(PODS, namespace, "rank-0", status, how=Patch.STRATEGIC, subresource="status")
    assert condition["type"] in {entry["type"] for entry in after["status"]["conditions"]}


def test_a_stale_version_is_a_conflict_in_a_patch_and_in_a_put(kube_api: ClientApi, namespace: str) -> None:
    seen = kube_api.create(JOBS, namespace, job("train"))
    kube_api.patch(JOBS, namespace, "train", {"metadata": {"annotations": {"somebody": "else"}}})
    acting = {"metadata": {"resourceVersion": seen["metadata"]["resourceVersion"]}, "spec": {"suspend": False}}
    with pytest.raises(ConflictError, match=f"patch jobs.batch train in namespace {namespace}"):
        kube_api.patch(JOBS, namespace, "train", acting)
    with pytest.raises(ConflictError):
        kube_api.replace(JOBS, namespace, "train", seen)
    assert kube_api.get(JOBS, namespace, "train")["spec"]["suspend"] is True


def test_another_object_of_the_name_is_a_conflict(kube_api: ClientApi, namespace: str) -> None:
    kube_api.create(PODS, namespace, pod("rank-0"))
    metadata = {"name": "rank-0", "namespace": namespace, "uid": "of-another-one"}
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "annotations": {"a": "1"}}}
    with pytest.raises(ConflictError):
        kube_api.patch(PODS, namespace, "rank-0", applied, how=Patch.APPLY)
    marked = {"metadata": {"uid": "of-another-one"}, "status": {"conditions": [{"type": "x", "status": "True"}]}}
    with pytest.raises(ConflictError):
        kube_api.patch(PODS, namespace, "rank-0", marked, how=Patch.STRATEGIC, subresource="status")
    assert "conditions" not in kube_api.get(PODS, namespace, "rank-0")["status"]


def test_refusals_have_their_names(kube_api: ClientApi, namespace: str) -> None:
    kube_api.create(JOBS, namespace, job("train"))
    with pytest.raises(ConflictError, match="already exists"):
        kube_api.create(JOBS, namespace, job("train"))
    with pytest.raises(ObjectNotFoundError) as no_object:
        kube_api.get(JOBS, namespace, "never-was")
    with pytest.raises(ObjectNotFoundError) as no_namespace:
        kube_api.create(JOBS, f"{namespace}-not", job("train"))
    for ask in (lambda: kube_api.list(NOT_INSTALLED, namespace), lambda: kube_api.get(NOT_INSTALLED, namespace, "u1")):
        with pytest.raises(ObjectNotFoundError, match="CRD is not installed") as no_kind:
            ask()
        assert no_kind.value.kind_missing
    assert not no_object.value.kind_missing
    assert not no_namespace.value.kind_missing
    with pytest.raises(InvalidError):
        kube_api.create(JOBS, namespace, job("No Name At All"))
    with pytest.raises(InvalidError):
        kube_api.patch(
            JOBS, namespace, "train", [{"op": "test", "path": "/spec/suspend", "value": False}], how=Patch.JSON
        )


def test_a_missing_right_is_told_with_verb_kind_and_place(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    reader = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list"]}
    api = open_api(kube.as_user(namespace, [reader], folder=tmp_path), timeout_s=60)
    assert api.list(JOBS, namespace) == []
    with pytest.raises(ForbiddenError, match=f'verb "patch" on "jobs" of the API group batch in namespace {namespace}'):
        api.patch(JOBS, namespace, "train", {"spec": {"suspend": True}})
    with pytest.raises(ForbiddenError, match='verb "list" on "jobs" of the API group batch in all namespaces'):
        api.list(JOBS)
    with pytest.raises(ForbiddenError, match='verb "patch" on "pods/status" of the API group ""'):
        api.patch(PODS, namespace, "rank-0", {"status": {}}, subresource="status")


def test_a_token_that_is_not_known_is_told(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    config = yaml.safe_load(kube.as_user(namespace, [], folder=tmp_path).read_text())
    config["users"][0]["user"]["token"] = "not-a-token"
    path = tmp_path / "stranger.kubeconfig"
    path.write_text(json.dumps(config))
    with pytest.raises(ForbiddenError, match="does not accept the credentials"):
        open_api(path, timeout_s=60).get(JOBS, namespace, "train")


def test_a_server_with_a_certificate_of_others_is_not_spoken_to(
    kube: KubeTarget, namespace: str, tmp_path: Path
) -> None:
    config = yaml.safe_load(kube.as_user(namespace, [], folder=tmp_path).read_text())
    config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(foreign_authority()).decode()
    path = tmp_path / "foreign.kubeconfig"
    path.write_text(json.dumps(config))
    with pytest.raises(TemporaryError, match="CERTIFICATE_VERIFY_FAILED"):
        open_api(path, timeout_s=60).get(JOBS, namespace, "train")


def test_throttling_is_waited_for_and_a_lost_answer_is_not_repeated(
    kube_api: ClientApi, emulator: Emulator, namespace: str
) -> None:
    emulator.faults.fail(429, 2, path="/jobs", retry_after_s=0)
    kube_api.create(JOBS, namespace, job("train"))
    emulator.faults.lose_answers = 1
    with pytest.raises(TemporaryError, match="may have taken effect"):
        kube_api.patch(JOBS, namespace, "train", {"metadata": {"annotations": {"a": "b"}}})
    assert kube_api.get(JOBS, namespace, "train")["metadata"]["annotations"]["a"] == "b"


def test_requests_find_a_server_that_comes_back(kube_api: ClientApi, emulator: Emulator, namespace: str) -> None:
    kube_api.get(NAMESPACES, None, namespace)  # leaves a connection that will be dead
    with emulator.away(), pytest.raises(TemporaryError, match="no connection"):
        open_api(emulator.kubeconfig(), timeout_s=0.3).get(NAMESPACES, None, namespace)
    assert kube_api.get(NAMESPACES, None, namespace)["metadata"]["name"] == namespace


def test_a_server_that_is_slow_is_given_up_by_a_call_and_waited_for_by_a_watch(
    kube_api: ClientApi, watches: ClientWatches, emulator: Emulator, namespace: str
) -> None:
    kube_api.create(JOBS, namespace, job("train"))
    emulator.faults.delay_s = 0.6

    def given_up() -> str:
        with pytest.raises(TemporaryError) as told:
            open_api(emulator.kubeconfig(), timeout_s=0.3).patch(JOBS, namespace, "train", {"spec": {"suspend": True}})
        return str(told.value)

    # On a machine that stands still meanwhile it comes no further than to a connection.
    eventually(given_up, lambda said: "nothing within 0.3 s (it may have taken effect)" in said)
    store = watches.store(JOBS)
    eventually(lambda: store.synced)
    assert names(store.all()) == ["train"]


class Told:
    """What a store's listener was told, and still holds."""

    def __init__(self) -> None:
        self.there: dict[str, Object] = {}
        self.all: list[tuple[str, bool]] = []

    def on_change(self, item: Object, deleted: bool) -> None:
        name = item["metadata"]["name"]
        self.all.append((name, deleted))
        if deleted:
            self.there.pop(name, None)
        else:
            self.there[name] = item


@pytest.fixture
def watches(kube_api: ClientApi, namespace: str) -> Iterator[ClientWatches]:
    watches = ClientWatches(kube_api, namespaces=[namespace])
    yield watches
    watches.close()


def test_a_store_follows_what_happens(
    kube: KubeTarget, kube_api: ClientApi, watches: ClientWatches, namespace: str
) -> None:
    kube_api.create(JOBS, namespace, job("before", watched="yes"))
    told = Told()
    store = watches.store(JOBS, label_selector="watched=yes", on_change=told.on_change)
    eventually(lambda: store.synced)
    kube_api.create(JOBS, namespace, job("after", watched="yes"))
    kube_api.create(JOBS, namespace, job("never"))
    eventually(lambda: names(store.all()), lambda seen: seen == ["after", "before"])
    kube_api.patch(JOBS, namespace, "before", {"metadata": {"labels": {"watched": "no"}}})
    eventually(lambda: names(store.all()), lambda seen: seen == ["after"])
    found = store.get(namespace, "after")
    assert found is not None
    assert found["kind"] == "Job"
    assert "managedFields" not in found["metadata"]
    same = store.by_uid(found["metadata"]["uid"])  # perhaps in a newer version: a Job controller writes to it, too
    assert same is not None
    assert same["metadata"]["name"] == "after"
    eventually(lambda: sorted(told.there), lambda seen: seen == ["after"])
    assert store.problem is None


def test_kube_client_misses_no_object_over_cut_watches(
    kube: KubeTarget, kube_api: ClientApi, watches: ClientWatches, emulator: Emulator, namespace: str
) -> None:
    told = Told()
    store = watches.store(JOBS, on_change=told.on_change)
    for number in range(3):
        kube_api.create(JOBS, namespace, job(f"train-{number}"))
        emulator.cut_watches()
    eventually(lambda: sorted(told.there), lambda seen: seen == ["train-0", "train-1", "train-2"])
    assert names(store.all()) == ["train-0", "train-1", "train-2"]


@pytest.mark.parametrize("forgets", [False, True], ids=["history is kept", "410 Gone"])
def test_kube_client_misses_no_change_while_watches_cannot_be_opened(
    kube: KubeTarget, kube_api: ClientApi, watches: ClientWatches, emulator: Emulator, namespace: str, forgets: bool
) -> None:
    told = Told()
    kube_api.create(JOBS, namespace, job("goes"))
    kube_api.create(JOBS, namespace, job("changes"))
    store = watches.store(JOBS, on_change=told.on_change)
    eventually(lambda: names(store.all()), lambda seen: seen == ["changes", "goes"])
    with held_watches(emulator):
        kube_api.create(JOBS, namespace, job("comes"))
        kube_api.create(JOBS, namespace, job("flashes"))
        kube_api.patch(JOBS, namespace, "changes", {"metadata": {"annotations": {"a": "b"}}})
        for name in ("goes", "flashes"):
            kube.admin.do(
                "DELETE", f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}", propagationPolicy="Background"
            )
        if forgets:
            emulator.compact()
    eventually(lambda: sorted(told.there), lambda seen: seen == ["changes", "comes"])
    assert names(store.all()) == ["changes", "comes"]
    assert told.there["changes"]["metadata"]["annotations"] == {"a": "b"}
    assert ("goes", True) in told.all


class held_watches:  # noqa: N801 - used as a word of the language
    """In the block open watches are cut, and new ones refused."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def __enter__(self) -> None:
        self._emulator.faults.fail(503, 10_000, method="GET", path="/jobs")
        self._emulator.cut_watches()

    def __exit__(self, *_: object) -> None:
        self._emulator.faults.clear()


def test_a_watch_without_the_right_says_which(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    lister = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list"]}
    watches = ClientWatches(open_api(kube.as_user(namespace, [lister], folder=tmp_path)), namespaces=[namespace])
    try:
        jobs, pods = watches.store(JOBS), watches.store(PODS)
        eventually(lambda: 'verb "list" on "pods"' in str(pods.problem))
        assert not pods.synced
        # What was listed is known; that it cannot be watched shows after a minute.
        eventually(lambda: jobs.synced)
    finally:
        watches.close()


def test_a_kind_without_a_definition_is_missing_and_no_more(kube_api: ClientApi, namespace: str) -> None:
    watches = ClientWatches(kube_api, namespaces=[namespace])
    try:
        store = watches.store(NOT_INSTALLED)
        eventually(lambda: store.kind_missing)
        assert not store.synced
        assert store.all() == []
    finally:
        watches.close()


def test_close_ends_every_thread_of_a_quiet_watch(kube_api: ClientApi, namespace: str) -> None:
    before = set(threading.enumerate())
    watches = ClientWatches(kube_api, namespaces=[namespace])
    stores = [watches.store(JOBS), watches.store(PODS)]
    eventually(lambda: all(store.synced for store in stores))
    watches.close()

    def left() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - before if thread.name == "SharedInformer"]

    eventually(left, lambda names: names == [], within_s=20)  # long before the server ends a watch


def foreign_authority() -> bytes:
    """The certificate of an authority that nobody knows, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
