"""What is put into pods of all shapes: the patch is applied, and the pod that comes out is looked at."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kube_patches import patched
from scheduler_hooks.kubernetes.injection_pods import ONE_GPU, Pod, environ, injected, plan, pod
from tidegauge.core.jobs.kubernetes import (
    CHANGES,
    CHECKPOINT_PATH,
    CHECKPOINT_SIGNAL,
    CONTAINERS,
    FRACTION,
    IMAGE_PYTHONPATH,
    INJECTED,
    PROFILE_LABEL,
)
from tidegauge.probe.activation import launch
from tidegauge.probe.levels import LEVELS as PROBE_LEVELS
from tidegauge_scheduler_hooks.kubernetes.injection import names
from tidegauge_scheduler_hooks.kubernetes.injection.plan import MAX_WATCHED, Injection, Skipped
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.ports import Patch


def test_a_plain_pod_gets_volume_init_container_mounts_and_environment() -> None:
    after = injected(pod())
    assert after["metadata"]["annotations"] == {INJECTED: "1"}
    assert after["spec"]["volumes"] == [{"name": "tidegauge", "emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}]
    assert after["spec"]["initContainers"] == [
        {
            "name": "tidegauge-probe",
            "image": "registry.example/tidegauge-probe:1",
            "command": ["/probe/install-probe.sh", "/target"],
            "args": ["main"],
            "resources": {},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "privileged": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumeMounts": [{"name": "tidegauge", "mountPath": "/target"}],
        }
    ]
    assert after["spec"]["containers"][0]["volumeMounts"] == [
        {"name": "tidegauge", "mountPath": "/tidegauge", "subPath": "probe", "readOnly": True},
        {"name": "tidegauge", "mountPath": "/run/tidegauge", "subPath": "run/main"},
    ]
    fields = {
        one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in after["spec"]["containers"][0]["env"]
        if "valueFrom" in one
    }
    assert fields == {
        "TIDEGAUGE_POD_NAMESPACE": "metadata.namespace",
        "TIDEGAUGE_POD": "metadata.name",
        "TIDEGAUGE_POD_UID": "metadata.uid",
    }
    assert {name: value for name, value in environ(after).items() if name not in fields} == {
        "TIDEGAUGE_PROFILE": "auto",
        "TIDEGAUGE_JOB_ID": "team/train-0",
        "TIDEGAUGE_JOB_NAME": "train-0",
        "TIDEGAUGE_ATTEMPT": "0",
        "TIDEGAUGE_CONTAINER": "main",
        "PYTHONPATH": "/tidegauge/tidegauge/probe/activation/pythonpath",
    }


def test_the_names_are_those_of_the_probe() -> None:
    assert names.LEVELS == PROBE_LEVELS
    assert launch.PYTHONPATH_FOLDER.endswith(names.PYTHONPATH_ENTRY.removeprefix(names.PROBE_FOLDER))


@pytest.mark.parametrize(
    ("label", "namespace", "level"),
    [
        ("stats", None, "stats"),
        ("", None, "auto"),
        ("true", "trace", "auto"),
        (None, "dormant", "dormant"),
        ("TRACE", None, "trace"),
    ],
)
def test_the_pods_label_counts_before_its_namespaces(label: str | None, namespace: str | None, level: str) -> None:
    labels = {} if label is None else {PROFILE_LABEL: label}
    given_pod = pod({"name": "main", "resources": ONE_GPU}, labels=labels)
    outcome = plan(given_pod, namespace=None if namespace is None else {PROFILE_LABEL: namespace}, declared="")
    assert isinstance(outcome, Injection)
    assert environ(patched(given_pod, outcome.operations, Patch.JSON))["TIDEGAUGE_PROFILE"] == level


@pytest.mark.parametrize(
    ("label", "namespace", "reason"),
    [(None, None, "not_asked"), ("off", "auto", "off"), (None, "off", "off"), ("yes", "auto", "bad_level")],
)
def test_a_pod_that_does_not_ask_is_left_alone(label: str | None, namespace: str | None, reason: str) -> None:
    outcome = plan(
        pod(labels={} if label is None else {PROFILE_LABEL: label}),
        namespace=None if namespace is None else {PROFILE_LABEL: namespace},
    )
    assert isinstance(outcome, Skipped)
    assert outcome.reason == reason
    assert bool(outcome.warnings) == (reason == "bad_level")


@pytest.mark.parametrize("labels", [{}, {"app": "train"}])
def test_a_pod_that_is_watched_for_its_namespaces_sake_is_labelled_so(labels: dict[str, str]) -> None:
    given_pod = pod({"name": "main", "resources": ONE_GPU}, labels=labels)
    outcome = plan(given_pod, namespace={PROFILE_LABEL: "true"}, declared="")
    after: Any = patched(given_pod, outcome.operations, Patch.JSON)
    assert after["metadata"]["labels"] == {**labels, PROFILE_LABEL: "auto"}
    assert injected(pod(labels={PROFILE_LABEL: ""}))["metadata"]["labels"] == {PROFILE_LABEL: ""}


def test_an_injected_pod_is_not_touched_again() -> None:
    assert plan(injected(pod())) == Skipped("injected_before")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"os": {"name": "windows"}}, "windows"),
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, "windows"),
        ({"containers": []}, "nothing_to_watch"),
    ],
)
def test_pods_that_cannot_be_watched_are_left_alone(change: Pod, reason: str) -> None:
    given_pod = pod()
    given_pod["spec"].update(change)
    assert plan(given_pod) == Skipped(reason)


def test_the_probe_comes_before_other_init_containers_and_volumes_stay() -> None:
    given_pod = pod({"name": "main", "volumeMounts": [{"name": "data", "mountPath": "/data"}]})
    given_pod["spec"]["initContainers"] = [{"name": "proxy", "restartPolicy": "Always"}]
    given_pod["spec"]["volumes"] = [{"name": "data", "emptyDir": {}}]
    after = injected(given_pod)
    assert [one["name"] for one in after["spec"]["initContainers"]] == ["tidegauge-probe", "proxy"]
    assert [one["name"] for one in after["spec"]["volumes"]] == ["data", "tidegauge"]
    assert [one["mountPath"] for one in after["spec"]["containers"][0]["volumeMounts"]] == [
        "/data",
        "/tidegauge",
        "/run/tidegauge",
    ]


def test_names_that_the_owner_uses_are_not_used_again() -> None:
    given_pod = pod({"name": "tidegauge-probe"})
    given_pod["spec"]["volumes"] = [{"name": "tidegauge"}, {"name": "tidegauge-1"}]
    given_pod["spec"]["initContainers"] = [{"name": "tidegauge-probe-1"}]
    after = injected(given_pod)
    assert after["spec"]["initContainers"][0]["name"] == "tidegauge-probe-2"
    assert after["spec"]["initContainers"][0]["volumeMounts"][0]["name"] == "tidegauge-2"
    assert after["spec"]["volumes"][2]["name"] == "tidegauge-2"


@pytest.mark.parametrize(
    ("place", "read_only", "run_dir"),
    [
        ("/run", False, True),
        ("/run", True, False),
        ("/var/run/", True, False),
        ("/run/tidegauge", False, False),
        ("/run/tidegauge/x", False, False),
        ("//run/tidegauge", False, False),
        ("//run", True, False),
        ("run", True, False),
        ("/running", True, True),
    ],
)
def test_a_run_directory_that_cannot_be_mounted_is_left_out(place: str, read_only: bool, run_dir: bool) -> None:
    mount = {"name": "theirs", "mountPath": place, "readOnly": read_only}
    after = injected(pod({"name": "main", "volumeMounts": [mount]}))
    places = [one["mountPath"] for one in after["spec"]["containers"][0]["volumeMounts"]]
    assert places == [place, "/tidegauge", *(["/run/tidegauge"] if run_dir else [])]


@pytest.mark.parametrize(
    ("source", "run_dir"),
    [
        ({"emptyDir": {}}, True),
        ({"persistentVolumeClaim": {"claimName": "c"}}, True),
        ({"persistentVolumeClaim": {"claimName": "c", "readOnly": True}}, False),
        ({"nfs": {"server": "s", "path": "/", "readOnly": True}}, False),
        ({"configMap": {"name": "c"}}, False),
        ({"secret": {"secretName": "s"}}, False),
        ({"projected": {"sources": []}}, False),
        ({"downwardAPI": {"items": []}}, False),
        ({"image": {"reference": "i"}}, False),
    ],
)
def test_a_volume_that_is_read_only_by_itself_leaves_the_run_directory_out(source: Pod, run_dir: bool) -> None:
    given_pod = pod({"name": "main", "volumeMounts": [{"name": "theirs", "mountPath": "/run"}]})
    given_pod["spec"]["volumes"] = [{"name": "theirs", **source}]
    places = [one["mountPath"] for one in injected(given_pod)["spec"]["containers"][0]["volumeMounts"]]
    assert places == ["/run", "/tidegauge", *(["/run/tidegauge"] if run_dir else [])]


@pytest.mark.parametrize(("place", "run_dir"), [("/run/tidegauge", False), ("/dev/xvda", True)])
def test_a_block_device_takes_its_place_as_a_mount_does(place: str, run_dir: bool) -> None:
    device = {"name": "disk", "devicePath": place}
    after = injected(pod({"name": "main", "volumeDevices": [device]}))
    places = [one["mountPath"] for one in after["spec"]["containers"][0]["volumeMounts"]]
    assert places == ["/tidegauge", *(["/run/tidegauge"] if run_dir else [])]
    outcome = plan(pod({"name": "main", "volumeDevices": [{**device, "devicePath": "/tidegauge"}]}))
    assert outcome.warnings == ("container main has a volume at /tidegauge: it is not watched",)


@pytest.mark.parametrize("place", ["//tidegauge", "tidegauge", "/opt/../tidegauge/"])
def test_the_probes_place_is_known_however_it_is_written(place: str) -> None:
    outcome = plan(pod({"name": "main", "volumeMounts": [{"name": "theirs", "mountPath": place}]}))
    assert outcome.warnings == ("container main has a volume at /tidegauge: it is not watched",)


def test_every_watched_container_has_a_run_directory_of_its_own_and_others_have_none() -> None:
    after = injected(pod({"name": "a"}, {"name": "b"}, {"name": "c"}, containers="c,a"))
    assert after["spec"]["initContainers"][0]["args"] == ["a", "c"]
    parts = [[mount["subPath"] for mount in one.get("volumeMounts", [])] for one in after["spec"]["containers"]]
    assert parts == [["probe", "run/a"], [], ["probe", "run/c"]]


def test_a_container_with_a_volume_at_our_place_is_not_watched() -> None:
    taken = {"name": "main", "volumeMounts": [{"name": "x", "mountPath": "/tidegauge"}]}
    outcome = plan(pod(taken))
    assert isinstance(outcome, Skipped)
    assert outcome.reason == "nothing_to_watch"
    assert outcome.warnings == ("container main has a volume at /tidegauge: it is not watched",)
    after = injected(pod(taken, {"name": "other"}))
    assert "env" not in after["spec"]["containers"][0]
    assert "env" in after["spec"]["containers"][1]


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"nvidia.com/gpu": "8"}},
        {"requests": {"nvidia.com/mig-1g.10gb": 1}},
        {"limits": {"amd.com/gpu": "1"}},
        {"claims": [{"name": "gpu"}]},
    ],
)
def test_containers_with_gpus_are_watched_and_others_are_not(resources: Pod) -> None:
    after = injected(
        pod({"name": "sidecar"}, {"name": "none", "resources": {"limits": {"nvidia.com/gpu": "0"}}},
            {"name": "main", "resources": resources})
    )  # fmt: skip
    assert ["env" in one for one in after["spec"]["containers"]] == [False, False, True]


def test_for_its_namespaces_sake_a_pod_without_a_gpu_is_left_alone_unless_it_names_containers() -> None:
    database = pod({"name": "main", "resources": {"limits": {"cpu": "1"}}}, labels={})
    assert plan(database, namespace={PROFILE_LABEL: "auto"}, declared="") == Skipped("no_gpu")
    named = pod({"name": "main"}, {"name": "side"}, labels={}, containers="main")
    outcome = plan(named, namespace={PROFILE_LABEL: "auto"}, declared="")
    after = patched(named, outcome.operations, Patch.JSON)
    assert ["env" in one for one in after["spec"]["containers"]] == [True, False]


IN_ENV = [{"name": "PYTHONPATH", "value": "/own"}]


@pytest.mark.parametrize(
    ("more", "on_pod", "on_namespace", "path"),
    [
        ({}, None, None, None),
        ({}, None, "", ""),
        ({}, None, "/opt/lib", ":/opt/lib"),
        ({}, "/app", "/opt/lib", ":/app"),
        ({}, "", None, ""),
        ({"env": IN_ENV}, None, None, ":/own"),
        ({"env": IN_ENV}, None, "/opt/lib", ":/own"),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, None, "/opt/lib", None),
        ({"envFrom": [{"configMapRef": {"name": "c"}}]}, "/app", None, ":/app"),
        ({}, "/a\n", "/opt/lib", None),
    ],
)
def test_for_its_namespaces_sake_no_pythonpath_of_an_image_is_hidden(
    more: Pod, on_pod: str | None, on_namespace: str | None, path: str | None
) -> None:
    annotations = {} if on_pod is None else {"pythonpath": on_pod}
    given_pod = pod({"name": "main", "resources": ONE_GPU, **more}, labels={}, **annotations)
    outcome = plan(given_pod, namespace={PROFILE_LABEL: "auto"}, declared=on_namespace)
    if path is None:
        assert isinstance(outcome, Skipped)
        assert outcome.reason == "image_unknown"
        assert "container main is not watched for its namespace's sake" in outcome.warnings[0]
    else:
        after = patched(given_pod, outcome.operations, Patch.JSON)
        assert environ(after)["PYTHONPATH"] == names.PYTHONPATH_ENTRY + path


@pytest.mark.parametrize("kind", ["configMapKeyRef", "secretKeyRef"])
@pytest.mark.parametrize("labels", [{}, {PROFILE_LABEL: "auto"}])
@pytest.mark.parametrize("declared", [None, "", "/opt/lib"])
def test_a_container_with_an_optional_pythonpath_is_left_alone_whoever_asks(
    labels: dict[str, str], kind: str, declared: str | None
) -> None:
    """Where its key is missing, the image's counts."""
    for optional, reason in ((True, "image_unknown"), (False, "")):
        source = {kind: {"name": "n", "key": "k", "optional": optional}}
        container = {"name": "main", "resources": ONE_GPU, "env": [{"name": "PYTHONPATH", "valueFrom": source}]}
        outcome = plan(pod(container, labels=labels), namespace={PROFILE_LABEL: "auto"}, declared=declared)
        assert outcome.reason == reason
        assert any("PYTHONPATH is from an optional key" in text for text in outcome.warnings) == optional


