"""The environment of watched containers: shares, fractions, PYTHONPATH, owners' variables and a policy's changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from scheduler_hooks.kubernetes.injection_pods import Pod, environ, injected, plan, pod
from tidegauge.core.jobs.kubernetes import CHANGES, FRACTION, IMAGE_PYTHONPATH
from tidegauge_scheduler_hooks.kubernetes.injection import names
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions

SHARED = {"name": "main", "resources": {"limits": {"nvidia.com/gpu.shared": 1}}}
WHOLE = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1}}}
HAMI = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}}}


@pytest.mark.parametrize(
    ("container", "annotations", "replicas", "share", "fraction"),
    [
        (WHOLE, {}, 4, None, None),
        (WHOLE, {FRACTION: "0.5"}, None, None, "0.5"),
        (WHOLE, {FRACTION: "2"}, None, None, None),
        (SHARED, {}, 4, "0.25", "0.234375"),
        (SHARED, {}, None, None, None),
        (SHARED, {}, 1, "1", None),
        (SHARED, {FRACTION: "0.1"}, 4, "0.25", "0.1"),
        (WHOLE, {"gpu-fraction": "0.5"}, None, "0.5", "0.46875"),
        (WHOLE, {"gpu-fraction": "half"}, None, None, None),
        (HAMI, {}, None, None, None),
    ],
)
def test_the_fraction_follows_from_the_annotation_or_the_share(
    container: Pod, annotations: Pod, replicas: int | None, share: str | None, fraction: str | None
) -> None:
    given_pod = pod(copy.deepcopy(container))
    given_pod["metadata"]["annotations"] = annotations
    options = InjectionOptions("i", shared_gpu_replicas=replicas)
    found = environ(injected(given_pod, options=options))
    assert (found.get("TIDEGAUGE_GPU_SHARE"), found.get("TIDEGAUGE_MEMORY_FRACTION")) == (share, fraction)
    assert bool(plan(given_pod, options=options).warnings) == (annotations.get(FRACTION) == "2")


ENTRY = names.PYTHONPATH_ENTRY


@pytest.mark.parametrize(
    ("theirs", "image", "outcome"),
    [
        ([], None, ENTRY),
        ([], "/app:/lib", f"{ENTRY}:/app:/lib"),
        ([{"name": "PYTHONPATH", "value": "/mine"}], "/app", f"{ENTRY}:/mine"),
        ([{"name": "PYTHONPATH", "value": ":/mine"}], None, f"{ENTRY}::/mine"),
        ([{"name": "PYTHONPATH"}], None, ENTRY),
        ([{"name": "PYTHONPATH", "value": "/first"}, {"name": "PYTHONPATH", "value": "/last"}], None, f"{ENTRY}:/last"),
        ([{"name": "PYTHONPATH", "value": f"/mine:{ENTRY}"}], None, f"/mine:{ENTRY}"),
    ],
)
def test_the_probe_goes_before_the_owners_pythonpath(theirs: list[Pod], image: str | None, outcome: str) -> None:
    given_pod = pod({"name": "main", "env": theirs})
    given_pod["metadata"]["annotations"] = {} if image is None else {IMAGE_PYTHONPATH: image}
    assert environ(injected(given_pod))["PYTHONPATH"] == outcome


def test_a_pythonpath_from_elsewhere_is_joined_where_it_was() -> None:
    source = {"configMapKeyRef": {"name": "paths", "key": "python"}}
    env = [{"name": "PYTHONPATH", "valueFrom": source}, {"name": "ALSO", "value": "$(PYTHONPATH):/more"}]
    found = injected(pod({"name": "main", "env": env}))["spec"]["containers"][0]["env"]
    assert found[:3] == [
        {"name": "TIDEGAUGE_OWN_PYTHONPATH", "valueFrom": source},
        {"name": "PYTHONPATH", "value": f"{ENTRY}:$(TIDEGAUGE_OWN_PYTHONPATH)"},
        {"name": "ALSO", "value": "$(PYTHONPATH):/more"},
    ]


def test_the_helper_variable_has_another_name_where_the_owner_uses_it() -> None:
    source = {"configMapKeyRef": {"name": "paths", "key": "python"}}
    env = [{"name": "TIDEGAUGE_OWN_PYTHONPATH", "value": "x"}, {"name": "PYTHONPATH", "valueFrom": source}]
    found = injected(pod({"name": "main", "env": env}))["spec"]["containers"][0]["env"]
    assert found[:3] == [
        env[0],
        {"name": "TIDEGAUGE_OWN_PYTHONPATH_1", "valueFrom": source},
        {"name": "PYTHONPATH", "value": f"{ENTRY}:$(TIDEGAUGE_OWN_PYTHONPATH_1)"},
    ]


def test_the_owner_is_told_that_a_pythonpath_may_be_hidden() -> None:
    outcome = plan(pod({"name": "main", "envFrom": [{"configMapRef": {"name": "all"}}]}))
    assert outcome.warnings == ("container main: a PYTHONPATH from envFrom is overridden: set it in env",)


def test_variables_of_the_owner_stay() -> None:
    env = [
        {"name": "TIDEGAUGE_PROFILE", "value": "off"},
        {"name": "TIDEGAUGE_JOB_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "OTHER", "value": "x"},
    ]
    found = injected(pod({"name": "main", "env": env}))["spec"]["containers"][0]["env"]
    assert found[:3] == env
    assert [one["name"] for one in found].count("TIDEGAUGE_JOB_NAME") == 1


def changed(env: list[Pod], **changes: Any) -> Any:
    return injected(pod({"name": "main", "env": env}, changes=json.dumps({"environ": {}, "alloc_conf": {}} | changes)))


def test_injection_environment_lets_policy_settings_override_the_owners() -> None:
    after = changed(
        [{"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "max_split_size_mb:64"}, {"name": "TIDEGAUGE_X", "value": "1"}],
        alloc_conf={"expandable_segments": "True"},
        environ={"TIDEGAUGE_X": "2"},
    )
    found = environ(after)
    assert found["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64,expandable_segments:True"
    assert found["TIDEGAUGE_X"] == "2"
    every_name = [one["name"] for one in after["spec"]["containers"][0]["env"]]
    assert len(every_name) == len(set(every_name))


@pytest.mark.parametrize(("theirs", "ours", "outcome"), [("0.5", "0.8", "0.5"), ("0.8", "0.5", "0.5")])
def test_of_two_fractions_the_smaller_counts(theirs: str, ours: str, outcome: str) -> None:
    after = changed(
        [{"name": "TIDEGAUGE_MEMORY_FRACTION", "value": theirs}], environ={"TIDEGAUGE_MEMORY_FRACTION": ours}
    )
    assert environ(after)["TIDEGAUGE_MEMORY_FRACTION"] == outcome


def test_allocator_settings_that_cannot_be_read_are_not_thrown_away() -> None:
    env = [{"name": "PYTORCH_CUDA_ALLOC_CONF", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    given_pod = pod({"name": "main", "env": env}, changes='{"environ": {}, "alloc_conf": {"a": "b"}}')
    assert injected(given_pod)["spec"]["containers"][0]["env"][0] == env[0]
    assert "PYTORCH_CUDA_ALLOC_CONF is set by valueFrom" in plan(given_pod).warnings[0]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "[" * 10000, '{"environ": {"LD_PRELOAD": "x"}, "alloc_conf": {}}', " " * 20000,
     '{"environ": {"TIDEGAUGE_X": 1}, "alloc_conf": {}}'],
)  # fmt: skip
def test_changes_that_may_not_be_made_are_ignored_with_a_warning(text: str) -> None:
    given_pod = pod(changes=text)
    assert set(environ(injected(given_pod))) == set(environ(injected(pod())))
    assert plan(given_pod).warnings[0].startswith(f"annotation {CHANGES} is ignored")
