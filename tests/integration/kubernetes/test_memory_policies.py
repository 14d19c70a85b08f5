"""``MemoryPolicy`` on an API server: what the chart's definition refuses, and the status by the rights of its role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.chart.rendering import CHART
from integration.kubernetes.target import Connection, KubeTarget, delete_and_wait, eventually, for_namespace
from tidegauge.core.verdicts import Severity
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts
from tidegauge_scheduler_hooks.kubernetes.controller.policy_status import PolicyStatuses
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.team_policies import (
    MAX_AGE_S,
    NARROWED,
    SAYS_NOTHING,
    SEVERITIES,
    TeamPolicies,
    TeamWord,
)

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RULES = [
    {"apiGroups": ["tidegauge.dev"], "resources": ["memorypolicies"], "verbs": ["list", "watch"]},
    {"apiGroups": ["tidegauge.dev"], "resources": ["memorypolicies/status"], "verbs": ["patch"]},
]


def definition() -> Any:
    return yaml.safe_load((CHART / "crds" / "memorypolicies.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def policies(admin: Connection, namespace: str) -> Iterator[str]:
    """The path of the namespace's MemoryPolicies; the definition is the chart's."""
    made = definition()
    made["metadata"]["labels"] = dict(for_namespace(namespace))
    admin.do("POST", DEFINITIONS, made)
    path = f"/apis/tidegauge.dev/v1alpha1/namespaces/{namespace}/memorypolicies"
    eventually(lambda: admin.ask("GET", path).code, lambda code: code == 200)
    yield path
    delete_and_wait(admin, f"{DEFINITIONS}/memorypolicies.tidegauge.dev")


def body(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tidegauge.dev/v1alpha1", "kind": "MemoryPolicy", "metadata": {"name": "team"}, "spec": spec,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"allowedActions": ["cap"], "mayRequeue": True}, "mayRequeue allows what allowedActions leaves out"),
        ({"allowedActions": ["notify"]}, "Unsupported value"),
        ({"allowedActions": "cap"}, "array"),
        ({"minSeverity": "note"}, "Unsupported value"),
        ({"minAgeSeconds": 0}, "greater than or equal to 1"),
        ({"minAgeSeconds": 604801}, "less than or equal to 604800"),
        ({"allowedActions": [], "minAgeSeconds": 60}, "hold back what allowedActions leaves out"),
        ({"allowedActions": ["annotate"], "minSeverity": "critical"}, "hold back what allowedActions leaves out"),
    ],
)
def test_server_refuses_what_contradicts_itself(
    policies: str, admin: Connection, spec: dict[str, Any], says: str
) -> None:
    answer = admin.ask("POST", policies, body(**spec))
    assert answer.code == 422
    assert says in str(answer.body)


def test_definition_names_the_actions_that_can_be_narrowed() -> None:
    spec = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert spec["properties"]["allowedActions"]["items"]["enum"] == [action.value for action in NARROWED]
    assert spec["properties"]["minSeverity"]["enum"] == [severity.value for severity in SEVERITIES]
    assert spec["properties"]["minAgeSeconds"]["maximum"] == MAX_AGE_S


def test_status_is_applied_by_the_rights_of_the_role(
    policies: str, kube: KubeTarget, admin: Connection, namespace: str, tmp_path: Path
) -> None:
    api = open_api(kube.as_user(namespace, RULES, folder=tmp_path, name="controller"))
    watches = ClientWatches(api, namespaces=(namespace,))
    keys: list[WorkKey] = []
    statuses = PolicyStatuses(api, watches, on_key=keys.append, counts=StepCounts())
    try:
        said = {"allowedActions": ["cap", "requeue"], "mayRequeue": True, "minSeverity": "critical"}
        admin.do("POST", policies, body(**said, minAgeSeconds=1800))
        eventually(lambda: list(keys), bool)
        statuses.reconcile(keys[0])
        found = admin.do("GET", f"{policies}/team")
    finally:
        watches.close()
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Accepted", "True")
    assert condition["observedGeneration"] == found["metadata"]["generation"]
    told = ": cap, requeue; growth at critical or above; after 30 min; workloads may be requeued"
    assert condition["message"].endswith(told)
    assert found["spec"] == {**said, "minAgeSeconds": 1800}


def test_the_head_takes_the_strictest_thresholds_of_a_namespace(
    policies: str, kube: KubeTarget, admin: Connection, namespace: str, tmp_path: Path
) -> None:
    watches = ClientWatches(open_api(kube.as_user(namespace, RULES[:1], folder=tmp_path)), namespaces=(namespace,))
    try:
        known = TeamPolicies(watches)

        def said() -> TeamWord:
            return known.by_namespace().get(namespace, SAYS_NOTHING)

        admin.do("POST", policies, body(minSeverity="warning", minAgeSeconds=1800))
        other = {**body(minSeverity="critical", minAgeSeconds=60), "metadata": {"name": "other"}}
        admin.do("POST", policies, other)
        word = eventually(said, lambda word: len(word.said_by) == 2)
        assert (word.min_severity, word.min_age_s) == (Severity.CRITICAL, 1800)
        admin.do("DELETE", f"{policies}/other")
        word = eventually(said, lambda word: len(word.said_by) == 1)
        assert (word.min_severity, word.min_age_s) == (Severity.WARNING, 1800)
    finally:
        watches.close()