def test_beside_a_container_with_an_optional_pythonpath_the_others_are_watched() -> None:
    source = {"configMapKeyRef": {"name": "n", "key": "k", "optional": True}}
    given_pod = pod({"name": "a", "env": [{"name": "PYTHONPATH", "valueFrom": source}]}, {"name": "b"})
    assert plan(given_pod).warnings == (
        "container a is not watched: its PYTHONPATH is from an optional key; where that is missing, its image's "
        "counts. Set it without `optional`",
    )
    after = injected(given_pod)
    assert after["spec"]["initContainers"][0]["args"] == ["b"]
    assert after["spec"]["containers"][0] == given_pod["spec"]["containers"][0]


def test_for_its_own_labels_sake_a_pod_is_watched_whatever_its_image_sets_and_its_namespace_may_say_it() -> None:
    assert environ(injected(pod()))["PYTHONPATH"] == names.PYTHONPATH_ENTRY
    given_pod = pod()
    after = patched(given_pod, plan(given_pod, declared="/opt/lib").operations, Patch.JSON)
    assert environ(after)["PYTHONPATH"] == f"{names.PYTHONPATH_ENTRY}:/opt/lib"


def sidecars() -> list[Pod]:
    return [{"name": "setup"}, {"name": "log", "restartPolicy": "Always"},
            {"name": "server", "restartPolicy": "Always", "resources": ONE_GPU}]  # fmt: skip


