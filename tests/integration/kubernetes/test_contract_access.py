"""Who may do what (RBAC), leases, events, reviews, discovery. Holds on a real API server, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.target import Connection, KubeTarget, eventually

MERGE = "application/merge-patch+json"


def event(namespace: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "e-"},
        "eventTime": "2026-01-01T00:00:00.123456Z",
        "reportingController": "tidegauge.dev/test",
        "reportingInstance": "one",
        "action": "Looked",
        "reason": "Leak",
        "type": "Warning",
        "note": "grows",
        "regarding": {"kind": "Pod", "name": "a", "namespace": namespace},
        **more,
    }


def test_a_user_may_do_what_its_role_says_and_no_more(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create"]}]
    user = Connection(kube.as_user(namespace, rules, folder=tmp_path))
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    eventually(lambda: user.ask("POST", maps, {"metadata": {"name": "a"}}).code, lambda code: code in (201, 409))
    assert user.ask("GET", f"{maps}/a").code == 200
    refused = user.ask("DELETE", f"{maps}/a")
    assert refused.refusal == (403, "Forbidden")
    assert refused.body["message"].startswith('configmaps "a" is forbidden: User "system:serviceaccount:')
    assert refused.body["message"].endswith(
        f'cannot delete resource "configmaps" in API group "" in the namespace "{namespace}"'
    )
    everywhere = user.ask("GET", "/api/v1/configmaps")
    assert everywhere.body["message"].endswith('cannot list resource "configmaps" in API group "" at the cluster scope')


def test_patching_a_job_needs_no_right_to_delete_it(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch", "patch"]}]
    user = Connection(kube.as_user(namespace, rules, folder=tmp_path))
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "i"}]}}
    kube.admin.do("POST", jobs, {"metadata": {"name": "j"}, "spec": {"template": template}})
    suspend = {"spec": {"suspend": True}}
    eventually(lambda: user.ask("PATCH", f"{jobs}/j", suspend, content_type=MERGE).code, lambda code: code == 200)
    assert user.ask("DELETE", f"{jobs}/j").code == 403


def test_named_resources_and_subresources(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["ours"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    ]
    user = Connection(kube.as_user(namespace, rules, folder=tmp_path))
    secrets, pods = (f"/api/v1/namespaces/{namespace}/{plural}" for plural in ("secrets", "pods"))
    for name in ("ours", "theirs"):
        kube.admin.do("POST", secrets, {"metadata": {"name": name}})
    eventually(lambda: user.ask("GET", f"{secrets}/ours").code, lambda code: code == 200)
    assert user.ask("GET", f"{secrets}/theirs").code == 403
    assert user.ask("GET", secrets).code == 403
    assert user.ask("GET", secrets, fieldSelector="metadata.name=ours").code == 200
    assert user.ask("PATCH", f"{pods}/none/status", {}, content_type=MERGE).code == 404
    assert user.ask("PATCH", f"{pods}/none", {}, content_type=MERGE).code == 403


def test_cluster_wide_rights_hold_in_every_namespace(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    user = Connection(kube.as_user(namespace, rules, folder=tmp_path, cluster_wide=True))
    eventually(lambda: user.ask("GET", "/api/v1/pods").code, lambda code: code == 200)
    assert user.ask("GET", "/api/v1/namespaces/default/pods").code == 200


def test_rights_given_later_hold_at_once(kube: KubeTarget, namespace: str, tmp_path: Path) -> None:
    kubeconfig = kube.as_user(namespace, [], folder=tmp_path)
    user, pods = Connection(kubeconfig), f"/api/v1/namespaces/{namespace}/pods"
    assert user.ask("GET", pods).code == 403
    kube.grant(namespace, kubeconfig.stem, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    eventually(lambda: user.ask("GET", pods).code, lambda code: code == 200)


def test_a_token_that_is_none_is_unauthorized(kube: KubeTarget, tmp_path: Path, namespace: str) -> None:
    kubeconfig = kube.as_user(namespace, [], folder=tmp_path)
    text = kubeconfig.read_text()
    token = text.partition('"token": "')[2].partition('"')[0]
    kubeconfig.write_text(text.replace(token, "not-a-token"))
    answer = Connection(kubeconfig).ask("GET", "/api/v1/namespaces")
    assert answer.refusal == (401, "Unauthorized")


def test_a_review_says_what_somebody_may(admin: Connection, namespace: str) -> None:
    wanted = {"verb": "delete", "resource": "pods", "namespace": namespace}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    head = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    for spec, allowed in (({"user": "somebody"}, False), ({"user": "root", "groups": ["system:masters"]}, True)):
        answer = admin.do("POST", path, {**head, "spec": {**spec, "resourceAttributes": wanted}})
        assert answer["status"]["allowed"] is allowed


@pytest.fixture
def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def test_the_second_of_two_lease_holders_is_refused(admin: Connection, leases: str) -> None:
    body = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}}
    seen = admin.do("POST", leases, body)
    first = {**seen, "spec": {**seen["spec"], "holderIdentity": "b"}}
    second = {**seen, "spec": {**seen["spec"], "holderIdentity": "c"}}
    admin.do("PUT", f"{leases}/l", first)
    assert admin.ask("PUT", f"{leases}/l", second).refusal == (409, "Conflict")
    del second["metadata"]["resourceVersion"]
    assert admin.ask("PUT", f"{leases}/l", second).code == 422


@pytest.mark.parametrize("text", ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.123Z"])
def test_a_lease_time_needs_microseconds(admin: Connection, leases: str, text: str) -> None:
    answer = admin.ask("POST", leases, {"metadata": {"name": "l"}, "spec": {"renewTime": text}})
    assert answer.refusal == (400, "BadRequest")


def test_a_lease_time_is_kept_in_utc(admin: Connection, leases: str) -> None:
    made = admin.do(
        "POST", leases, {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-01-01T02:00:00.000001+02:00"}}
    )
    assert made["spec"]["renewTime"] == "2026-01-01T00:00:00.000001Z"


def test_an_event_is_seen_by_both_groups(admin: Connection, namespace: str) -> None:
    admin.do("POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event(namespace))
    listed = admin.do(
        "GET", f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.name=a,reason=Leak"
    )["items"]
    assert [(each["message"], each["reportingComponent"]) for each in listed] == [("grows", "tidegauge.dev/test")]
    newer = admin.do("GET", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    assert [each["note"] for each in newer if each["reason"] == "Leak"] == ["grows"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"eventTime": None}, 422),
        ({"eventTime": "2026-01-01T00:00:00+00:00"}, 400),
        ({"reportingController": ""}, 422),
        ({"action": ""}, 422),
        ({"type": "Loud"}, 422),
        ({"note": "x" * 1025}, 422),
    ],
)
def test_a_broken_event_is_refused(admin: Connection, namespace: str, change: dict[str, Any], code: int) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    assert admin.ask("POST", path, event(namespace, **change)).code == code


@pytest.mark.parametrize(
    ("about", "new", "old"),
    [({"kind": "Pod", "name": "a", "namespace": "elsewhere"}, 201, 422), ({"kind": "Node", "name": "a"}, 422, 422)],
)
def test_kube_contract_event_namespace_is_checked_differently_by_core_and_events_api(
    admin: Connection, namespace: str, about: dict[str, Any], new: int, old: int
) -> None:
    made = admin.ask("POST", f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event(namespace, regarding=about))
    assert made.code == new
    body = {"metadata": {"generateName": "e-"}, "involvedObject": about, "reason": "R", "type": "Normal"}
    assert admin.ask("POST", f"/api/v1/namespaces/{namespace}/events", body).code == old


def test_an_event_may_become_a_series_and_nothing_else(admin: Connection, namespace: str) -> None:
    path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
    name = admin.do("POST", path, event(namespace))["metadata"]["name"]
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:01:00.000001Z"}}
    assert admin.ask("PATCH", f"{path}/{name}", series, content_type=MERGE).code == 200
    assert admin.ask("PATCH", f"{path}/{name}", {"reason": "Other"}, content_type=MERGE).code == 422


def test_discovery_names_what_is_served(admin: Connection) -> None:
    assert "v1" in admin.do("GET", "/api")["versions"]
    groups = {group["name"] for group in admin.do("GET", "/apis")["groups"]}
    assert {"batch", "coordination.k8s.io", "events.k8s.io", "admissionregistration.k8s.io"} <= groups
    core = {each["name"]: each for each in admin.do("GET", "/api/v1")["resources"]}
    assert core["pods"]["kind"] == "Pod"
    assert "pods/eviction" in core
    assert int(admin.do("GET", "/version")["major"]) == 1
