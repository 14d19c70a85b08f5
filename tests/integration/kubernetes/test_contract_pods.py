"""Pods: what may change, status, grace, eviction, binding, Pod Security. Holds on a real API server, too."""

from __future__ import annotations

from typing import Any

import pytest

from integration.kubernetes.target import Connection, KubeTarget, bind, evict, pod

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"

SAFE_CONTAINER = {
    "name": "one",
    "image": "example.org/one:1",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
SAFE_SPEC = {
    "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [SAFE_CONTAINER],
}


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def patch(admin: Connection, path: str, body: Any) -> Any:
    return admin.do("PATCH", path, body, content_type=STRATEGIC)


def elsewhere(**spec: Any) -> dict[str, Any]:
    """A specification that no scheduler touches: what happens to the pod is the test's doing alone."""
    return {"schedulerName": "nobody", **spec}


def test_defaults_are_filled_in(admin: Connection, pods: str) -> None:
    spec = admin.do("POST", pods, pod("a"))["spec"]
    assert (spec["dnsPolicy"], spec["terminationGracePeriodSeconds"]) == ("ClusterFirst", 30)
    assert spec["serviceAccountName"] == "default"
    container = spec["containers"][0]
    assert (container["imagePullPolicy"], container["resources"]) == ("IfNotPresent", {})
    assert any(mount["name"].startswith("kube-api-access-") for mount in container["volumeMounts"])


def test_limits_are_requests_where_none_are_given(admin: Connection, pods: str) -> None:
    container = {"name": "one", "image": "example.org/one:1", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    made = admin.do("POST", pods, pod("a", spec={"containers": [container]}))
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": [{"name": "one"}]}, "spec.containers[0].image"),
        ({"containers": [{"name": "One", "image": "i"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "one", "image": "i"}] * 2}, "spec.containers[1].name"),
        (
            {"containers": [{"name": "one", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "spec.containers[0].volumeMounts[0].name",
        ),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}, "spec.volumes[1].name"),
        (
            {"containers": [{"name": "one", "image": "i", "env": [{"name": "A", "value": "1", "valueFrom": {}}]}]},
            "spec.containers[0].env[0].valueFrom",
        ),
    ],
)
def test_a_broken_specification_is_invalid(admin: Connection, pods: str, spec: dict[str, Any], field: str) -> None:
    answer = admin.ask("POST", pods, pod("a", spec=spec))
    assert answer.refusal == (422, "Invalid")
    assert field in answer.body["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"restartPolicy": "Always"},
        {"containers": [{"name": "one", "env": [{"name": "A", "value": "1"}]}]},
        {"terminationGracePeriodSeconds": 5},
        {"nodeSelector": {"a": "b"}},
    ],
)
def test_the_specification_of_a_pod_is_fixed(admin: Connection, pods: str, change: dict[str, Any]) -> None:
    admin.do("POST", pods, pod("a"))
    answer = admin.ask("PATCH", f"{pods}/a", {"spec": change}, content_type=STRATEGIC)
    assert answer.refusal == (422, "Invalid")


def test_labels_annotations_and_images_may_change(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a"))
    image = {"containers": [{"name": "one", "image": "example.org/new:2"}]}
    changed = patch(admin, f"{pods}/a", {"metadata": {"labels": {"l": "1"}, "annotations": {"n": "1"}}, "spec": image})
    assert changed["metadata"]["labels"] == {"l": "1"}
    assert changed["spec"]["containers"][0]["image"] == "example.org/new:2"


def test_status_is_written_by_its_own_path_alone(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere()))
    patch(admin, f"{pods}/a", {"status": {"phase": "Failed"}})
    assert admin.do("GET", f"{pods}/a")["status"]["phase"] == "Pending"
    patch(admin, f"{pods}/a/status", {"status": {"phase": "Running"}, "spec": {"activeDeadlineSeconds": 7}})
    written = admin.do("GET", f"{pods}/a")
    assert written["status"]["phase"] == "Running"
    assert "activeDeadlineSeconds" not in written["spec"]


def test_conditions_are_merged_by_type(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere()))
    for name in ("tidegauge.test/One", "tidegauge.test/Two"):
        condition = {"type": name, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        patch(admin, f"{pods}/a/status", {"status": {"conditions": [condition]}})
    conditions = admin.do("GET", f"{pods}/a")["status"]["conditions"]
    assert {"tidegauge.test/One", "tidegauge.test/Two"} <= {each["type"] for each in conditions}


def test_a_pod_that_no_node_has_goes_at_once(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere()))
    admin.do("DELETE", f"{pods}/a")
    assert admin.ask("GET", f"{pods}/a").code == 404


def test_a_pod_on_a_node_has_its_grace(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere(terminationGracePeriodSeconds=120)))
    bind(admin, pods, "a")
    admin.do("DELETE", f"{pods}/a")
    metadata = admin.do("GET", f"{pods}/a")["metadata"]
    assert metadata["deletionTimestamp"]
    assert metadata["deletionGracePeriodSeconds"] == 120
    admin.do("DELETE", f"{pods}/a", {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
    assert admin.ask("GET", f"{pods}/a").code == 404


def test_a_body_makes_the_grace_of_the_query_void(admin: Connection, pods: str) -> None:
    uid = admin.do("POST", pods, pod("a", spec=elsewhere(terminationGracePeriodSeconds=90)))["metadata"]["uid"]
    bind(admin, pods, "a")
    admin.do("DELETE", f"{pods}/a", {"preconditions": {"uid": uid}}, gracePeriodSeconds=0)
    assert admin.do("GET", f"{pods}/a")["metadata"]["deletionGracePeriodSeconds"] == 90
    admin.do("DELETE", f"{pods}/a", gracePeriodSeconds=0)


def test_a_pod_is_bound_once(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere()))
    bind(admin, pods, "a")
    answer = admin.ask(
        "POST", f"{pods}/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "other"}}
    )
    assert answer.refusal == (409, "Conflict")
    assert admin.do("GET", f"{pods}/a")["spec"]["nodeName"] == "no-such-node"
    admin.do("DELETE", f"{pods}/a", gracePeriodSeconds=0)


def test_an_evicted_pod_goes(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere()))
    assert evict(admin, pods, "a").code == 201
    assert admin.ask("GET", f"{pods}/a").code == 404