@pytest.mark.parametrize(("annotations", "watched"), [({}, ["server"]), ({"containers": "log,main"}, ["main", "log"])])
def test_a_native_sidecar_is_watched_for_its_gpu_or_by_its_name(annotations: Any, watched: list[str]) -> None:
    given_pod = pod({"name": "main"}, **annotations)
    given_pod["spec"]["initContainers"] = sidecars()
    after = injected(given_pod)
    assert [one["name"] for one in after["spec"]["initContainers"]] == ["tidegauge-probe", "setup", "log", "server"]
    assert after["spec"]["initContainers"][0]["args"] == watched
    found = [one for part in ("containers", "initContainers") for one in after["spec"][part] if "env" in one]
    assert [one["name"] for one in found] == watched
    for one in found:
        assert one["volumeMounts"][1]["subPath"] == f"run/{one['name']}"


def test_a_container_that_ends_before_the_others_begin_is_no_sidecar() -> None:
    given_pod = pod({"name": "main"}, containers="setup")
    given_pod["spec"]["initContainers"] = sidecars()
    outcome = plan(given_pod)
    assert isinstance(outcome, Skipped)
    assert outcome.warnings == (
        f"annotation {CONTAINERS}: no container is named setup (main, log, server)",
        "no container of the pod is watched",
    )


