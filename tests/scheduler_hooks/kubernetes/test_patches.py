"""Patches of workloads change what they say and nothing else, whatever else is in the object."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.kube_patches import patched
from scheduler_hooks.kubernetes.workload_samples import workload
from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, ENDED, INCIDENT, REQUEUE, RESTARTING, STOPPED
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, RequeueOrder, decode_changes, decode_requeue, encode
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, PYTORCHJOB, OwnerKind, at
from tidegauge_scheduler_hooks.kubernetes.patches import annotate_patch, resume_patch, suspend_patch
from tidegauge_scheduler_hooks.kubernetes.ports import Patch

ORDER = RequeueOrder("d-1", 3, "leaks", 1.5, "m", {"TIDEGAUGE_A": "1"}, {"expandable_segments": "True"})
MANAGED = (ATTEMPT, CHANGES, REQUEUE, RESTARTING, STOPPED, INCIDENT)
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
    return obj


def applied(obj: Any, patch: Any) -> Any:
    return patched(obj, patch, Patch.MERGE)


def without_ours(kind: OwnerKind, obj: Any) -> Any:
    """The object as it would be had nobody touched what we may touch."""
    rest = copy.deepcopy(obj)
    holder = rest["spec"].get("runPolicy", {}) if kind is PYTORCHJOB else rest["spec"]
    holder.pop("suspend", None)
    annotations = rest["metadata"].get("annotations") or {}
    rest["metadata"]["annotations"] = {name: text for name, text in annotations.items() if name not in MANAGED}
    return rest


@every_kind
@given(extra=st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), values, max_size=4))
def test_suspending_and_resuming_change_nothing_else(kind: OwnerKind, extra: dict[str, Any]) -> None:
    obj = stored(kind, **{name: value for name, value in extra.items() if name not in workload(kind.name, "x")["spec"]})
    suspended = applied(obj, suspend_patch(kind, obj, {REQUEUE: encode(ORDER)}))
    assert kind.suspend is not None
    assert at(suspended, kind.suspend) is True
    resumed = applied(suspended, resume_patch(kind, suspended, ORDER))
    assert at(resumed, kind.suspend) is False
    assert REQUEUE not in resumed["metadata"]["annotations"]
    assert without_ours(kind, obj) == without_ours(kind, suspended) == without_ours(kind, resumed)


@every_kind
def test_the_object_says_which_attempt_it_is_what_changes_and_that_a_proof_is_due(kind: OwnerKind) -> None:
    obj = stored(kind)
    found = applied(obj, resume_patch(kind, obj, ORDER))["metadata"]["annotations"]
    assert found[ATTEMPT] == "3"
    assert decode_changes(found[CHANGES]) == ORDER.changes
    assert decode_requeue(found[RESTARTING]) == ORDER


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


def test_changes_that_are_too_long_to_be_kept_are_left_out_and_stay_in_what_is_to_be_proven() -> None:
    obj = stored(KINDS["Job"])
    full = Changes({f"TIDEGAUGE_{number}": "x" * 900 for number in range(4)})
    obj["metadata"]["annotations"][CHANGES] = encode(full)
    order = replace(ORDER, environ={"TIDEGAUGE_MORE": "y" * 900})
    found = applied(obj, resume_patch(KINDS["Job"], obj, order))["metadata"]["annotations"]
    assert decode_changes(found[CHANGES]) == full
    assert decode_requeue(found[RESTARTING]) == order


def test_with_kueue_the_object_itself_is_not_suspended_and_keeps_the_order_until_the_end() -> None:
    obj = stored(KINDS["Job"], suspend=False)
    ordered = applied(obj, suspend_patch(KINDS["Job"], obj, {REQUEUE: encode(ORDER)}, by_kueue=True))
    assert ordered["spec"] == obj["spec"]
    evicted = {**ordered, "spec": {**ordered["spec"], "suspend": True}}
    resumed = applied(evicted, resume_patch(KINDS["Job"], evicted, ORDER, by_kueue=True))
    assert resumed["spec"]["suspend"] is True
    assert REQUEUE in resumed["metadata"]["annotations"]
    assert resumed["metadata"]["annotations"][ATTEMPT] == "3"


def test_a_new_run_begins_without_what_was_said_of_the_last() -> None:
    obj = stored(KINDS["Job"])
    obj["metadata"]["annotations"].update({INCIDENT: "leaks", STOPPED: "{}", ENDED: "completed after 3 h"})
    assert not {INCIDENT, STOPPED, ENDED} & set(
        applied(obj, resume_patch(KINDS["Job"], obj, ORDER))["metadata"]["annotations"]
    )
