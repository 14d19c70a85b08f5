"""The injection without a webhook (MutatingAdmissionPolicy): on a real API server, what comes out of it; without one,
that its CEL is well-formed and finds in a pod what the webhook finds. The emulator has no such policies."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import celpy
import helm_python
import pytest
import yaml
from celpy import celtypes
from celpy.adapter import json_to_cel

from fakes.kube_patches import patched
from integration.kubernetes.injected_pods import PROBE_IMAGE, asking, dry_run
from integration.kubernetes.target import Connection, KubeTarget, eventually, pod
from tidegauge.core.jobs.kubernetes import (
    CHECKPOINT_PATH,
    CONTAINERS,
    FRACTION,
    IMAGE_PYTHONPATH,
    INJECTED,
    PROFILE_LABEL,
)
from tidegauge_scheduler_hooks.kubernetes.injection.names import INIT_CONTAINER, POLICY_VERSION, VOLUME
from tidegauge_scheduler_hooks.kubernetes.injection.plan import Injection, plan_injection
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import PROBE_USER, InjectionOptions, probe_container, volume
from tidegauge_scheduler_hooks.kubernetes.owners import JOB
from tidegauge_scheduler_hooks.kubernetes.ports import Patch
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of

CHART = Path(__file__).parents[3] / "helm" / "tidegauge"
POLICIES = "/apis/admissionregistration.k8s.io/v1"
REGISTRY, REPOSITORY, TAG = PROBE_IMAGE.replace(":", "/").split("/")
RESOURCES = {part: {"cpu": 1, "memory": "64Mi"} for part in ("requests", "limits")}


def rendered(namespace: str = "tidegauge-system", **values: Any) -> list[Any]:
    """Policies and bindings of the chart."""
    image = {"registry": REGISTRY, "repository": REPOSITORY, "tag": TAG}
    injection = {"mode": "policy", "image": image, "resources": RESOURCES, **values.pop("injection", {})}
    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(
            {"image": {"registry": REGISTRY}, "injection": injection, **values}, name="gauge", namespace=namespace
        )
    [text] = [text for path, text in texts.items() if path.endswith("mutating-admission-policy.yaml")]
    return [one for one in yaml.safe_load_all(text) if one]


def policy_for(part: str, **values: Any) -> Any:
    """The policy for labelled ``pods``, or for pods in labelled ``namespaces``."""
    found = [one for one in rendered(**values) if one["kind"] == "MutatingAdmissionPolicy"]
    return next(one for one in found if one["metadata"]["name"].endswith(f"-{part}"))


def test_there_is_one_policy_for_pods_and_one_for_namespaces_each_bound() -> None:
    objects = rendered()
    policies = [one["metadata"]["name"] for one in objects if one["kind"] == "MutatingAdmissionPolicy"]
    bound = [one["spec"]["policyName"] for one in objects if one["kind"] == "MutatingAdmissionPolicyBinding"]
    assert len(policies) == 2
    assert policies == bound
    assert {one["spec"]["failurePolicy"] for one in objects if "failurePolicy" in one["spec"]} == {"Ignore"}


def expressions(policy: Any) -> Iterator[str]:
    spec = policy["spec"]
    for one in (*spec["matchConditions"], *spec["variables"]):
        yield one["expression"]
    for one in spec["mutations"]:
        yield (one.get("jsonPatch") or one["applyConfiguration"])["expression"]


@pytest.mark.parametrize("part", ["pods", "namespaces"])
def test_every_expression_is_well_formed(part: str) -> None:
    environment = celpy.Environment()
    for expression in expressions(policy_for(part)):
        environment.compile(expression)


FUNCTIONS: Any = {
    # Of the strings library that Kubernetes adds to CEL.
    "split": lambda text, by: celtypes.ListType([celtypes.StringType(one) for one in str(text).split(str(by))]),
    "trim": lambda text: celtypes.StringType(str(text).strip()),
    "substring": lambda text, begin, end: celtypes.StringType(str(text)[begin:end]),
}


def evaluated(expression: str, variables: Mapping[str, Any]) -> Any:
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression), functions=FUNCTIONS)
    return program.evaluate(dict(variables))


def found_in(
    given: Mapping[str, Any],
    *,
    part: str = "pods",
    labels: Mapping[str, str] | None = None,
    declared: str | None = None,
) -> Any:
    """Whether the policy would act on a pod, and the variables that it finds. ``declared``: what the namespace says its
    images set."""
    spec = policy_for(part)["spec"]
    said = {} if declared is None else {"annotations": {IMAGE_PYTHONPATH: declared}}
    namespace = {"metadata": {"name": "team", "labels": dict(labels or {}), **said}}
    scope = {"object": json_to_cel(dict(given)), "namespaceObject": json_to_cel(namespace)}
    acts = all(evaluated(one["expression"], scope) for one in spec["matchConditions"])
    variables = celtypes.MapType()
    for one in spec["variables"]:
        variables[celtypes.StringType(one["name"])] = evaluated(one["expression"], {**scope, "variables": variables})
    return acts and bool(variables["acts"]), variables


GPU = {"name": "gpu", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
ZERO = {"name": "zero", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": 0}}}
NETWORK = {"name": "net", "resources": {"claims": [{"name": "nic"}]}}
OWNER = {"apiVersion": "apps/v1", "kind": "Other", "uid": "u"}
PODS = [
    pod("plain"),
    pod("owned", ownerReferences=[{**OWNER, "name": "other"}, {**OWNER, "name": "job", "controller": True}]),
    pod("served", labels={"pod-template-hash": "6d4cf56db"}, ownerReferences=[
        {**OWNER, "kind": "ReplicaSet", "name": "vllm-6d4cf56db", "controller": True}]),
    pod("rollout", ownerReferences=[{**OWNER, "kind": "ReplicaSet", "name": "vllm-6d4cf56db", "controller": True}]),
    pod("ordinal-3", ownerReferences=[{**OWNER, "kind": "StatefulSet", "name": "ordinal", "controller": True}]),
    pod("group-3-1", labels={"leaderworkerset.sigs.k8s.io/name": "group"},
        ownerReferences=[{**OWNER, "kind": "StatefulSet", "name": "group-3", "controller": True}]),
    pod("", generateName="later-"),
    pod("set", labels={"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/restart-attempt": "2"},
        annotations={"tidegauge.dev/attempt": "3"}),
    pod("volcano", labels={"volcano.sh/job-name": "v"}, annotations={"volcano.sh/job-version": "4"}),
    pod("ray", labels={"ray.io/cluster": "c", "ray.io/originated-from-cr-name": "r"}),
    pod("words", annotations={FRACTION: "0.5", CHECKPOINT_PATH: "/ckpt", IMAGE_PYTHONPATH: "/app"}),
    pod("bad", annotations={FRACTION: "2", CHECKPOINT_PATH: "/" * 3000, "tidegauge.dev/attempt": "x"}),
    pod("gpus", spec={"containers": [{"name": "side"}, GPU]}),
    pod("zero", spec={"containers": [ZERO, {"name": "side"}]}),
    pod("zero-and-gpu", spec={"containers": [ZERO, GPU]}),
    pod("zero-and-claims", spec={"containers": [ZERO, NETWORK]}),
    pod("network", spec={"containers": [NETWORK, GPU]}),
    pod("claims", spec={"containers": [NETWORK, {"name": "side"}]}),
    pod("named", spec={"containers": [{"name": "side"}, GPU]}, annotations={CONTAINERS: " side ,none"}),
    pod("root", spec={"securityContext": {"runAsUser": 0}}),
    pod("windows", spec={"os": {"name": "windows"}}),
    pod("windows-too", spec={"nodeSelector": {"kubernetes.io/os": "windows"}}),
    pod("again", annotations={INJECTED: "1"}),
]  # fmt: skip


@pytest.mark.parametrize("given", PODS, ids=lambda given: given["metadata"]["name"] or "generated")
def test_the_policy_finds_in_a_pod_what_the_webhook_finds(given: dict[str, Any]) -> None:
    given = copy.deepcopy(given)
    given["metadata"].setdefault("labels", {})[PROFILE_LABEL] = ""
    if not given["metadata"]["name"]:
        del given["metadata"]["name"]
    outcome = plan_injection(given, namespace="team", namespace_metadata={}, options=InjectionOptions("i"))
    acts, variables = found_in(given)
    assert bool(variables["podIsRoot"]) == (given["spec"].get("securityContext") is not None)
    assert acts == isinstance(outcome, Injection)
    if not isinstance(outcome, Injection):
        return
    after: Any = patched(given, outcome.operations, Patch.JSON)
    watched = [one for one in after["spec"]["containers"] if "env" in one]
    assert [name for name in map(str, variables["watched"]) if name != "none"] == [one["name"] for one in watched]
    assert list(map(str, variables["runFolders"])) == after["spec"]["initContainers"][0]["args"]
    theirs = {one["name"]: one.get("value") for one in watched[0]["env"] if "valueFrom" not in one}
    names = list(map(str, variables["names"]))
    ours = {name: str(variables["texts"][name]) for name in names if name in variables["texts"]}
    if "name" not in given["metadata"]:  # CEL has no way to take the dash off the end of the generated name
        ours = {name: text.rstrip("-") for name, text in ours.items()}
    assert {**ours, "TIDEGAUGE_CONTAINER": watched[0]["name"]} == {
        name: value for name, value in theirs.items() if name != "PYTHONPATH"
    }


def mutation(part: str) -> str:
    [found] = [one for one in policy_for(part)["spec"]["mutations"] if "applyConfiguration" in one]
    return str(found["applyConfiguration"]["expression"])


@pytest.mark.parametrize("part", ["pods", "namespaces"])
def test_the_adapter_knows_pods_of_the_policy_by_their_mark(part: str) -> None:
    [version] = re.findall(rf'"{INJECTED}": "([^"]*)"', mutation(part))
    assert version == POLICY_VERSION
    made = pod("p", annotations={INJECTED: version})
    assert not Workload(JOB, {"metadata": {}}, (made,)).injected


def test_without_resources_of_the_admin_a_pods_quality_of_service_and_quota_are_kept() -> None:
    [expression] = [
        one["jsonPatch"]["expression"]
        for one in policy_for("pods", injection={"resources": {}})["spec"]["mutations"]
        if "initContainers" in one.get("jsonPatch", {}).get("expression", "")
    ]
    same = '{"cpu":"200m","memory":"64Mi"}'
    assert expression.count(f'"resources": dyn({{"limits": {same}, "requests": {same}}})') == 2
    celpy.Environment().compile(expression)


@pytest.mark.parametrize("part", ["pods", "namespaces"])
@pytest.mark.parametrize("before", [{}, {"initContainers": [{"name": "before"}]}])
def test_the_init_container_comes_only_beside_its_volume(part: str, before: dict[str, Any]) -> None:
    """A server passes over a mutation that fails, and a pod that mounts a volume that is not there is refused."""
    [expression] = [
        one["jsonPatch"]["expression"]
        for one in policy_for(part)["spec"]["mutations"]
        if "initContainers" in one.get("jsonPatch", {}).get("expression", "")
    ]
    condition, separator, _ = expression.partition(" ? [] :")
    assert separator
    for volumes, comes in (([], False), ([{"name": "data"}], False), ([{"name": VOLUME}], True)):
        given = pod("p", spec={**pod("p")["spec"], **before, **({"volumes": volumes} if volumes else {})})
        assert bool(evaluated(condition, {"object": json_to_cel(given)})) != comes


@pytest.mark.parametrize(("label", "level"), [("", "auto"), ("true", "auto"), ("stats", "stats")])
def test_the_namespaces_label_gives_the_level_of_pods_that_say_nothing(label: str, level: str) -> None:
    given = pod("p", spec={"containers": [GPU]})
    acts, variables = found_in(given, part="namespaces", labels={PROFILE_LABEL: label}, declared="")
    assert acts
    assert str(variables["level"]) == level


IN_ENV = [{"name": "PYTHONPATH", "value": "/own"}]


@pytest.mark.parametrize(
    "given",
    [
        pod("no-gpu"),
        pod("zero", spec={"containers": [ZERO]}),
        pod("gpu", spec={"containers": [{"name": "side"}, GPU]}),
        pod("by-env", spec={"containers": [{**GPU, "env": IN_ENV}]}),
        pod("by-empty-env", spec={"containers": [{**GPU, "env": [{"name": "PYTHONPATH"}]}]}),
        pod("says-too-much", spec={"containers": [GPU]}, annotations={IMAGE_PYTHONPATH: "/x" * 2000}),
        pod("from-elsewhere", spec={"containers": [{**GPU, "envFrom": [{}]}]}),
        pod("says-it", spec={"containers": [{**GPU, "envFrom": [{}]}]}, annotations={IMAGE_PYTHONPATH: "/app"}),
        pod("named", annotations={CONTAINERS: "main"}),
    ],
    ids=lambda given: given["metadata"]["name"],
)
@pytest.mark.parametrize("declared", [None, "", "/opt/lib"])
def test_for_its_namespaces_sake_the_policy_touches_the_pods_that_the_webhook_touches(
    given: dict[str, Any], declared: str | None
) -> None:
    said = {"labels": {PROFILE_LABEL: "auto"}}
    said |= {} if declared is None else {"annotations": {IMAGE_PYTHONPATH: declared}}
    outcome = plan_injection(given, namespace="team", namespace_metadata=said, options=InjectionOptions("i"))
    acts, variables = found_in(given, part="namespaces", labels=said["labels"], declared=declared)
    assert acts == isinstance(outcome, Injection)
    if isinstance(outcome, Injection):
        after: Any = patched(given, outcome.operations, Patch.JSON)
        assert list(map(str, variables["runFolders"])) == after["spec"]["initContainers"][0]["args"]
        paths = dict(zip((one["name"] for one in given["spec"]["containers"]), map(str, variables["paths"])))
        for one in after["spec"]["containers"]:
            assert [env["value"] for env in one.get("env", ()) if env["name"] == "PYTHONPATH"] == (
                [paths[one["name"]]] if one["name"] in variables["runFolders"] else []
            )


READ_ONLY_SOURCES: tuple[dict[str, Any], ...] = (
    {"configMap": {}},
    {"image": {}},
    {"persistentVolumeClaim": {"readOnly": True}},
    {"csi": {"readOnly": True}},
)
WRITABLE_SOURCES: tuple[dict[str, Any], ...] = ({"emptyDir": {}}, {"hostPath": {}}, {"persistentVolumeClaim": {}})


def with_volume_at(place: str, source: Mapping[str, Any], **mount: Any) -> dict[str, Any]:
    container = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": place, **mount}]}
    return {"volumes": [{"name": "v", **source}], "containers": [container]}


@pytest.mark.parametrize(
    "spec",
    [
        {"volumes": [{"name": VOLUME}]},
        {"initContainers": [{"name": INIT_CONTAINER}]},
        {"containers": [{"name": INIT_CONTAINER}]},
        *(with_volume_at(place, {"emptyDir": {}}) for place in (
            "/tidegauge", "tidegauge", "//tidegauge/x", "/run/tidegauge/x", "/var//run/tidegauge", "/opt/../run/x")),
        *(with_volume_at(place, {"emptyDir": {}}, readOnly=True) for place in ("/run/", "//run", "var/run", "/")),
        {"containers": [{"name": "main", "volumeDevices": [{"name": "d", "devicePath": "/run/tidegauge"}]}]},
        *(with_volume_at("/run", source) for source in READ_ONLY_SOURCES),
        {"containers": [{"name": "main", "env": [{"name": "PYTHONPATH", "valueFrom": {}}]}]},
    ],
)  # fmt: skip
def test_a_pod_in_which_something_of_ours_is_taken_is_left_alone(spec: dict[str, Any]) -> None:
    assert not found_in(asking("p", spec=spec))[0]


@pytest.mark.parametrize("source", WRITABLE_SOURCES, ids=lambda source: next(iter(source)))
@pytest.mark.parametrize("place", ["/run", "/running", "/srv/tidegauge", "/a..b"])
def test_a_volume_beside_our_places_is_no_reason_to_leave_a_pod_alone(place: str, source: dict[str, Any]) -> None:
    assert found_in(asking("p", spec=with_volume_at(place, source)))[0]


@pytest.fixture
def policies(kube: KubeTarget, admin: Connection, namespace: str) -> Iterator[None]:
    """The chart's policies in force for one namespace of a real API server."""
    if kube.emulator is not None:
        pytest.skip("the emulator has no MutatingAdmissionPolicy: TIDEGAUGE_TEST_KUBECONFIG names a real API server")
    if admin.ask("GET", f"{POLICIES}/mutatingadmissionpolicies").code == 404:
        pytest.skip("this API server has no MutatingAdmissionPolicy v1 (Kubernetes 1.36 and later)")
    objects = rendered(f"system-of-{namespace}", rbac={"namespaces": [namespace]})
    plurals = {"MutatingAdmissionPolicy": "ies", "MutatingAdmissionPolicyBinding": "ybindings"}
    paths = [f"{POLICIES}/mutatingadmissionpolic{plurals[one['kind']]}" for one in objects]
    try:
        for path, one in zip(paths, objects):
            admin.do("POST", path, one)
        eventually(lambda: INJECTED in (dry_run(admin, namespace, asking("look"))["metadata"].get("annotations") or {}))
        yield
    finally:
        for path, one in zip(paths, objects):
            admin.ask("DELETE", f"{path}/{one['metadata']['name']}")