def test_the_owner_may_name_the_containers() -> None:
    given_pod = pod({"name": "a"}, {"name": "b", "resources": {"limits": {"nvidia.com/gpu": 1}}}, containers=" a,z ")
    outcome = plan(given_pod)
    assert isinstance(outcome, Injection)
    assert outcome.warnings == (f"annotation {CONTAINERS}: no container is named z (a, b)",)
    after = patched(given_pod, outcome.operations, Patch.JSON)
    assert ["env" in one for one in after["spec"]["containers"]] == [True, False]


@pytest.mark.parametrize("blank", ["", "/", ",", " , "])
def test_an_annotation_that_names_no_container_of_the_pod_has_a_warning_that_nothing_is_watched(blank: str) -> None:
    outcome = plan(pod(containers=blank))
    assert outcome.reason == "nothing_to_watch"
    assert f"annotation {CONTAINERS}" in outcome.warnings[0]
    assert outcome.warnings[-1] == "no container of the pod is watched"


def test_a_pod_of_very_many_containers_stays_small() -> None:
    after = injected(pod(*({"name": f"c{number}"} for number in range(200))))
    assert sum("env" in one for one in after["spec"]["containers"]) == MAX_WATCHED


def test_the_init_container_asks_for_no_more_than_the_one_that_waits_for_it() -> None:
    resources = {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
        "limits": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"},
    }
    given_pod = pod({"name": "main", "resources": resources})
    same = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "0"}
    assert injected(given_pod)["spec"]["initContainers"][0]["resources"] == {"requests": same, "limits": same}
    none, small = {"nvidia.com/gpu": "0"}, {"cpu": "1", "memory": "64Mi"}
    options = InjectionOptions("i", probe_resources={"limits": small})
    found = injected(given_pod, options=options)["spec"]["initContainers"][0]["resources"]
    assert found == {"requests": none, "limits": small | none}


