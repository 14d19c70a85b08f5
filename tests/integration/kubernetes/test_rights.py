"""No right is unused, and none is missing: in each mode of the chart head and controller do all that they ever ask an
API server for, with the accounts that the chart gives them.

What a role does not give, the emulator refuses, and a refusal that no test expects fails it: here, and in every other
test of this folder that runs a part of Tidegauge (``ChartRelease``). So the whole suite uses no more than the rendered
roles; that it uses no less is said here, for each mode by itself, whichever part of the suite runs beside it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_ranks import FakeRanks
from integration.chart.rendering import CHART
from integration.kubernetes.chart_accounts import COMPONENTS, SYSTEM, ChartRelease, installed
from integration.kubernetes.controller_process import running_controller
from integration.kubernetes.injected_pods import asking
from integration.kubernetes.port_world import running_status, view_in_pod
from integration.kubernetes.target import Connection, KubeTarget, eventually
from integration.kubernetes.test_token_reviews import token_of
from integration.server_process import free_port
from sample_views import gpu_view
from scheduler_hooks.kubernetes.workload_samples import owned_by, template, workload
from scheduler_values import incident
from tidegauge.core.detector.unheld import UNHELD_FOR_S
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.jobs.kubernetes import (
    ATTEMPT,
    GPU_MEMORY,
    LEAK_CONDITION,
    NEEDED_MEMORY,
    PROFILE_LABEL,
    REQUEUE,
    SCHEDULER,
)
from tidegauge.core.views import JobView
from tidegauge.http.namespace_rights import READ, AccessRight
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.kubernetes.access_reviewer import ApiAccessReviewer
from tidegauge_scheduler_hooks.kubernetes.adapter import KubernetesScheduler
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.leases import lease_age_s
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.controller.memory_checks import CONTROLLER_NAME, MISFIT_EVENT
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import renewed
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, encode
from tidegauge_scheduler_hooks.kubernetes.kueue import (
    ADMISSION_CHECKS,
    JOB_UID_LABEL,
    QUEUE_WORKLOADS,
    RESOURCE_FLAVORS,
)
from tidegauge_scheduler_hooks.kubernetes.node_conditions import UNHELD_CONDITION, NodeConditions, NodeGpus
from tidegauge_scheduler_hooks.kubernetes.owners import (
    JOBSETS,
    KINDS,
    PYTORCHJOBS,
    RAYCLUSTERS,
    RAYJOBS,
    TRAINJOBS,
    is_true,
    watched_kinds,
)
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, FIELD_MANAGER, JOBS, NODES, PODS, Resource
from tidegauge_scheduler_hooks.kubernetes.team_policies import MEMORY_POLICIES, SAYS_NOTHING, TeamPolicies
from tidegauge_scheduler_hooks.kubernetes.token_reviewer import ApiTokenReviewer
from tidegauge_scheduler_hooks.ports import RequeueChanges

pytestmark = [pytest.mark.usefixtures("job_controller", "others_kinds"), pytest.mark.timeout(300)]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NOWHERE = {"nodeSelector": {"none": "such"}, "restartPolicy": "Never"}
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "all": {
        "workloads": {"actions": True, "podConditions": True},
        "memoryPolicies": {"enabled": True},
        "nodeConditions": {"enabled": True},
        "kueueCheck": {"enabled": True},
    },
    "one team": {
        "workloads": {"kinds": ["TrainJob"], "actions": True},
        "memoryPolicies": {"enabled": True},
        "rbac": {"namespaces": [SYSTEM]},
    },
    "messages and marks": {
        "workloads": {"kinds": ["RayJob"], "podConditions": True},
        "rbac": {"namespaces": [SYSTEM], "kueue": False},
        "injection": {"mode": "none"},
        "memoryIncidents": {"enabled": False},
        "webAccess": {"open": True},
    },
    "given certificate, no Kueue": {
        "workloads": {"kinds": ["JobSet", "PyTorchJob"], "actions": True},
        "rbac": {"kueue": False},
        "injection": {"certificates": {"mode": "secret", "secretName": "given", "caBundle": "LS0="}},
    },
    "admission check, NRI": {"kueueCheck": {"enabled": True}, "injection": {"mode": "nri"}},
    "no controller": {"controller": {"enabled": False}, "injection": {"mode": "none"}},
}
"""Each condition in the templates of roles is true in one of these and false in another."""
OTHERS_VALUES = {"rbac.create", "webAccess.kubectlGroups"}
"""Whether there are roles at all, and of whom none is head or controller."""


@pytest.fixture(scope="module")
def others_kinds(kube: KubeTarget) -> Iterator[None]:
    """The custom kinds that Tidegauge knows, of which nobody takes care here."""
    if kube.emulator is None:
        pytest.skip("what was asked for is recorded by the emulator alone")
    definitions = [
        *(yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((CHART / "crds").glob("*.yaml"))),
        *map(_definition, (JOBSETS, TRAINJOBS, PYTORCHJOBS, RAYJOBS, RAYCLUSTERS)),
        *(_definition(one, status={}) for one in (QUEUE_WORKLOADS, ADMISSION_CHECKS, RESOURCE_FLAVORS)),
    ]
    for one in definitions:
        kube.admin.do("POST", DEFINITIONS, one)
        spec = one["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        eventually(partial(_is_served, kube.admin, path))
    yield
    for one in definitions:
        kube.admin.do("DELETE", f"{DEFINITIONS}/{one['metadata']['name']}")


def _is_served(admin: Connection, path: str) -> bool:
    return admin.ask("GET", path).code == 200


def _definition(resource: Resource, **subresources: Any) -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": resource.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
               "subresources": subresources}  # fmt: skip
    names = {"kind": resource.kind, "plural": resource.plural, "singular": resource.kind.lower()}
    return {
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def test_each_value_that_the_roles_rest_on_is_set_in_a_mode() -> None:
    template_text = (CHART / "templates" / "rbac.yaml").read_text(encoding="utf-8")
    read = set(re.findall(r"\.Values\.([\w.]+)", template_text)) - OTHERS_VALUES
    assert {"workloads.kinds", "injection.certificates.mode", "rbac.namespaces"} < read
    assert read - {name for values in MODES.values() for name in _names(values)} == set()


def _names(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """``rbac.kueue``"""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


@pytest.mark.parametrize("mode", MODES)
def test_every_right_of_a_mode_is_used_in_it_and_none_is_lacking(
    kube: KubeTarget, namespace: str, tmp_path: Path, mode: str
) -> None:
    with ExitStack() as stack:
        release = stack.enter_context(installed(kube, namespace, tmp_path, MODES[mode]))
        cluster = Cluster(kube.admin, release, MODES[mode])
        release.lacks |= cluster.refused_by_intent()
        cluster.make_flavor()
        with_controller = MODES[mode].get("controller", {}).get("enabled", True)
        port = 0
        if with_controller:
            port = free_port()
            stack.enter_context(running_controller(tmp_path, _addresses(release, tmp_path, port)))
        head = stack.enter_context(Head(release))
        cluster.head_does_all(head)
        if with_controller:
            cluster.controller_does_all(port)

        def unused() -> list[str]:
            return [
                f"in mode {mode!r} nobody used the {component}'s right to {right}"
                for component in COMPONENTS
                for right in sorted(release.rights(component) - release.used(component))
            ]

        eventually(unused, lambda left: left == [], within_s=30)


def _addresses(release: ChartRelease, folder: Path, port: int) -> list[str]:
    """What the chart tells the controller, but for where it listens and where a given certificate lies."""
    told = release.controller_arguments()
    if "--no-webhook" in told:
        return told
    more = [f"--webhook-port={port}", "--webhook-host=127.0.0.1"]
    if any(one.startswith("--certificate-dir") for one in told):
        made = renewed(None, ["localhost"], now_s=time.time())
        (folder / "tls.crt").write_bytes(made.certificate)
        (folder / "tls.key").write_bytes(made.key)
        more.append(f"--certificate-dir={folder}")
    return [*told, *more]


class Head:
    """What of the head asks the API server, as its settings say; with its account."""

    def __init__(self, release: ChartRelease) -> None:
        self.settings = release.settings()
        self.api = open_api(release.kubeconfig("head"), timeout_s=60)
        said = self.settings.get("kubernetes_namespaces")
        self._watches = ClientWatches(self.api, namespaces=said.split(",") if said else None)
        self.kinds = self.settings["kubernetes_kinds"].split(",")
        self.directory = PodDirectory(self._watches, self.kinds)
        self.policies = TeamPolicies(self._watches) if self.settings.get("kubernetes_memory_policies") else None
        place, name = self.settings["kubernetes_controller"].split("/")
        self.port = KubernetesScheduler(
            self.api, self.directory, FakeRanks(), controller_age_s=lambda: lease_age_s(self.api, place, name),
            kinds=self.kinds, policies=self.policies,
        )  # fmt: skip

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *_: object) -> None:
        self._watches.close()


class Cluster:
    """Workloads of every kind in the one namespace of a release, and what head and controller find to do with them."""

    def __init__(self, admin: Connection, release: ChartRelease, values: Mapping[str, Any]) -> None:
        self._admin = admin
        self._release = release
        self._namespace = release.namespace
        workloads = values.get("workloads", {})
        self._kinds: list[str] = workloads.get("kinds", list(KINDS))
        self._acts = workloads.get("actions", False)
        self._marks = workloads.get("podConditions", False)
        self._kueue = self._acts and values.get("rbac", {}).get("kueue", True)
        self._shows = values.get("memoryIncidents", {}).get("enabled", True)
        self._asks_names = not values.get("webAccess", {}).get("open", False)
        self._webhook = values.get("injection", {}).get("mode", "webhook") == "webhook"
        self._policies = values.get("memoryPolicies", {}).get("enabled", False)
        self._conditions = values.get("nodeConditions", {}).get("enabled", False)
        self._checks = values.get("kueueCheck", {}).get("enabled", False)
        self._pids = itertools.count(1)

    def refused_by_intent(self) -> set[str]:
        """What the code tries although it may not be allowed, and does without."""
        patches = {f"patch {_qualified(KINDS[kind].resource)}" for kind in self._kinds}
        lists = set() if self._kueue else {f"list {_qualified(QUEUE_WORKLOADS)}"}
        head = lists | (set() if self._acts or self._marks else patches)
        controller = lists | (set() if self._acts else patches)
        return {f"head: {one}" for one in head} | {f"controller: {one}" for one in controller}

    def make_flavor(self) -> None:
        """Of the controller's first list: what a Workload is judged by is known before it comes."""
        if self._checks:
            metadata = {"name": self._namespace, "annotations": {GPU_MEMORY: "40Gi"}}
            self._create(RESOURCE_FLAVORS, {"metadata": metadata, "spec": {}})

    def head_does_all(self, head: Head) -> None:
        if self._asks_names:
            self._log_in(head)
        if self._policies:
            self._hear_a_team(head)
        assert bool(head.settings.get("kubernetes_node_conditions")) is self._conditions
        if self._conditions:
            self._tell_of_a_node(head)
        for kind in [*watched_kinds(self._kinds), "Pod"]:
            view, target = self._running(head, kind)
            head.port.notify(target, "rank 0 leaks", decision_id=f"d-{kind}")
            if kind == self._kinds[0]:
                self._show_and_requeue(head, view, target)

    def controller_does_all(self, port: int) -> None:
        for kind in self._kinds:
            self._order_for_a_predecessor(kind)
        if self._marks:
            eventually(self._a_pod_is_marked)
        if self._kueue:
            self._half_a_restart_in_a_queue()
        if self._policies:
            eventually(lambda: is_true(self._get(MEMORY_POLICIES, "team"), "Accepted"))
        if self._checks:
            self._answer_a_check()
        if self._webhook:
            for owner in watched_kinds(self._kinds).values():
                self._review(port, owner.resource)

    # The head

    def _log_in(self, head: Head) -> None:
        token = token_of(self._admin, self._namespace, "ada")
        user = ApiTokenReviewer(head.api, audience=None).review(token)
        assert user is not None
        assert not ApiAccessReviewer(head.api).may(user, AccessRight(READ, self._namespace))

    def _hear_a_team(self, head: Head) -> None:
        policies = head.policies
        assert policies is not None
        self._create(MEMORY_POLICIES, {"metadata": {"name": "team"}, "spec": {"mayRequeue": True}})
        eventually(lambda: policies.by_namespace().get(self._namespace, SAYS_NOTHING).may_requeue)
        eventually(lambda: policies.problem is None)

    def _tell_of_a_node(self, head: Head) -> None:
        name, gpu = self._namespace, gpu_view(0, unheld_bytes=2 << 30, unheld_for_s=UNHELD_FOR_S)
        made = self._create(NODES, {"metadata": {"name": name}})
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        path = self._path(NODES, name)
        self._admin.do("PATCH", f"{path}/status", ready, content_type="application/strategic-merge-patch+json")
        conditions = NodeConditions(
            head.api, lambda: [NodeGpus(name, 0.5, (gpu,))], submit=lambda call: call(),
            wall_s=time.time, monotonic_s=time.monotonic,
        )  # fmt: skip
        conditions.tick()
        found = self._get(NODES, name)
        assert made["metadata"]["uid"] == found["metadata"]["uid"]
        assert [one["type"] for one in found["status"]["conditions"]] == ["Ready", UNHELD_CONDITION]
        assert is_true(found, UNHELD_CONDITION)
        self._admin.do("DELETE", path)

    def _show_and_requeue(self, head: Head, view: JobView, target: JobTarget) -> None:
        if self._shows:
            head.port.show_incident(incident(job=view.key, scheduler=SCHEDULER), (), view)
        if self._acts:
            owner = self._get(KINDS[self._kinds[0]].resource, "runs")
            if self._kueue:
                self._create(QUEUE_WORKLOADS, {"metadata": _owned("queued", owner), "spec": {"active": True}})
            head.port.requeue(target, RequeueChanges(), "leaks", decision_id="d-requeue")
            if self._kueue:
                assert self._get(QUEUE_WORKLOADS, "queued")["spec"]["active"] is False

    def _running(self, head: Head, kind: str) -> tuple[JobView, JobTarget]:
        """A workload of that kind with one pod, as the coordinator sees it and as it can be acted on."""
        pod = self._pod_of(kind)
        uid = pod["metadata"]["uid"]
        path = self._path(PODS, pod["metadata"]["name"])
        patch = {"status": running_status(pod)}
        self._admin.do("PATCH", f"{path}/status", patch, content_type="application/merge-patch+json")
        eventually(lambda: (head.directory.pod_of(uid) or pod) is not pod)
        view = view_in_pod(head.directory, uid, ProcessId(next(self._pids), 1))
        eventually(lambda: (found := head.port.describe([view]).get(view.key)) is not None and found.running)
        facts = job_facts(view, surroundings([view], {}), head.port.describe([view])[view.key])
        return view, facts.target

    def _pod_of(self, kind: str) -> Any:
        """A new pod of a new workload ``runs``; that of a Job its controller makes."""
        made = template()
        made["metadata"]["labels"][PROFILE_LABEL] = "stats"
        made["spec"] |= NOWHERE
        if kind == "Pod":
            return self._create(PODS, {**made, "metadata": {**made["metadata"], "name": "alone"}})
        if kind == "Job":
            body = workload("Job", "runs", namespace=self._namespace)
            body["spec"]["template"] = made
            uid = self._create(JOBS, body)["metadata"]["uid"]
            return eventually(lambda: next(iter(self._pods_of(uid)), None))
        resource = watched_kinds(self._kinds)[kind].resource
        body = {"metadata": {"name": "runs"}, "spec": {}}
        if kind in KINDS:
            body = workload(kind, "runs", namespace=self._namespace)
        body["status"] = {"startTime": "2026-01-01T00:00:00Z", "jobDeploymentStatus": "Running"}
        owner = self._create(resource, body)
        return self._create(PODS, {**made, "metadata": {**_owned(f"of-{kind.lower()}", owner), **made["metadata"]}})

    # The controller

    def _order_for_a_predecessor(self, kind: str) -> None:
        """Of a workload that was deleted and made again: it is taken away, and where that is not allowed the owner is
        told what the role lacks."""
        resource, body = KINDS[kind].resource, workload(kind, "again", namespace=self._namespace)
        if kind == "PyTorchJob":
            body["spec"]["runPolicy"]["suspend"] = True
        else:
            body["spec"]["suspend"] = True
        if kind != "Job":
            suspended = {"type": "Suspended", "status": "True"}
            body["status"] = {"conditions": [suspended], "jobDeploymentStatus": "Suspended"}
        made = self._create(resource, body)
        eventually(lambda: "status" in self._get(resource, "again"))
        self._annotate(resource, "again", {REQUEUE: _order("another-uid")})
        uid = made["metadata"]["uid"]
        assert eventually(lambda: self._told(uid)) == [
            "GpuMemoryRequeueDropped" if self._acts else "GpuMemoryRequeueWaits"
        ]

    def _half_a_restart_in_a_queue(self) -> None:
        """A controller crashed before it had Kueue's Workload switched on."""
        resource, kind = KINDS[self._kinds[0]].resource, self._kinds[0]
        body = workload(kind, "half", namespace=self._namespace)
        body["spec"]["suspend"] = True
        owner = self._create(resource, body)
        inactive = {"metadata": _owned("half", owner), "spec": {"active": False}}
        self._create(QUEUE_WORKLOADS, inactive, fieldManager=FIELD_MANAGER)  # as if the head had deactivated it
        self._annotate(resource, "half", {ATTEMPT: "1", REQUEUE: _order(owner["metadata"]["uid"])})
        eventually(lambda: self._get(QUEUE_WORKLOADS, "half")["spec"]["active"])
        eventually(lambda: REQUEUE not in self._get(resource, "half")["metadata"]["annotations"])

    def _answer_a_check(self) -> None:
        """Kueue gave a job quota of a flavor with too little memory, and waits for a check of ours."""
        name = self._namespace
        self._create(ADMISSION_CHECKS, {"metadata": {"name": name}, "spec": {"controllerName": CONTROLLER_NAME}})
        eventually(lambda: is_true(self._get(ADMISSION_CHECKS, name), "Active"))
        body = workload(self._kinds[0], "checked", namespace=self._namespace)
        body["spec"]["suspend"] = True
        owner = self._create(KINDS[self._kinds[0]].resource, body)
        made = template()
        made["metadata"]["annotations"] = {NEEDED_MEMORY: "61Gi"}
        pod_sets = [{"name": "main", "count": 1, "template": made}]
        self._create(QUEUE_WORKLOADS, {"metadata": _owned("checked", owner), "spec": {"podSets": pod_sets}})
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        said = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": ""}
        status = {
            "conditions": [{**said, "lastTransitionTime": since}],
            "admission": {"podSetAssignments": [{"name": "main", "flavors": {"nvidia.com/gpu": name}}]},
            "admissionChecks": [{"name": name, "state": "Pending", "message": "", "lastTransitionTime": since}],
        }
        path = f"{self._path(QUEUE_WORKLOADS, 'checked')}/status"
        self._admin.do("PATCH", path, {"status": status}, content_type="application/merge-patch+json")
        eventually(lambda: self._get(QUEUE_WORKLOADS, "checked")["status"]["admissionChecks"][0]["state"] == "Ready")
        assert eventually(lambda: self._told(owner["metadata"]["uid"])) == [MISFIT_EVENT]

    def _review(self, port: int, resource: Resource) -> None:
        """A pod that names an owner which no watch has shown."""
        reference = {"apiVersion": resource.api_version, "kind": resource.kind, "name": "runs", "uid": "unknown"}
        body = asking("new", ownerReferences=[{**reference, "controller": True}])
        request = {"uid": "u", "operation": "CREATE", "namespace": self._namespace, "object": body,
                   "resource": {"group": "", "version": "v1", "resource": "pods"}}  # fmt: skip
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # whom to trust: test_controller.py
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60)
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        connection.request("POST", "/mutate", json.dumps(review), {"Content-Type": "application/json"})
        assert json.loads(connection.getresponse().read())["response"]["allowed"]
        connection.close()

    def _a_pod_is_marked(self) -> bool:
        return any(is_true(pod, LEAK_CONDITION) for pod in self._admin.do("GET", self._path(PODS))["items"])

    # Objects

    def _path(self, resource: Resource, name: str = "") -> str:
        root = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
        place = f"/namespaces/{self._namespace}" if resource.namespaced else ""
        return f"{root}{place}/{resource.plural}{name and '/'}{name}"

    def _create(self, resource: Resource, body: Any, **options: Any) -> Any:
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self._admin.do("POST", self._path(resource), {**body, **kind}, **options)

    def _get(self, resource: Resource, name: str) -> Any:
        return self._admin.do("GET", self._path(resource, name))

    def _annotate(self, resource: Resource, name: str, annotations: Mapping[str, str]) -> None:
        patch = {"metadata": {"annotations": dict(annotations)}}
        self._admin.do("PATCH", self._path(resource, name), patch, content_type="application/merge-patch+json")

    def _pods_of(self, uid: str) -> list[Any]:
        listed = self._admin.do("GET", self._path(PODS))["items"]
        return [one for one in listed if (one["metadata"].get("ownerReferences") or [{}])[0].get("uid") == uid]

    def _told(self, uid: str) -> list[str]:
        """The reasons of our Events on an object."""
        found = self._admin.do("GET", self._path(EVENTS))["items"]
        reasons = [one["reason"] for one in found if one["regarding"]["uid"] == uid]
        return [reason for reason in reasons if reason.startswith("GpuMemory")]


def _qualified(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}"


def _owned(name: str, owner: Any) -> dict[str, Any]:
    labels = {JOB_UID_LABEL: owner["metadata"]["uid"]}
    return {"name": name, "ownerReferences": owned_by(owner), "labels": labels}


def _order(uid: str) -> str:
    return encode(RequeueOrder("d-1", 1, "rank 0 leaks", time.time(), f"{uid}#first"))