@pytest.mark.usefixtures("policies")
def test_on_a_real_server_pods_come_out_as_from_the_webhook(admin: Connection, namespace: str) -> None:
    env = [{"name": "PYTHONPATH", "value": "/mine"}, {"name": "TIDEGAUGE_JOB_NAME", "value": "theirs"}]
    spec = {
        "containers": [{"name": "main", "image": "example.org/main:1", "env": env}],
        "initContainers": [{"name": "before", "image": "example.org/before:1"}],
    }
    given = asking("p", spec=spec, annotations={FRACTION: "0.5"}, labels={"job-name": "train"})
    options = InjectionOptions(PROBE_IMAGE, probe_resources=RESOURCES)
    outcome = plan_injection(given, namespace=namespace, namespace_metadata={}, options=options)
    assert isinstance(outcome, Injection)
    expected: Any = patched(given, outcome.operations, Patch.JSON)
    made = dry_run(admin, namespace, given)

    def variables(of: Any) -> dict[str, Any]:
        found = of["spec"]["containers"][0]["env"]
        return {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in found}

    assert variables(made) == variables(expected)
    ours = [one for one in made["spec"]["containers"][0]["volumeMounts"] if one["name"] == VOLUME]
    assert ours == expected["spec"]["containers"][0]["volumeMounts"]
    assert [one for one in made["spec"]["volumes"] if one["name"] == VOLUME] == [volume(VOLUME)]
    assert [one["name"] for one in made["spec"]["initContainers"]] == [INIT_CONTAINER, "before"]
    probe = probe_container(given["spec"], given["spec"]["containers"], VOLUME, options)
    first = made["spec"]["initContainers"][0]
    assert first["securityContext"] == probe["securityContext"]
    assert [first[name] for name in ("image", "command", "args")] == [probe[n] for n in ("image", "command", "args")]
    alone = dry_run(admin, namespace, asking("alone", spec={**pod("p")["spec"], "securityContext": {"runAsUser": 0}}))
    assert [one["name"] for one in alone["spec"]["initContainers"]] == [INIT_CONTAINER]
    assert alone["spec"]["initContainers"][0]["securityContext"]["runAsUser"] == PROBE_USER