def test_an_evicted_pod_says_so_while_it_ends(admin: Connection, pods: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere()))
    bind(admin, pods, "a")
    assert evict(admin, pods, "a").code == 201
    conditions = admin.do("GET", f"{pods}/a")["status"]["conditions"]
    targets = [(each["status"], each["reason"]) for each in conditions if each["type"] == "DisruptionTarget"]
    assert targets == [("True", "EvictionByEvictionAPI")]
    admin.do("DELETE", f"{pods}/a", gracePeriodSeconds=0)


def test_a_budget_without_room_refuses_an_eviction(admin: Connection, namespace: str, pods: str) -> None:
    admin.do("POST", pods, pod("a", labels={"app": "x"}, spec=elsewhere()))
    patch(admin, f"{pods}/a/status", {"status": {"phase": "Running"}})
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "x"}}}}
    admin.do("POST", f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budget)
    answer = evict(admin, pods, "a")
    assert answer.refusal == (429, "TooManyRequests")
    assert admin.ask("GET", f"{pods}/a").code == 200


def test_a_pod_needs_its_service_account(admin: Connection, pods: str) -> None:
    answer = admin.ask("POST", pods, pod("a", spec={"serviceAccountName": "nobody"}))
    assert answer.refusal == (403, "Forbidden")
    assert 'serviceaccount "nobody" not found' in answer.body["message"]


def with_container(**context: Any) -> dict[str, Any]:
    merged = {**SAFE_CONTAINER, "securityContext": {**SAFE_CONTAINER["securityContext"], **context}}  # type: ignore[dict-item]  # a JSON object
    return {**SAFE_SPEC, "containers": [merged]}


HOST_PATH = [{"name": "v", "hostPath": {"path": "/run/x"}}]
HOST_PORT = [{**SAFE_CONTAINER, "ports": [{"containerPort": 9400, "hostPort": 9400}]}]
UNSAFE_INIT = [{"name": "init", "image": "example.org/init:1"}]


@pytest.mark.parametrize(
    ("spec", "baseline", "restricted"),
    [
        pytest.param(SAFE_SPEC, 201, 201, id="restricted settings"),
        pytest.param(
            {**SAFE_SPEC, "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}, 201, 201, id="emptyDir"
        ),
        pytest.param({**SAFE_SPEC, "volumes": HOST_PATH}, 403, 403, id="hostPath"),
        pytest.param({**SAFE_SPEC, "hostPID": True}, 403, 403, id="hostPID"),
        pytest.param({**SAFE_SPEC, "hostIPC": True}, 403, 403, id="hostIPC"),
        pytest.param({**SAFE_SPEC, "hostNetwork": True}, 403, 403, id="hostNetwork"),
        pytest.param({**SAFE_SPEC, "containers": HOST_PORT}, 403, 403, id="hostPort"),
        pytest.param(with_container(capabilities={"add": ["SYS_PTRACE"], "drop": ["ALL"]}), 403, 403, id="ptrace"),
        pytest.param(with_container(privileged=True, allowPrivilegeEscalation=True), 403, 403, id="privileged"),
        pytest.param(with_container(allowPrivilegeEscalation=True), 201, 403, id="escalation"),
        pytest.param(with_container(capabilities={}), 201, 403, id="capabilities kept"),
        pytest.param({**SAFE_SPEC, "securityContext": {}}, 201, 403, id="no seccomp, any user"),
        pytest.param({**SAFE_SPEC, "initContainers": UNSAFE_INIT}, 201, 403, id="init container without settings"),
        pytest.param({**SAFE_SPEC, "shareProcessNamespace": True}, 201, 201, id="shared processes"),
    ],
)
def test_pod_security_levels(kube: KubeTarget, spec: dict[str, Any], baseline: int, restricted: int) -> None:
    for level, expected in (("baseline", baseline), ("restricted", restricted)):
        labels = {"pod-security.kubernetes.io/enforce": level}
        with kube.temporary_namespace(level, labels) as namespace:
            answer = kube.admin.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod("a", spec=spec), dryRun="All")
        assert answer.code == expected, answer.body
        if expected == 403:
            assert f'violates PodSecurity "{level}:latest"' in answer.body["message"]


@pytest.mark.parametrize("subresource", ["binding", "eviction"])
def test_bodies_of_bindings_and_evictions_repeat_the_name(admin: Connection, pods: str, subresource: str) -> None:
    admin.do("POST", pods, pod("a", spec=elsewhere()))
    body = {"metadata": {"name": "b"}, **({"target": {"name": "n"}} if subresource == "binding" else {})}
    answer = admin.ask("POST", f"{pods}/a/{subresource}", body)
    assert answer.refusal == (400, "BadRequest")
    assert "name in URL does not match name in" in answer.body["message"]
