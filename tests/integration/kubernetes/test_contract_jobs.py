"""Jobs: what the API server makes of them, and what their controller does. Holds on real ones, too.

No node runs the pods: the tests write their status as a kubelet would.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from integration.kubernetes.target import Connection, bind, eventually, evict

MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
GENERATED = (
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)


@pytest.fixture
def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def job(name: str, **spec: Any) -> dict[str, Any]:
    """Two indexes at once; no scheduler takes the pods."""
    container = {"name": "main", "image": "example.org/train:1"}
    template = {"spec": {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [container]}}
    whole = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {**whole, **spec}}


def patch(admin: Connection, path: str, body: Any) -> Any:
    return admin.do("PATCH", path, body, content_type=STRATEGIC)


def pods_of(admin: Connection, pods: str, name: str = "j") -> list[dict[str, Any]]:
    """Those that are not being deleted."""
    listed = admin.do("GET", pods, labelSelector=f"batch.kubernetes.io/job-name={name}")["items"]
    return [each for each in listed if "deletionTimestamp" not in each["metadata"]]


def wait_for_pods(admin: Connection, pods: str, count: int) -> list[dict[str, Any]]:
    return eventually(lambda: pods_of(admin, pods), lambda found: len(found) == count)


def conditions(admin: Connection, path: str) -> dict[str, tuple[str, str]]:
    status = admin.do("GET", path)["status"]
    return {each["type"]: (each["status"], each.get("reason", "")) for each in status.get("conditions") or []}


def wait_for_condition(admin: Connection, path: str, name: str) -> tuple[str, str]:
    return eventually(lambda: conditions(admin, path), lambda found: name in found)[name]


def end_pod(admin: Connection, pods: str, pod: dict[str, Any], code: int, *more_conditions: Any) -> None:
    """As a kubelet writes it."""
    terminated = {"exitCode": code, "reason": "Error" if code else "Completed"}
    container = {"name": "main", "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
    status = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{**container, "state": {"terminated": terminated}}],
        "conditions": list(more_conditions),
    }
    patch(admin, f"{pods}/{pod['metadata']['name']}/status", {"status": status})


def test_defaults_and_selector_are_filled_in(admin: Connection, jobs: str) -> None:
    body = job("j", suspend=True)
    for field in ("completions", "parallelism", "completionMode"):
        del body["spec"][field]
    made = admin.do("POST", jobs, body)
    spec, uid = made["spec"], made["metadata"]["uid"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (1, 1, "NonIndexed")
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    labels = spec["template"]["metadata"]["labels"]
    assert [labels[key] for key in GENERATED] == [uid, "j", uid, "j"]


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"containers": [{"name": "main", "image": "example.org/other:1"}]}},
        {"metadata": {"annotations": {"a": "1"}}},
    ],
    ids=["image", "annotation"],
)
def test_the_template_of_a_running_job_is_fixed(admin: Connection, jobs: str, change: dict[str, Any]) -> None:
    admin.do("POST", jobs, job("j"))
    answer = admin.ask("PATCH", f"{jobs}/j", {"spec": {"template": change}}, content_type=STRATEGIC)
    assert answer.refusal == (422, "Invalid")
    assert "field is immutable" in answer.body["message"]


def test_while_suspended_annotations_may_change_and_variables_not(admin: Connection, jobs: str) -> None:
    admin.do("POST", jobs, job("j", suspend=True))
    patch(admin, f"{jobs}/j", {"spec": {"template": {"metadata": {"annotations": {"a": "1"}}}}})
    patch(admin, f"{jobs}/j", {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}})
    variable = {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}]}]}
    answer = admin.ask("PATCH", f"{jobs}/j", {"spec": {"template": {"spec": variable}}}, content_type=STRATEGIC)
    assert answer.refusal == (422, "Invalid")
    assert admin.do("GET", f"{jobs}/j")["spec"]["template"]["metadata"]["annotations"] == {"a": "1"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"completionMode": "NonIndexed"}, "spec.completionMode"),
        ({"completions": 3}, "spec.completions"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector"),
    ],
)
def test_kube_contract_job_refuses_changes_of_immutable_fields(
    admin: Connection, jobs: str, change: dict[str, Any], field: str
) -> None:
    admin.do("POST", jobs, job("j", suspend=True))
    answer = admin.ask("PATCH", f"{jobs}/j", {"spec": change}, content_type=MERGE)
    assert answer.refusal == (422, "Invalid")
    assert field in answer.body["message"]


def test_a_failure_policy_needs_pods_that_are_not_restarted(admin: Connection, jobs: str) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    body = job("j", podFailurePolicy={"rules": [rule]})
    body["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    answer = admin.ask("POST", jobs, body)
    assert answer.refusal == (422, "Invalid")
    assert "spec.template.spec.restartPolicy" in answer.body["message"]


def test_a_copy_is_refused_until_what_was_generated_is_removed(admin: Connection, jobs: str) -> None:
    made = admin.do("POST", jobs, job("j", suspend=True))
    clone = {"metadata": {"generateName": "j-copy-"}, "spec": copy.deepcopy(made["spec"])}
    assert "`selector` not auto-generated" in admin.ask("POST", jobs, clone).body["message"]
    del clone["spec"]["selector"]
    assert "`selector` does not match template `labels`" in admin.ask("POST", jobs, clone).body["message"]
    for key in GENERATED:
        del clone["spec"]["template"]["metadata"]["labels"][key]
    assert admin.ask("POST", jobs, clone).code == 201


@pytest.mark.usefixtures("job_controller")
def test_each_index_gets_a_pod(admin: Connection, jobs: str, pods: str) -> None:
    uid = admin.do("POST", jobs, job("j"))["metadata"]["uid"]
    made = wait_for_pods(admin, pods, 2)
    indexes = {each["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for each in made}
    assert indexes == {"0", "1"}
    for each in made:
        metadata = each["metadata"]
        assert metadata["finalizers"] == ["batch.kubernetes.io/job-tracking"]
        assert [(owner["uid"], owner["controller"]) for owner in metadata["ownerReferences"]] == [(uid, True)]
        names = {variable["name"] for variable in each["spec"]["containers"][0]["env"]}
        assert "JOB_COMPLETION_INDEX" in names


@pytest.mark.usefixtures("job_controller")
def test_suspending_ends_all_pods_and_counts_nothing(admin: Connection, jobs: str, pods: str) -> None:
    admin.do("POST", jobs, job("j"))
    before = {each["metadata"]["uid"] for each in wait_for_pods(admin, pods, 2)}
    patch(admin, f"{jobs}/j", {"spec": {"suspend": True}})
    wait_for_pods(admin, pods, 0)
    assert wait_for_condition(admin, f"{jobs}/j", "Suspended") == ("True", "JobSuspended")
    status = admin.do("GET", f"{jobs}/j")["status"]
    assert not status.get("failed")
    assert "startTime" not in status
    patch(admin, f"{jobs}/j", {"spec": {"template": {"metadata": {"annotations": {"given": "while suspended"}}}}})
    patch(admin, f"{jobs}/j", {"spec": {"suspend": False}})
    after = wait_for_pods(admin, pods, 2)
    assert not before & {each["metadata"]["uid"] for each in after}
    assert all(each["metadata"]["annotations"]["given"] == "while suspended" for each in after)
    eventually(lambda: conditions(admin, f"{jobs}/j")["Suspended"], lambda seen: seen == ("False", "JobResumed"))


@pytest.mark.usefixtures("job_controller")
def test_pods_of_a_suspended_job_keep_their_grace(admin: Connection, jobs: str, pods: str) -> None:
    body = job("j", completions=1, parallelism=1)
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 120
    admin.do("POST", jobs, body)
    name = wait_for_pods(admin, pods, 1)[0]["metadata"]["name"]
    bind(admin, pods, name)
    patch(admin, f"{jobs}/j", {"spec": {"suspend": True}})
    wait_for_pods(admin, pods, 0)
    assert admin.do("GET", f"{pods}/{name}")["metadata"]["deletionGracePeriodSeconds"] == 120
    admin.do("DELETE", f"{pods}/{name}", gracePeriodSeconds=0)


@pytest.mark.usefixtures("job_controller")
def test_a_job_is_complete_when_all_its_pods_succeeded(admin: Connection, jobs: str, pods: str) -> None:
    admin.do("POST", jobs, job("j"))
    for each in wait_for_pods(admin, pods, 2):
        end_pod(admin, pods, each, 0)
    assert wait_for_condition(admin, f"{jobs}/j", "Complete")[0] == "True"
    status = admin.do("GET", f"{jobs}/j")["status"]
    assert (status["succeeded"], status["completedIndexes"]) == (2, "0,1")
    assert status["completionTime"]


@pytest.mark.usefixtures("job_controller")
def test_kube_contract_job_fails_and_ends_its_other_pod_at_the_backoff_limit(
    admin: Connection, jobs: str, pods: str
) -> None:
    admin.do("POST", jobs, job("j"))
    end_pod(admin, pods, wait_for_pods(admin, pods, 2)[0], 1)
    assert wait_for_condition(admin, f"{jobs}/j", "Failed") == ("True", "BackoffLimitExceeded")
    assert conditions(admin, f"{jobs}/j")["FailureTarget"] == ("True", "BackoffLimitExceeded")
    assert admin.do("GET", f"{jobs}/j")["status"]["failed"] == 2


@pytest.mark.usefixtures("job_controller")
def test_an_exit_code_of_the_policy_fails_the_job_at_once(admin: Connection, jobs: str, pods: str) -> None:
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    admin.do("POST", jobs, job("j", backoffLimit=6, podFailurePolicy={"rules": [rule]}))
    end_pod(admin, pods, wait_for_pods(admin, pods, 2)[0], 42)
    assert wait_for_condition(admin, f"{jobs}/j", "FailureTarget") == ("True", "PodFailurePolicy")


@pytest.mark.usefixtures("job_controller")
def test_a_condition_of_the_policy_fails_the_job_at_once(admin: Connection, jobs: str, pods: str) -> None:
    rule = {"action": "FailJob", "onPodConditions": [{"type": "tidegauge.test/Incident"}]}
    admin.do("POST", jobs, job("j", backoffLimit=6, podFailurePolicy={"rules": [rule]}))
    condition = {"type": "tidegauge.test/Incident", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    end_pod(admin, pods, wait_for_pods(admin, pods, 2)[0], 1, condition)
    assert wait_for_condition(admin, f"{jobs}/j", "FailureTarget") == ("True", "PodFailurePolicy")


@pytest.mark.usefixtures("job_controller")
def test_a_condition_of_the_policy_fails_a_job_also_while_it_is_suspended(
    admin: Connection, jobs: str, pods: str
) -> None:
    rule = {"action": "FailJob", "onPodConditions": [{"type": "tidegauge.test/Incident"}]}
    admin.do("POST", jobs, job("j", completions=1, parallelism=1, podFailurePolicy={"rules": [rule]}))
    [each] = wait_for_pods(admin, pods, 1)
    bind(admin, pods, each["metadata"]["name"])  # so that it waits for its node when it is deleted
    patch(admin, f"{jobs}/j", {"spec": {"suspend": True}})
    wait_for_pods(admin, pods, 0)
    condition = {"type": "tidegauge.test/Incident", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    end_pod(admin, pods, each, 143, condition)
    assert wait_for_condition(admin, f"{jobs}/j", "FailureTarget") == ("True", "PodFailurePolicy")


@pytest.mark.usefixtures("job_controller")
def test_an_ignored_disruption_is_replaced_and_not_counted(admin: Connection, jobs: str, pods: str) -> None:
    rule = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    admin.do("POST", jobs, job("j", podFailurePolicy={"rules": [rule]}))
    evicted, other = wait_for_pods(admin, pods, 2)
    path = f"{pods}/{evicted['metadata']['name']}"
    bind(admin, pods, evicted["metadata"]["name"])
    assert evict(admin, pods, evicted["metadata"]["name"]).code == 201
    patch(admin, f"{path}/status", {"status": {"phase": "Failed"}})
    admin.ask("DELETE", path, gracePeriodSeconds=0)
    uids = {each["metadata"]["uid"] for each in wait_for_pods(admin, pods, 2)}
    assert other["metadata"]["uid"] in uids
    assert evicted["metadata"]["uid"] not in uids
    assert not admin.do("GET", f"{jobs}/j")["status"].get("failed")


@pytest.mark.usefixtures("job_controller")
def test_an_eviction_without_a_policy_fails_a_job_without_retries(admin: Connection, jobs: str, pods: str) -> None:
    admin.do("POST", jobs, job("j"))
    name = wait_for_pods(admin, pods, 2)[0]["metadata"]["name"]
    assert evict(admin, pods, name).code == 201
    assert wait_for_condition(admin, f"{jobs}/j", "Failed") == ("True", "BackoffLimitExceeded")


@pytest.mark.usefixtures("job_controller")
@pytest.mark.parametrize("policy", ["Background", "Foreground"])
def test_pods_go_with_their_job(admin: Connection, jobs: str, pods: str, policy: str) -> None:
    admin.do("POST", jobs, job("j"))
    wait_for_pods(admin, pods, 2)
    admin.do("DELETE", f"{jobs}/j", propagationPolicy=policy)
    eventually(lambda: admin.do("GET", pods)["items"], lambda left: not left)
    eventually(lambda: admin.ask("GET", f"{jobs}/j").code, lambda code: code == 404)


@pytest.mark.usefixtures("job_controller")
def test_a_job_in_foreground_deletion_waits_for_its_pods(admin: Connection, jobs: str, pods: str) -> None:
    admin.do("POST", jobs, job("j", completions=1, parallelism=1))
    name = wait_for_pods(admin, pods, 1)[0]["metadata"]["name"]
    bind(admin, pods, name)
    admin.do("DELETE", f"{jobs}/j", propagationPolicy="Foreground")
    wait_for_pods(admin, pods, 0)
    assert "foregroundDeletion" in admin.do("GET", f"{jobs}/j")["metadata"]["finalizers"]
    admin.do("DELETE", f"{pods}/{name}", gracePeriodSeconds=0)
    eventually(lambda: admin.ask("GET", f"{jobs}/j").code, lambda code: code == 404)


@pytest.mark.usefixtures("job_controller")
def test_without_a_policy_a_deleted_job_leaves_its_pods_behind(admin: Connection, jobs: str, pods: str) -> None:
    admin.do("POST", jobs, job("j"))
    wait_for_pods(admin, pods, 2)
    admin.do("DELETE", f"{jobs}/j")
    eventually(lambda: admin.ask("GET", f"{jobs}/j").code, lambda code: code == 404)
    left = pods_of(admin, pods)
    assert len(left) == 2
    assert not any(each["metadata"].get("ownerReferences") for each in left)