def test_the_init_container_asks_for_none_of_any_device_in_the_pod_so_that_no_limit_range_gives_it_some() -> None:
    """A LimitRange's ``max`` is the default of a container that does not name the device."""
    given_pod = pod(
        {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "rdma/hca": "1", "hugepages-2Mi": "4Mi"}}},
        {"name": "side", "resources": {"requests": {"nvidia.com/mig-1g.5gb": "1"}}},
    )
    given_pod["spec"]["initContainers"] = [{"name": "before", "resources": {"limits": {"amd.com/gpu": "1"}}}]
    none = dict.fromkeys(["amd.com/gpu", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "rdma/hca"], "0")
    assert injected(given_pod)["spec"]["initContainers"][0]["resources"] == {"requests": none, "limits": none}


HALF = {"requests": {"cpu": "1", "memory": "8Gi"}, "limits": {"cpu": "2", "memory": "8Gi"}}
EQUAL = {"requests": {"cpu": "8", "memory": "64Gi"}, "limits": {"cpu": "8", "memory": "64Gi"}}
LIMITS_ALONE = {"limits": {"cpu": "8", "memory": "64Gi"}}
SMALL = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}}


@pytest.mark.parametrize("whole", [EQUAL, LIMITS_ALONE])
@pytest.mark.parametrize(
    ("wanted", "amounts"),
    [
        (SMALL, SMALL["limits"]),
        ({"limits": {"memory": "64Mi"}}, {"cpu": "8", "memory": "64Mi"}),
        ({"requests": {"cpu": "10m"}}, {"cpu": "10m", "memory": "64Gi"}),
    ],
)
def test_a_guaranteed_pod_stays_one_whatever_the_admin_sets(
    whole: dict[str, Any], wanted: dict[str, Any], amounts: dict[str, str]
) -> None:
    options = InjectionOptions("i", probe_resources=wanted)
    after = injected(pod({"name": "main", "resources": whole}), options=options)
    assert after["spec"]["initContainers"][0]["resources"] == {"requests": amounts, "limits": amounts}


