"""The chart by real Helm on a real API server: installed, upgraded, taken away. Nothing runs its containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python
import pytest

from integration.kubernetes.target import Connection, KubeTarget, delete_and_wait

CHART = Path(__file__).parents[3] / "helm" / "tidegauge"
VALUES = {"image": {"registry": "registry.example.org/team"}}
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OURS = {"labelSelector": "app.kubernetes.io/instance=gauge"}


@pytest.fixture
def helm(kube: KubeTarget, admin: Connection, namespace: str) -> Any:
    if kube.emulator is not None:
        pytest.skip("Helm wants an API server's whole discovery: TIDEGAUGE_TEST_KUBECONFIG names a real one")
    before = definitions(admin)
    with helm_python.Config(kubeconfig_path=str(kube.kubeconfig), namespace=namespace) as config:
        yield config
    for name in definitions(admin) - before:  # Helm leaves them
        delete_and_wait(admin, f"{DEFINITIONS}/{name}")


def definitions(admin: Connection) -> set[str]:
    return {one["metadata"]["name"] for one in admin.do("GET", DEFINITIONS)["items"]}


def secrets(admin: Connection, namespace: str) -> dict[str, Any]:
    """What our Secrets hold, by name."""
    listed = admin.do("GET", f"/api/v1/namespaces/{namespace}/secrets", **OURS)["items"]
    return {one["metadata"]["name"]: one.get("data") for one in listed}


def test_an_upgrade_keeps_the_token_and_an_uninstallation_leaves_nothing(
    helm: Any, admin: Connection, namespace: str
) -> None:
    # Cluster-wide names come from the release and its namespace, so tests do not meet each other.
    helm.install(str(CHART), "gauge", VALUES)
    try:
        before = secrets(admin, namespace)
        assert any(data and "token" in data for data in before.values())
        helm.upgrade(str(CHART), "gauge", {**VALUES, "controller": {"replicas": 3}})
        assert secrets(admin, namespace) == before, "agents and head would not know each other any more"
        [controller] = admin.do("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments", **OURS)["items"]
        assert controller["spec"]["replicas"] == 3
    finally:
        helm.uninstall("gauge")
    for path in (
        "/api/v1/namespaces/{}/secrets",
        "/api/v1/namespaces/{}/services",
        "/apis/apps/v1/namespaces/{}/daemonsets",
    ):
        assert admin.do("GET", path.format(namespace), **OURS)["items"] == []
    roles = admin.do("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", **OURS)["items"]
    assert [one["metadata"]["name"] for one in roles if namespace in one["metadata"]["name"]] == []
