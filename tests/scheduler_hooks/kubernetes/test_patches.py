"""Patches of workloads change what they say and nothing else, whatever else is in the object."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kube_patches import patched
from scheduler_hooks.kubernetes.workload_samples import workload
from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, ENDED, INCIDENT, REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, RequeueOrder, decode_changes, encode
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, PYTORCHJOB, TRAINJOB, OwnerKind, at
from tidegauge_scheduler_hooks.kubernetes.patches import annotate_patch, resume_patch, suspend_patch
from tidegauge_scheduler_hooks.kubernetes.ports import Patch
from tidegauge_scheduler_hooks.kubernetes.workloads import template_attempt

ORDER = RequeueOrder("d-1", 3, "leaks", 1.5, "m", {"TIDEGAUGE_A": "1"}, {"expandable_segments": "True"})
MANAGED = (ATTEMPT, CHANGES, REQUEUE, STOPPED, INCIDENT)
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))

values = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=6,
)
"""What a field of a user's object may hold."""


def stored(kind: OwnerKind, /, **spec: Any) -> Any:
    obj = workload(kind.name, "train")
    obj["metadata"].update(uid="u-1", resourceVersion="7")
    obj["spec"].update(spec)
    if kind is TRAINJOB:
        obj["status"] = {"jobsStatus": [{"name": "node"}, {"name": "dataset-initializer"}]}
    return obj


def applied(obj: Any, patch: Any) -> Any:
    return patched(obj, patch, Patch.MERGE)


def without_ours(kind: OwnerKind, obj: Any) -> Any:
    """The object as it would be had nobody touched what we may touch."""
    rest = copy.deepcopy(obj)
    holder = rest["spec"].get("runPolicy", {}) if kind is PYTORCHJOB else rest["spec"]
    holder.pop("suspend", None)
    patches = rest["spec"].pop("runtimePatches", ())
    rest["theirs"] = [entry for entry in patches if entry["manager"] != "tidegauge.dev/controller"]
    for one in [rest, *(at(rest, path) for path in kind.templates(rest))]:
        annotations = one["metadata"].get("annotations") or {}
        one["metadata"]["annotations"] = {name: text for name, text in annotations.items() if name not in MANAGED}
    return rest


@every_kind
@given(extra=st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), values, max_size=4))
def test_suspending_and_resuming_change_nothing_else(kind: OwnerKind, extra: dict[str, Any]) -> None:
    kept = {name: value for name, value in extra.items() if name not in workload(kind.name, "x")["spec"]}
    obj = stored(kind, **{name: value for name, value in kept.items() if name not in ("suspend", "runtimePatches")})
    suspended = applied(obj, suspend_patch(kind, obj, {REQUEUE: encode(ORDER)}))
    assert kind.suspend is not None
    assert at(suspended, kind.suspend) is True
    resumed = applied(suspended, resume_patch(kind, suspended, ORDER))
    assert at(resumed, kind.suspend) is False
    assert REQUEUE not in resumed["metadata"]["annotations"]
    assert without_ours(kind, obj) == without_ours(kind, suspended) == without_ours(kind, resumed)


@every_kind
def test_every_template_says_which_attempt_it_is_and_what_changes(kind: OwnerKind) -> None:
    obj = stored(kind)
    resumed = applied(obj, resume_patch(kind, obj, ORDER))
    assert template_attempt(kind, obj) == 0
    assert template_attempt(kind, resumed) == 3
    assert resumed["metadata"]["annotations"][ATTEMPT] == "3"
    for path in kind.templates(resumed):
        assert decode_changes(at(resumed, path)["metadata"]["annotations"][CHANGES]) == ORDER.changes


@every_kind
def test_every_patch_is_for_one_version_alone(kind: OwnerKind) -> None:
    obj = stored(kind)
    patches = [suspend_patch(kind, obj, {}), resume_patch(kind, obj, ORDER), annotate_patch(obj, {REQUEUE: None})]
    assert [patch["metadata"]["resourceVersion"] for patch in patches] == ["7", "7", "7"]


def test_resume_patch_merges_remembered_changes_with_the_order() -> None:
    obj = stored(KINDS["Job"])
    obj["metadata"]["annotations"][CHANGES] = encode(Changes({"TIDEGAUGE_MEMORY_FRACTION": "0.5"}))
    resumed = applied(obj, resume_patch(KINDS["Job"], obj, ORDER))
    wanted = decode_changes(resumed["metadata"]["annotations"][CHANGES])
    assert wanted.environ == {"TIDEGAUGE_MEMORY_FRACTION": "0.5", "TIDEGAUGE_A": "1"}


def test_a_train_job_keeps_others_patches_and_gets_ours_for_the_jobs_of_its_runtime() -> None:
    theirs = {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {}}
    obj = stored(TRAINJOB, runtimePatches=[theirs])
    once = applied(obj, resume_patch(TRAINJOB, obj, ORDER))
    twice = applied(once, resume_patch(TRAINJOB, once, ORDER))
    assert twice["spec"]["runtimePatches"] == once["spec"]["runtimePatches"]
    first, ours = once["spec"]["runtimePatches"]
    assert first == theirs
    jobs = ours["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert [job["name"] for job in jobs] == ["node", "dataset-initializer"]
    assert "spec" not in jobs[0]["template"]["spec"]["template"], "its webhook refuses variables of node"


def test_with_kueue_the_object_itself_is_not_suspended_and_keeps_the_order_until_the_end() -> None:
    obj = stored(KINDS["Job"], suspend=False)
    ordered = applied(obj, suspend_patch(KINDS["Job"], obj, {REQUEUE: encode(ORDER)}, by_kueue=True))
    assert ordered["spec"] == obj["spec"]
    evicted = {**ordered, "spec": {**ordered["spec"], "suspend": True}}
    resumed = applied(evicted, resume_patch(KINDS["Job"], evicted, ORDER, by_kueue=True))
    assert resumed["spec"]["suspend"] is True
    assert REQUEUE in resumed["metadata"]["annotations"]
    assert template_attempt(KINDS["Job"], resumed) == 3


def test_without_templates_only_the_object_itself_changes() -> None:
    obj = stored(KINDS["Job"], suspend=True)
    resumed = applied(obj, resume_patch(KINDS["Job"], obj, ORDER, templates=False))
    assert resumed["spec"] == {**obj["spec"], "suspend": False}
    assert resumed["metadata"]["annotations"][ATTEMPT] == "3"


def test_a_new_run_begins_without_what_was_said_of_the_last() -> None:
    obj = stored(KINDS["Job"])
    obj["metadata"]["annotations"].update({INCIDENT: "leaks", STOPPED: "{}", ENDED: "completed after 3 h"})
    assert not {INCIDENT, STOPPED, ENDED} & set(
        applied(obj, resume_patch(KINDS["Job"], obj, ORDER))["metadata"]["annotations"]
    )
