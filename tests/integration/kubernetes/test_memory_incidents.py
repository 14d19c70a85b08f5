"""``MemoryIncident`` on an API server: the chart's definition takes what the head writes, by the rights of its role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.chart.rendering import CHART
from integration.kubernetes.port_world import ApiWorld
from integration.kubernetes.target import Connection, KubeTarget, delete_and_wait, eventually, for_namespace
from scheduler_values import decision, incident
from tidegauge.core.incidents import Closure, Incident, IncidentState
from tidegauge.core.incidents.actions import DecisionRecord, DecisionStatus, Outcome
from tidegauge.core.jobs.kubernetes import SCHEDULER
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.kubernetes.memory_incidents import object_name
from tidegauge_scheduler_hooks.kubernetes.ports import ObjectNotFoundError

pytestmark = pytest.mark.usefixtures("job_controller")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def world(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[ApiWorld]:
    world = ApiWorld(kube, namespace, "Job", tmp_path)
    yield world
    world.close()


@pytest.fixture
def objects(admin: Connection, namespace: str) -> Iterator[str]:
    """The path of the namespace's MemoryIncidents; the definition is the chart's."""
    definition = yaml.safe_load((CHART / "crds" / "memoryincidents.yaml").read_text(encoding="utf-8"))
    definition["metadata"]["labels"] = dict(for_namespace(namespace))
    admin.do("POST", DEFINITIONS, definition)
    path = f"/apis/tidegauge.dev/v1alpha1/namespaces/{namespace}/memoryincidents"
    eventually(lambda: admin.ask("GET", path).code, lambda code: code == 200)
    yield path
    delete_and_wait(admin, f"{DEFINITIONS}/memoryincidents.tidegauge.dev")


def of(job: JobView, **changes: Any) -> Incident:
    return incident(job=job.key, scheduler=SCHEDULER, **changes)


def test_an_incident_is_written_changed_and_closed(world: ApiWorld, objects: str, admin: Connection) -> None:
    job = world.start_job()
    one = of(job, onset_step=412, explanation="why")
    made = decision(incident=one)
    record = DecisionRecord(made, DecisionStatus.FINISHED, Outcome.DONE, "on Slack", finished_s=1.7e9)
    for now, records in ((one, ()), (one, [record]), (replace(one, seconds_to_oom=None), [record])):
        world.port.show_incident(now, records, job)
    (found,) = admin.do("GET", objects)["items"]
    assert found["metadata"]["ownerReferences"][0]["uid"] == world.object(job)["metadata"]["uid"]
    assert found["spec"]["workload"]["name"] == world.object(job)["metadata"]["name"]
    status = found["status"]
    assert (status["state"], status["rank"], status["lastAction"]["summary"]) == ("Open", 1, "notify (done)")
    assert "outOfMemoryIn" not in status  # nobody says it any more
    closed = replace(one, state=IncidentState.CLOSED, closed_unix_s=1.7e9, closure=Closure.JOB_ENDED)
    world.port.show_incident(closed, [record], None)
    (found,) = admin.do("GET", objects)["items"]
    assert (found["status"]["state"], found["status"]["closure"]) == ("Closed", "job_ended")
    assert [one["status"] for one in found["status"]["conditions"]] == ["False"]


def test_the_definition_drops_nothing_of_what_is_written(world: ApiWorld, objects: str, admin: Connection) -> None:
    from tidegauge_scheduler_hooks.kubernetes.memory_incidents import incident_object, incident_status

    job = world.start_job()
    one = of(job, onset_step=412)
    record = DecisionRecord(decision(incident=one), DecisionStatus.FINISHED, Outcome.DONE, "x", finished_s=1.7e9)
    world.port.show_incident(one, [record], job)
    found = admin.do("GET", f"{objects}/{object_name(one)}")
    assert found["status"] == incident_status(one, [record])
    run = world.port._run_of(job)
    assert run is not None
    assert found["spec"] == incident_object(one, run.workload)["spec"]


def test_it_goes_with_its_workload(world: ApiWorld, objects: str, admin: Connection) -> None:
    job = world.start_job()
    world.port.show_incident(of(job), (), job)
    world.delete(job)
    eventually(lambda: admin.do("GET", objects)["items"], lambda items: items == [])


def test_an_incident_stays_that_of_its_workload(world: ApiWorld, objects: str, admin: Connection) -> None:
    job = world.start_job()
    one = of(job)
    world.port.show_incident(one, (), job)
    path = f"{objects}/{object_name(one)}"
    answer = admin.ask("PATCH", path, {"spec": {"number": 8}}, content_type="application/merge-patch+json")
    assert answer.code == 422 or admin.do("GET", path)["spec"]["number"] == 1


def test_without_the_definition_the_adapter_says_that_the_kind_is_missing(world: ApiWorld) -> None:
    job = world.start_job()
    with pytest.raises(ObjectNotFoundError) as raised:
        world.port.show_incident(of(job), (), job)
    assert raised.value.kind_missing
