"""The chart's ValidatingAdmissionPolicy: our own accounts suspend, annotate and mark, and change nothing else, although
``patch`` on a workload would let them run any pod. ``ChartRelease`` has the emulator ask it in other tests, too."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from integration.kubernetes.chart_accounts import RELEASE, SYSTEM, account_policy, chart_objects, installed
from integration.kubernetes.target import Answer, Connection, KubeTarget, eventually
from kube_emulator.accounts import User, service_account
from kube_emulator.resources import BUILT_IN, ResourceType
from kube_emulator.webhooks import Admission

Change = Callable[[Any], None]
HEAD = service_account(SYSTEM, f"{RELEASE}-head")
CONTROLLER = service_account(SYSTEM, f"{RELEASE}-controller")


def kind(group: str, plural: str) -> ResourceType:
    known = next((one for one in BUILT_IN if (one.group, one.plural) == (group, plural)), None)
    return known or BUILT_IN[0]._replace(group=group, plural=plural)


KINDS = {
    "jobs": kind("batch", "jobs"),
    "jobsets": kind("jobset.x-k8s.io", "jobsets"),
    "trainjobs": kind("trainer.kubeflow.org", "trainjobs"),
    "pytorchjobs": kind("kubeflow.org", "pytorchjobs"),
    "rayjobs": kind("ray.io", "rayjobs"),
    "workloads": kind("kueue.x-k8s.io", "workloads"),
    "admissionchecks": kind("kueue.x-k8s.io", "admissionchecks"),
    "pods": kind("", "pods"),
    "nodes": kind("", "nodes"),
    "deployments": kind("apps", "deployments"),
    "mutatingwebhookconfigurations": kind("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
}
WITHOUT_ANNOTATIONS = ("pods", "nodes", "deployments", "admissionchecks", "mutatingwebhookconfigurations")


def workload() -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "main", "image": "one"}]}}
    return {
        "metadata": {"name": "train", "labels": {"team": "a"}, "annotations": {"note": "mine", "tidegauge.dev/x": "1"}},
        "spec": {"suspend": False, "template": template, "runPolicy": {"suspend": False, "backoffLimit": 3}},
        "status": {"active": 2},
    }


def refusal(
    plural: str,
    change: Change,
    *,
    by: User = CONTROLLER,
    operation: str = "UPDATE",
    subresource: str = "",
    before: Mapping[str, Any] | None = None,
    kueue_check: bool = False,
    node_conditions: bool = False,
) -> str | None:
    old = copy.deepcopy(dict(before or workload()))
    new = copy.deepcopy(old)
    change(new)
    return account_policy(kueue_check=kueue_check, node_conditions=node_conditions).refusal(
        Admission(
            KINDS[plural],
            operation,
            subresource,
            "team",
            "train",
            by,
            new,
            old if operation == "UPDATE" else None,
            dry_run=False,
        )
    )


def suspend(obj: Any) -> None:
    obj["spec"]["suspend"] = True


def start_without_the_field(obj: Any) -> None:
    del obj["spec"]["suspend"]


def suspend_by_policy(obj: Any) -> None:
    obj["spec"]["runPolicy"]["suspend"] = True


def deactivate(obj: Any) -> None:
    obj["spec"]["active"] = False


def annotate(obj: Any) -> None:
    obj["metadata"]["annotations"] |= {"tidegauge.dev/requeue": "{}"}
    del obj["metadata"]["annotations"]["tidegauge.dev/x"]
    obj["metadata"]["resourceVersion"] = "7"
    obj["metadata"]["managedFields"] = [{"manager": "tidegauge"}]


def nothing(_: Any) -> None: ...


@pytest.mark.parametrize("by", [HEAD, CONTROLLER], ids=["head", "controller"])
@pytest.mark.parametrize(
    ("plural", "change"),
    [
        *((plural, suspend) for plural in ("jobs", "jobsets", "trainjobs", "rayjobs")),
        ("jobs", start_without_the_field),
        ("pytorchjobs", suspend_by_policy),
        ("workloads", deactivate),
        *((plural, annotate) for plural in KINDS if plural not in WITHOUT_ANNOTATIONS),
        ("jobs", nothing),
    ],
)
def test_what_tidegauge_does_is_admitted(plural: str, change: Change, by: User) -> None:
    assert refusal(plural, change, by=by) is None


def other_image(obj: Any) -> None:
    obj["spec"]["template"]["spec"]["containers"][0]["image"] = "evil"


def suspend_and_change(obj: Any) -> None:
    suspend(obj)
    other_image(obj)


def template_annotation(obj: Any) -> None:
    obj["spec"]["template"]["metadata"]["annotations"] = {"tidegauge.dev/attempt": "1"}


def more_tries(obj: Any) -> None:
    obj["spec"]["runPolicy"]["backoffLimit"] = 9


def no_tries(obj: Any) -> None:
    del obj["spec"]["runPolicy"]["backoffLimit"]


def new_field(obj: Any) -> None:
    obj["spec"]["parallelism"] = 9


def no_spec(obj: Any) -> None:
    del obj["spec"]


def others_annotation(obj: Any) -> None:
    obj["metadata"]["annotations"]["note"] = "ours"


def others_annotation_gone(obj: Any) -> None:
    del obj["metadata"]["annotations"]["note"]


def no_annotations(obj: Any) -> None:
    del obj["metadata"]["annotations"]


def look_alike(obj: Any) -> None:
    obj["metadata"]["annotations"]["tidegauge.dev.example.org/x"] = "1"


def label(obj: Any) -> None:
    obj["metadata"]["labels"]["tidegauge.dev/memory-profile"] = "auto"


def finalizer(obj: Any) -> None:
    obj["metadata"]["finalizers"] = ["tidegauge.dev/keep"]


def owner(obj: Any) -> None:
    obj["metadata"]["ownerReferences"] = [{"name": "other"}]


@pytest.mark.parametrize("by", [HEAD, CONTROLLER], ids=["head", "controller"])
@pytest.mark.parametrize(
    ("plural", "change"),
    [
        ("jobs", other_image),
        ("jobs", template_annotation),
        ("jobs", more_tries),
        ("pytorchjobs", more_tries),
        ("pytorchjobs", no_tries),
        ("pytorchjobs", suspend),
        ("rayjobs", new_field),
        ("jobs", no_spec),
        ("workloads", suspend),
        ("jobs", deactivate),
        ("jobsets", suspend_and_change),
        *(
            ("trainjobs", change)
            for change in (
                others_annotation,
                others_annotation_gone,
                no_annotations,
                look_alike,
                label,
                finalizer,
                owner,
            )
        ),
        ("pods", nothing),
        ("pods", annotate),
        ("nodes", nothing),
        ("nodes", annotate),
        ("deployments", annotate),
    ],
)
def test_what_a_stolen_token_would_do_is_refused(plural: str, change: Change, by: User) -> None:
    told = refusal(plural, change, by=by)
    assert told is not None
    assert "denied request: Tidegauge may change " in told


@pytest.mark.parametrize("operation", ["CREATE", "DELETE", "CONNECT"])
@pytest.mark.parametrize("plural", KINDS)
def test_nothing_is_created_deleted_or_connected_to(plural: str, operation: str) -> None:
    told = refusal(plural, nothing, operation=operation)
    assert told is not None
    assert told.endswith(f"and nothing else: no {operation} of {plural}")


@pytest.mark.parametrize("subresource", ["exec", "eviction", "binding", "ephemeralcontainers", "resize"])
def test_pods_are_not_entered_evicted_bound_or_resized(subresource: str) -> None:
    for operation in ("CREATE", "CONNECT", "UPDATE"):
        told = refusal("pods", nothing, operation=operation, subresource=subresource)
        assert told is not None
        assert told.endswith(f"{operation} of pods/{subresource}")


OURS = {"type": "tidegauge.dev/GpuMemoryIncident", "status": "True"}
READY = {"type": "Ready", "status": "False"}


def pod() -> dict[str, Any]:
    return {
        "metadata": {"name": "train-0"},
        "spec": {"containers": []},
        "status": {"phase": "Running", "conditions": [READY]},
    }


def marked(obj: Any) -> None:
    obj["status"]["conditions"].append(OURS)


def unmarked(obj: Any) -> None:
    obj["status"]["conditions"] = [READY, {**OURS, "status": "False"}]


def ready(obj: Any) -> None:
    obj["status"]["conditions"] = [{**READY, "status": "True"}]


def gone(obj: Any) -> None:
    obj["status"]["conditions"] = [OURS]


def address(obj: Any) -> None:
    obj["status"]["podIP"] = "10.0.0.1"


def failed(obj: Any) -> None:
    obj["status"]["phase"] = "Failed"


def first_label(obj: Any) -> None:
    obj["metadata"]["labels"] = {"a": "b"}


def suspended_pod(obj: Any) -> None:
    obj["spec"]["suspend"] = True


@pytest.mark.parametrize("change", [marked, unmarked])
def test_the_own_condition_of_a_pod_is_admitted(change: Change) -> None:
    assert refusal("pods", change, subresource="status", before=pod()) is None


def test_the_first_condition_of_a_pod_is_admitted() -> None:
    def first(obj: Any) -> None:
        obj["status"] = {"conditions": [OURS]}

    assert refusal("pods", first, subresource="status", before={**pod(), "status": {}}) is None


@pytest.mark.parametrize("change", [ready, gone, address, failed, suspended_pod, first_label])
def test_no_other_part_of_a_pods_status_is(change: Change) -> None:
    assert refusal("pods", change, subresource="status", before=pod()) is not None


UNHELD = {"type": "GpuMemoryUnheld", "status": "True"}


def node() -> dict[str, Any]:
    return {"metadata": {"name": "n1", "annotations": {}}, "spec": {"podCIDR": "10.0.0.0/24"},
            "status": {"conditions": [READY], "capacity": {"nvidia.com/gpu": "8"}}}  # fmt: skip


def unheld(obj: Any) -> None:
    obj["status"]["conditions"].append(UNHELD)


def free_again(obj: Any) -> None:
    obj["status"]["conditions"] = [READY, {**UNHELD, "status": "False"}]


def capacity(obj: Any) -> None:
    obj["status"]["capacity"] = {"nvidia.com/gpu": "0"}


def another_condition(obj: Any) -> None:
    obj["status"]["conditions"].append({"type": "tidegauge.dev/Other", "status": "True"})


def annotated_node(obj: Any) -> None:
    obj["metadata"]["annotations"]["tidegauge.dev/x"] = "1"


def tainted(obj: Any) -> None:
    obj["spec"]["taints"] = [{"key": "x", "effect": "NoExecute"}]


@pytest.mark.parametrize("change", [unheld, free_again])
def test_condition_of_a_node_is_written_where_the_chart_says_so(change: Change) -> None:
    assert refusal("nodes", change, by=HEAD, subresource="status", before=node(), node_conditions=True) is None
    told = refusal("nodes", change, by=HEAD, subresource="status", before=node())
    assert told is not None
    assert told.endswith("no UPDATE of nodes/status")


@pytest.mark.parametrize(
    "change",
    [ready, gone, capacity, another_condition, annotated_node, tainted, first_label],
    ids=lambda it: it.__name__,
)
def test_no_other_part_of_a_node_is(change: Change) -> None:
    told = refusal("nodes", change, by=HEAD, subresource="status", before=node(), node_conditions=True)
    assert told is not None
    assert "denied request: Tidegauge may " in told


def queued() -> dict[str, Any]:
    checks = [{"name": name, "state": state, "message": ""} for name, state in (("a", "Pending"), ("b", "Retry"))]
    conditions = [{"type": "QuotaReserved", "status": "True"}]
    return {
        "metadata": {"name": "job-train"},
        "spec": {"active": True},
        "status": {"conditions": conditions, "admissionChecks": checks},
    }


def answered(obj: Any) -> None:
    obj["status"]["admissionChecks"][0] |= {"state": "Ready", "message": "Needs 8.0 GiB"}


def other_check(obj: Any) -> None:
    obj["status"]["admissionChecks"][1]["state"] = "Ready"


def answered_with_changes_to_its_pods(obj: Any) -> None:
    answered(obj)
    obj["status"]["admissionChecks"][0]["podSetUpdates"] = [{"name": "main", "nodeSelector": {"evil": "node"}}]


def check_left_out(obj: Any) -> None:
    del obj["status"]["admissionChecks"][0]


def check_added(obj: Any) -> None:
    obj["status"]["admissionChecks"].append({"name": "c", "state": "Pending"})


def admitted(obj: Any) -> None:
    obj["status"]["conditions"].append({"type": "Admitted", "status": "True"})


def switched_off(obj: Any) -> None:
    obj["spec"]["active"] = False


def test_pending_check_is_answered_where_the_chart_says_so() -> None:
    assert refusal("workloads", answered, subresource="status", before=queued(), kueue_check=True) is None
    told = refusal("workloads", answered, subresource="status", before=queued())
    assert told is not None
    assert told.endswith("no UPDATE of workloads/status")


@pytest.mark.parametrize(
    "change",
    [
        other_check, answered_with_changes_to_its_pods, check_left_out, check_added, admitted, switched_off,
        first_label,
    ],
)  # fmt: skip
def test_no_other_part_of_a_queued_workloads_status_is(change: Change) -> None:
    told = refusal("workloads", change, subresource="status", before=queued(), kueue_check=True)
    assert told is not None
    assert "denied request: Tidegauge may " in told


def inactive(obj: Any) -> None:
    obj["status"] = {"conditions": [{"type": "Active", "status": "False"}]}


def taken_over(obj: Any) -> None:
    obj["spec"]["controllerName"] = "tidegauge.dev/memory"
    inactive(obj)


def admission_check(controller: str) -> dict[str, Any]:
    return {"metadata": {"name": "memory"}, "spec": {"controllerName": controller}, "status": {}}


def test_status_of_our_own_admission_check_is_ours() -> None:
    ours = admission_check("tidegauge.dev/memory")
    assert refusal("admissionchecks", inactive, subresource="status", before=ours, kueue_check=True) is None
    assert refusal("admissionchecks", inactive, subresource="status", before=ours) is not None


@pytest.mark.parametrize(("change", "subresource"), [(inactive, "status"), (taken_over, "status"), (taken_over, "")])
def test_admission_check_of_another_controller_is_not(change: Change, subresource: str) -> None:
    theirs = admission_check("example.com/budget")
    told = refusal("admissionchecks", change, subresource=subresource, before=theirs, kueue_check=True)
    assert told is not None
    assert "denied request: Tidegauge may " in told


def registered() -> dict[str, Any]:
    names = ("pods.memory-profile.tidegauge.dev", "namespaces.memory-profile.tidegauge.dev")
    service = {"service": {"name": "tidegauge-webhook", "namespace": SYSTEM, "path": "/mutate", "port": 443}}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    return {
        "metadata": {"name": RELEASE},
        "webhooks": [{"name": name, "clientConfig": copy.deepcopy(service), "rules": rules} for name in names],
    }


def certified(obj: Any) -> None:
    for webhook in obj["webhooks"]:
        webhook["clientConfig"]["caBundle"] = "bmV3"


def webhook_added(obj: Any) -> None:
    obj["webhooks"].append({"name": "all.example.org", "clientConfig": {"url": "https://evil.example.org"}})


def webhook_twice(obj: Any) -> None:
    obj["webhooks"][1] = copy.deepcopy(obj["webhooks"][0])


def webhook_left_out(obj: Any) -> None:
    del obj["webhooks"][0]


def webhook_elsewhere(obj: Any) -> None:
    obj["webhooks"][0]["clientConfig"] = {"url": "https://evil.example.org", "caBundle": "bmV3"}


def webhook_for_secrets(obj: Any) -> None:
    obj["webhooks"][0]["rules"] = [*obj["webhooks"][0]["rules"], {"resources": ["secrets"]}]


def webhook_that_must_answer(obj: Any) -> None:
    obj["webhooks"][0]["failurePolicy"] = "Fail"


def test_certificate_of_the_webhook_is_changed() -> None:
    assert refusal("mutatingwebhookconfigurations", certified, before=registered()) is None


@pytest.mark.parametrize(
    "change",
    [
        webhook_added, webhook_twice, webhook_left_out, webhook_elsewhere, webhook_for_secrets,
        webhook_that_must_answer, first_label,
    ],
)  # fmt: skip
def test_nothing_else_of_a_webhook_is(change: Change) -> None:
    told = refusal("mutatingwebhookconfigurations", change, before=registered())
    assert told is not None
    assert "denied request: Tidegauge may " in told


@pytest.mark.parametrize(
    "who",
    [
        User("ada"),
        service_account("team", f"{RELEASE}-head"),
        service_account(SYSTEM, "default"),
        service_account(SYSTEM, f"{RELEASE}-agent"),
        service_account("kueue-system", "kueue-controller-manager"),
    ],
    ids=lambda user: user.name,
)
def test_nobody_else_is_touched(who: User) -> None:
    assert refusal("jobs", other_image, by=who) is None
    assert refusal("pods", nothing, by=who, operation="CREATE") is None


def test_it_is_bound_denies_and_can_be_left_out() -> None:
    found = [one for one in chart_objects({}) if one["kind"].startswith("ValidatingAdmissionPolicy")]
    policy, binding = sorted(found, key=lambda one: len(one["kind"]))
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    left_out = chart_objects({"rbac": {"admissionPolicy": False}})
    assert not any(one["kind"].startswith("ValidatingAdmissionPolicy") for one in left_out)


def test_given_accounts_are_bound_too() -> None:
    values = {"head": {"serviceAccount": {"create": False, "name": "site-head"}}}
    (policy,) = [one for one in chart_objects(values) if one["kind"] == "ValidatingAdmissionPolicy"]
    assert f"system:serviceaccount:{SYSTEM}:site-head" in policy["spec"]["matchConditions"][0]["expression"]


def test_a_server_with_it_refuses_a_template_to_an_account_that_may_patch_jobs(
    kube: KubeTarget, namespace: str, tmp_path: Any
) -> None:
    with installed(kube, namespace, tmp_path, {"workloads": {"actions": True}}) as release:
        _check_template_is_refused(kube, namespace, Connection(release.kubeconfig("controller")))


def _check_template_is_refused(kube: KubeTarget, namespace: str, account: Connection) -> None:
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.org/none:1"}]}}
    kube.admin.do("POST", jobs, {"metadata": {"name": "train"}, "spec": {"suspend": True, "template": template}})
    another = itertools.count(5)  # what changes nothing is allowed

    def refusal() -> Answer:
        patch = {"spec": {"activeDeadlineSeconds": next(another)}}
        return account.ask("PATCH", f"{jobs}/train", patch, content_type="application/merge-patch+json")

    answer = eventually(refusal, lambda answer: answer.code != 200)  # a server takes a policy within moments
    assert answer.body["reason"] in ("Forbidden", "Invalid")
    assert "Tidegauge may change nothing in the spec of jobs but whether it is suspended" in answer.body["message"]
    patch: Any = {"spec": {"suspend": False}, "metadata": {"annotations": {"tidegauge.dev/attempt": "1"}}}
    account.do("PATCH", f"{jobs}/train", patch, content_type="application/merge-patch+json")