@pytest.mark.parametrize("other", [HALF, {"limits": {"cpu": "8"}}, {}])
def test_in_any_other_pod_the_init_container_has_what_the_admin_set(other: dict[str, Any]) -> None:
    given_pod = pod({"name": "main", "resources": EQUAL}, {"name": "side", "resources": other})
    after = injected(given_pod, options=InjectionOptions("i", probe_resources=SMALL))
    assert after["spec"]["initContainers"][0]["resources"] == SMALL


def test_a_pod_with_resources_of_its_own_has_its_class_by_them() -> None:
    given_pod = pod({"name": "main", "resources": EQUAL})
    given_pod["spec"]["resources"] = HALF
    after = injected(given_pod, options=InjectionOptions("i", probe_resources=SMALL))
    assert after["spec"]["initContainers"][0]["resources"] == SMALL


def test_a_claim_to_a_network_is_none_to_a_gpu_where_gpus_are_asked_for_by_name() -> None:
    gpu, claims = {"limits": {"nvidia.com/gpu": "1"}}, {"claims": [{"name": "nic"}]}
    containers: list[dict[str, Any]] = [
        {"name": "main", "resources": gpu},
        {"name": "proxy", "resources": claims},
        {"name": "logs"},
    ]
    by_name, by_claim = pod(*containers), pod(*containers[1:])
    assert ["env" in one for one in injected(by_name)["spec"]["containers"]] == [True, False, False]
    assert ["env" in one for one in injected(by_claim)["spec"]["containers"]] == [True, False]


@pytest.mark.parametrize(("user", "set_by_us"), [(None, False), (0, True), (1000, False)])
def test_the_init_container_is_never_root_and_else_names_no_user_for_an_scc_to_refuse(
    user: int | None, set_by_us: bool
) -> None:
    given_pod = pod()
    given_pod["spec"]["securityContext"] = {} if user is None else {"runAsUser": user}
    security = injected(given_pod)["spec"]["initContainers"][0]["securityContext"]
    assert security["runAsNonRoot"] is True
    assert ("runAsUser" in security) == set_by_us


@pytest.mark.parametrize(
    ("labels", "owner", "name"),
    [
        ({"jobset.sigs.k8s.io/jobset-name": "set", "batch.kubernetes.io/job-name": "set-workers-0"}, "set-workers-0",
         "set"),
        ({"training.kubeflow.org/job-name": "torch"}, "torch", "torch"),
        ({"ray.io/originated-from-cr-name": "ray", "ray.io/cluster": "ray-x7k2p"}, "ray-x7k2p", "ray"),
        ({"batch.kubernetes.io/job-name": "job"}, "job", "job"),
        ({"volcano.sh/job-name": "flow-train"}, None, "flow-train"),
        ({}, "some-owner", "some-owner"),
        ({}, None, "train-0"),
    ],
)  # fmt: skip
def test_the_job_is_claimed_from_what_controllers_wrote(labels: Pod, owner: str | None, name: str) -> None:
    given_pod = pod(labels={PROFILE_LABEL: "auto", **labels})
    if owner is not None:
        given_pod["metadata"]["ownerReferences"] = [{"name": "other"}, {"name": owner, "controller": True}]
    assert environ(injected(given_pod))["TIDEGAUGE_JOB_ID"] == f"team/{name}"


def test_a_pod_that_gets_its_name_later_is_called_by_the_beginning() -> None:
    given_pod = pod()
    given_pod["metadata"].update(name=None, generateName="train-")
    assert environ(injected(given_pod))["TIDEGAUGE_JOB_NAME"] == "train"


def test_attempts_of_tidegauge_and_of_the_jobset_add_up() -> None:
    labels = {PROFILE_LABEL: "auto", "jobset.sigs.k8s.io/restart-attempt": "2"}
    assert environ(injected(pod(labels=labels, attempt="3")))["TIDEGAUGE_ATTEMPT"] == "5"
    assert environ(injected(pod(labels=labels, attempt="-3")))["TIDEGAUGE_ATTEMPT"] == "2"


def test_checkpoint_words_become_variables_unless_they_cannot() -> None:
    good = pod(checkpoint_signal="USR1", checkpoint_path="/ckpt/$(RUN)")
    assert environ(injected(good))["TIDEGAUGE_CHECKPOINT_SIGNAL"] == "USR1"
    assert environ(injected(good))["TIDEGAUGE_CHECKPOINT_PATH"] == "/ckpt/$(RUN)"
    bad = pod(checkpoint_signal="USR1\n", checkpoint_path="/" * 3000)
    assert {"TIDEGAUGE_CHECKPOINT_SIGNAL", "TIDEGAUGE_CHECKPOINT_PATH"}.isdisjoint(environ(injected(bad)))
    assert len(plan(bad).warnings) == 2
    assert CHECKPOINT_SIGNAL in plan(bad).warnings[0]
    assert CHECKPOINT_PATH in plan(bad).warnings[1]


