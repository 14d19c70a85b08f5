"""An incident as an object beside its workload: only where the workload is confirmed, with values that the definition
takes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_hooks.kubernetes.kube_world import KubeWorld
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE
from scheduler_values import decision, incident
from tidegauge.core.incidents import Closure, Incident, IncidentCause, IncidentKey, IncidentState
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, DecisionStatus, Disposition, Outcome
from tidegauge.core.jobs.kubernetes import SCHEDULER, PodPlace
from tidegauge.core.verdicts import Band
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.memory_incidents import (
    MAX_RANKS,
    MAX_TEXT_BYTES,
    MEMORY_INCIDENTS,
    incident_status,
    object_name,
)
from tidegauge_scheduler_hooks.kubernetes.ports import ForbiddenError, ObjectNotFoundError
from tidegauge_scheduler_hooks.shown_incidents import ShowsIncidents


@pytest.fixture
def world() -> KubeWorld:
    return KubeWorld()


def of(job: JobView, **changes: Any) -> Incident:
    return incident(job=job.key, scheduler=SCHEDULER, **changes)


def shown(world: KubeWorld) -> list[Any]:
    return list(world.kube.list(MEMORY_INCIDENTS))


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob", "PyTorchJob", "RayJob"])
def test_the_object_belongs_to_the_workload_and_tells_the_incident(kind: str) -> None:
    world = KubeWorld(kind)
    assert isinstance(world.port, ShowsIncidents)
    job = world.start_job()
    one = of(job)
    world.port.show_incident(one, (), job)
    (found,) = shown(world)
    owner = world.running(job)
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    assert found["metadata"]["ownerReferences"] == [reference]
    assert found["spec"] == {"number": 1, "workload": reference}
    assert found["metadata"]["name"].startswith(f"{owner['metadata']['name']}-1-")
    status = found["status"]
    assert (status["state"], status["cause"], status["rank"], status["outOfMemoryIn"]) == (
        "Open",
        "leak",
        1,
        "14–22 min",
    )
    assert status["conditions"][0]["status"] == "True"
    assert "lastAction" not in status


def test_changes_reach_the_same_object_and_what_is_over_goes(world: KubeWorld) -> None:
    job = world.start_job()
    one = of(job)
    world.port.show_incident(one, (), job)
    closed = replace(one, state=IncidentState.CLOSED, closed_unix_s=one.updated_unix_s + 5, closure=Closure.JOB_ENDED)
    made = decision(ActionKind.NOTIFY, incident=one)
    record = DecisionRecord(made, DecisionStatus.FINISHED, Outcome.DONE, "on Slack", finished_s=1.7e9)
    world.port.show_incident(closed, [record], None)
    (found,) = shown(world)
    status = found["status"]
    assert "outOfMemoryIn" not in status
    assert (status["state"], status["closure"]) == ("Closed", "job_ended")
    assert (status["conditions"][0]["status"], status["conditions"][0]["reason"]) == ("False", "JobEnded")
    assert status["lastAction"] == {
        "action": "notify",
        "result": "done",
        "reason": "on Slack",
        "time": "2023-11-14T22:13:20Z",
        "summary": "notify (done)",
    }


def test_what_was_only_thought_of_is_told_as_such() -> None:
    made = replace(decision(ActionKind.REQUEUE), disposition=Disposition.WOULD)
    last = incident_status(incident(), [DecisionRecord(made, DecisionStatus.FINISHED)])["lastAction"]
    assert (last["summary"], last["reason"]) == ("requeue (would)", made.reason)


def test_a_job_that_only_claims_a_workload_has_no_object(world: KubeWorld) -> None:
    job = world.start_job()
    pod = job.ranks[0].pod
    assert pod is not None
    claims = replace(job, ranks=(replace(job.ranks[0], pod=PodPlace(pod.pod_uid, pod.namespace, pod.pod)),))
    world.port.show_incident(of(job), (), claims)
    world.port.show_incident(of(job), (), None)
    assert shown(world) == []


def test_ranks_in_pods_of_another_workload_are_not_shown_there(world: KubeWorld) -> None:
    job, other = world.start_job(), world.start_job()
    stolen = replace(job, ranks=other.ranks)
    world.port.show_incident(of(job), (), stolen)
    assert shown(world) == []


def test_an_incident_outside_kubernetes_names_no_namespace(world: KubeWorld) -> None:
    world.port.show_incident(incident(scheduler=SCHEDULER), (), None)
    assert world.kube.called("patch", "MemoryIncident") == []


def test_without_the_definition_or_the_right_the_adapter_says_so(world: KubeWorld) -> None:
    job = world.start_job()
    world.kube.missing_kinds.add("MemoryIncident")
    with pytest.raises(ObjectNotFoundError):
        world.port.show_incident(of(job), (), job)
    world.kube.missing_kinds.clear()
    world.kube.fail_next(ForbiddenError("create memoryincidents"), verb="create", kind="MemoryIncident")
    with pytest.raises(ForbiddenError):
        world.port.show_incident(of(job), (), job)


def test_an_object_that_somebody_deleted_comes_back_with_the_next_change(world: KubeWorld) -> None:
    job = world.start_job()
    one = of(job)
    world.port.show_incident(one, (), job)
    world.kube.remove(MEMORY_INCIDENTS, NAMESPACE, object_name(one))
    world.port.show_incident(replace(one, onset_step=3), (), job)
    assert len(shown(world)) == 1


def test_the_first_incident_of_another_database_has_another_name(world: KubeWorld) -> None:
    one = of(world.start_job())
    names = {object_name(one), object_name(replace(one, opened_unix_s=one.opened_unix_s + 1))}
    later = one.key.job._replace(attempt=one.key.job.attempt + 1)
    names.add(object_name(replace(one, key=IncidentKey(later, IncidentCause.LEAK))))
    assert len(names) == 3
    assert object_name(one) == object_name(replace(one, severity=one.severity, updated_unix_s=0.0))


@given(name=st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", fullmatch=True), number=st.integers(1, 10**12))
def test_names_are_those_that_a_server_takes(name: str, number: int) -> None:
    key = incident().key
    named = replace(incident(), number=number, key=key._replace(job=key.job._replace(job_id=f"team/{name}")))
    found = object_name(named)
    assert len(found) <= 253
    assert all(character in "abcdefghijklmnopqrstuvwxyz0123456789-." for character in found)
    assert found[0].isalnum()
    assert found[-1].isalnum()


@pytest.mark.parametrize("likely", [0.0, math.inf, math.nan, 1e300, -5.0])
def test_odd_figures_are_numbers_or_left_out(likely: float) -> None:
    status = incident_status(replace(incident(), bytes_per_step=Band(likely, likely, likely)), ())
    assert abs(status.get("bytesPerStep", 0)) < 1 << 63


def test_texts_and_lists_have_bounds() -> None:
    base = incident()
    many = replace(
        base,
        findings=tuple(replace(base.findings[0], rank=rank) for rank in range(500)),
        ranks_left_out=1000,
        explanation="ü" * 5000,
        job_name="x" * 5000,
    )
    status = incident_status(many, ())
    assert len(status["ranks"]) == MAX_RANKS
    assert status["ranksConcerned"] == 1500
    assert all(len(status[text].encode()) <= MAX_TEXT_BYTES for text in ("message", "advice"))