REAL_PODS = [
    *(one for one in PODS if one["metadata"]["name"]),  # of a generated name CEL cannot take the dash off
    pod("empty-path", spec={"containers": [{"name": "main", "env": [{"name": "PYTHONPATH"}]}]}),
    pod("long-path", annotations={IMAGE_PYTHONPATH: "/x" * 1100}),
    pod("long-places", annotations={CHECKPOINT_PATH: "/c" * 1100, "tidegauge.dev/checkpoint-signal": "USR1"}),
    *(pod(f"run-{next(iter(source)).lower()}", spec=with_volume_at("/run", source)) for source in WRITABLE_SOURCES),
]


def valid(given: Mapping[str, Any]) -> dict[str, Any]:
    """With all that a server wants of a pod and the samples leave out."""
    made: dict[str, Any] = copy.deepcopy(dict(given))
    metadata, spec = made["metadata"], made["spec"]
    metadata["labels"] = {**metadata.get("labels", {}), PROFILE_LABEL: ""}
    if not metadata.get("name"):
        metadata.pop("name", None)
    for container in spec["containers"]:
        container.setdefault("image", "example.org/main:1")
        if container.get("resources", {}).get("claims"):
            spec["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    sources = {
        "configMap": {"name": "c"},
        "image": {"reference": "example.org/data:1"},
        "persistentVolumeClaim": {"claimName": "c"},
        "csi": {"driver": "example.org"},
        "hostPath": {"path": "/srv"},
    }
    for one in spec.get("volumes", ()):
        for source, needed in sources.items():
            if source in one:
                one[source] = {**needed, **one[source]}
    return made