@pytest.mark.parametrize("word", ["USR1", "usr2", "SIGUSR1", "10", "RTMIN+3"])
def test_a_checkpoint_signal_that_the_probe_takes_has_no_warning(word: str) -> None:
    assert plan(pod(checkpoint_signal=word)).warnings == ()


@pytest.mark.parametrize("word", ["USR3", "0", "9", "SIGKILL", "stop", "term", "-10", "", "RTMIN-1"])
def test_any_other_checkpoint_signal_has_a_warning_and_the_pod_is_watched(word: str) -> None:
    given_pod = pod(checkpoint_signal=word)
    assert plan(given_pod).warnings == (
        f"annotation {CHECKPOINT_SIGNAL}={word!r} is not USR1, USR2, or a realtime signal such as RTMIN+3: no signal "
        "is sent for a checkpoint",
    )
    assert environ(injected(given_pod))["TIDEGAUGE_CHECKPOINT_SIGNAL"] == word  # of which the probe tells the head


@pytest.mark.parametrize("labels", [{PROFILE_LABEL: "auto"}, {}])
def test_a_pod_that_says_itself_that_it_was_injected_has_a_warning(labels: dict[str, str]) -> None:
    outcome = plan(pod(labels=labels, injected="1"), namespace={PROFILE_LABEL: "auto"})
    assert outcome == Skipped(
        "marked_before",
        (
            f"the pod is not watched: it has the annotation {INJECTED}, which Tidegauge writes, and nothing at "
            "/tidegauge. Remove the annotation from its template",
        ),
    )
    assert plan(pod(labels={}, injected="1")) == Skipped("not_asked")


texts = st.text(max_size=20)
variables = st.one_of(
    st.fixed_dictionaries({"name": st.sampled_from(["PYTHONPATH", "A", "TIDEGAUGE_JOB_ID"]), "value": texts}),
    st.fixed_dictionaries(
        {"name": st.sampled_from(["PYTHONPATH", "B", "TIDEGAUGE_PROFILE"]), "valueFrom": st.just({"fieldRef": {}})}
    ),
)
containers = st.builds(
    lambda env, place, limits: {
        "env": env, "volumeMounts": [{"name": "x", "mountPath": place}], "resources": {"limits": limits}
    },
    st.lists(variables, max_size=4),
    st.sampled_from(["/run", "/tidegauge", "/data", "/run/tidegauge"]),
    st.dictionaries(st.sampled_from(["cpu", "nvidia.com/gpu", "nvidia.com/gpu.shared"]), st.sampled_from(["0", "1"])),
)  # fmt: skip


@given(
    st.lists(containers, min_size=1, max_size=3),
    st.dictionaries(
        st.sampled_from([FRACTION, CONTAINERS, CHANGES, CHECKPOINT_PATH, IMAGE_PYTHONPATH, "gpu-fraction"]), texts
    ),
    texts,
)
def test_whatever_the_owner_wrote_stays_and_no_name_or_place_comes_twice(
    shapes: list[Pod], annotations: dict[str, str], level: str
) -> None:
    given_pod = pod(*({"name": f"c{number}", **shape} for number, shape in enumerate(shapes)))
    given_pod["metadata"].update(annotations=annotations, labels={PROFILE_LABEL: level if level else "auto"})
    outcome = plan(given_pod, options=InjectionOptions("i", shared_gpu_replicas=2))
    if isinstance(outcome, Skipped):
        return
    after = patched(given_pod, outcome.operations, Patch.JSON)
    for before, now in zip(given_pod["spec"]["containers"], after["spec"]["containers"]):
        places = [one["mountPath"] for one in now["volumeMounts"]]
        assert len(places) == len(set(places))
        theirs = [one for one in before["env"] if one["name"] != "PYTHONPATH"]
        assert [one for one in now["env"] if one in theirs] == theirs
        added = [one["name"] for one in now["env"] if one not in before["env"] and one["name"] != "PYTHONPATH"]
        assert len(added) == len(set(added))
    assert plan(after) == Skipped("injected_before")