@pytest.mark.usefixtures("policies")
def test_on_a_real_server_the_policy_acts_as_the_webhook_would(admin: Connection, namespace: str) -> None:
    options, differing = InjectionOptions(PROBE_IMAGE, probe_resources=RESOURCES), {}
    for given in map(valid, REAL_PODS):
        outcome = plan_injection(given, namespace=namespace, namespace_metadata={}, options=options)
        after = patched(given, outcome.operations, Patch.JSON) if isinstance(outcome, Injection) else given
        made, expected = essence(dry_run(admin, namespace, given)), essence(after)
        if made != expected:
            differing[given["metadata"].get("name", "generated")] = (made, expected)
    assert differing == {}


@pytest.mark.usefixtures("policies")
def test_on_a_real_server_a_pod_whose_run_cannot_be_written_is_left_alone(admin: Connection, namespace: str) -> None:
    for source in READ_ONLY_SOURCES:
        given = valid(pod("p", spec=with_volume_at("/run", source)))
        assert not essence(dry_run(admin, namespace, given)).is_injected, source


class Essence(NamedTuple):
    """What of a pod is the injection's."""

    is_injected: bool
    told: Any
    mounts: Any
    probes: Any
    """Their arguments."""


def essence(of: Any) -> Essence:
    containers = of["spec"]["containers"]
    return Essence(
        INJECTED in annotations_of(of),
        [{one["name"]: one.get("value") or one.get("valueFrom") for one in each.get("env", ())} for each in containers],
        [[one for one in each.get("volumeMounts", ()) if one["name"] == VOLUME] for each in containers],
        [one["args"] for one in of["spec"].get("initContainers", ()) if one["name"] == INIT_CONTAINER],
    )


@pytest.mark.usefixtures("policies")
def test_on_a_real_server_a_labelled_namespace_watches_its_pods_and_off_does_not(
    admin: Connection, namespace: str
) -> None:
    admin.do(
        "PATCH", f"/api/v1/namespaces/{namespace}",
        {"metadata": {"labels": {PROFILE_LABEL: "dormant"}, "annotations": {IMAGE_PYTHONPATH: ""}}},
        content_type="application/merge-patch+json",
    )  # fmt: skip
    gpu = {"containers": [{**GPU, "image": "i"}]}

    def level() -> str | None:
        made = dry_run(admin, namespace, pod("p", spec=gpu))
        found = {one["name"]: one.get("value") for one in made["spec"]["containers"][0].get("env") or []}
        return found.get("TIDEGAUGE_PROFILE")

    assert eventually(level) == "dormant"
    assert dry_run(admin, namespace, pod("p", spec=gpu))["metadata"]["labels"][PROFILE_LABEL] == "dormant"
    assert INJECTED not in (dry_run(admin, namespace, pod("p"))["metadata"].get("annotations") or {})
    off = pod("p", spec=gpu, labels={PROFILE_LABEL: "off"})
    assert INJECTED not in (dry_run(admin, namespace, off)["metadata"].get("annotations") or {})
