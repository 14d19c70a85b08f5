"""Annotations in Grafana: each once, whatever is lost in between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from fakes.fake_grafana import TOKEN, FakeGrafana, Reply, grafana_server
from sample_views import NOW_S
from scheduler_values import JOB, decision, incident
from tidegauge.core.incidents import Closure, IncidentState
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, DecisionStatus, Outcome
from tidegauge_exporter.grafana.client import GrafanaClient
from tidegauge_exporter.grafana.sink import GrafanaSink
from tidegauge_exporter.grafana.values import GrafanaRefusedError
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import RetryLaterError

REQUEUED = DecisionRecord(
    decision(ActionKind.REQUEUE), DecisionStatus.FINISHED, Outcome.DONE, "it runs again", finished_s=NOW_S
)
OPEN = Story(incident(), decisions=(REQUEUED,))
CLOSED = Story(
    incident(state=IncidentState.CLOSED, closure=Closure.JOB_ENDED, closed_unix_s=NOW_S + 60.0), decisions=(REQUEUED,)
)
HOSTILE = Story(
    incident(number=2, job=JOB._replace(job_id="</b>: " + "\N{PILE OF POO}&<>" * 200 + "\r\n"), user_name="\x00")
)


@dataclass
class Notes:
    """A journal in memory."""

    said_so_far: dict[tuple[str, str], str] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)

    def said(self, sink: str, key: str) -> str | None:
        return self.said_so_far.get((sink, key))

    def say(self, sink: str, key: str, value: str, *, over: bool = False) -> None:
        self.said_so_far[sink, key] = value
        self.over = self.over | {key} if over else self.over - {key}


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    with grafana_server(role="Editor") as server:
        yield server


@pytest.fixture
def client(grafana: FakeGrafana) -> Iterator[GrafanaClient]:
    client = GrafanaClient(grafana.url, token=TOKEN)
    yield client
    client.close()


def sink(client: GrafanaClient, notes: Notes | None = None) -> GrafanaSink:
    return GrafanaSink(client, notes or Notes(), cluster="alps", links=Links())


def test_each_annotation_is_made_once(client: GrafanaClient, grafana: FakeGrafana) -> None:
    ours = sink(client)
    ours.take([OPEN])
    ours.take([OPEN])
    assert grafana.writes == ["POST /api/annotations"] * 2
    assert [entry["tags"][-1] for entry in grafana.annotations.values()] == ["cause:leak", "action:requeue"]


def test_grafana_sink_sends_no_request_if_nothing_is_new(client: GrafanaClient, grafana: FakeGrafana) -> None:
    ours = sink(client)
    ours.take([OPEN])
    grafana.requests.clear()
    ours.take([OPEN])
    assert grafana.requests == []


def test_closing_ends_the_region(client: GrafanaClient, grafana: FakeGrafana) -> None:
    notes = Notes()
    ours = sink(client, notes)
    ours.take([OPEN])
    assert len(notes.over) == 1  # the action
    ours.take([CLOSED])
    ours.take([CLOSED])
    assert grafana.writes == [*["POST /api/annotations"] * 2, "PATCH /api/annotations/1"]
    region = grafana.annotations[1]
    assert region["timeEnd"] - region["time"] == 660_000
    assert "Closed after" in region["text"]
    assert len(notes.over) == 2


def test_an_incident_that_nobody_saw_open_is_made_whole(client: GrafanaClient, grafana: FakeGrafana) -> None:
    sink(client).take([CLOSED])
    assert "PATCH /api/annotations/1" not in grafana.requests
    assert grafana.annotations[1]["timeEnd"] > grafana.annotations[1]["time"]


@pytest.mark.parametrize("later", [OPEN, CLOSED])
def test_a_lost_notebook_makes_nothing_twice(client: GrafanaClient, grafana: FakeGrafana, later: Story) -> None:
    sink(client).take([OPEN, HOSTILE])
    sink(client).take([later, HOSTILE])
    assert grafana.writes.count("POST /api/annotations") == 3
    assert len(grafana.annotations) == 3
    region = grafana.annotations[1]
    assert (region["timeEnd"] > region["time"]) == (later is CLOSED)


def test_another_incident_with_this_number_is_another(client: GrafanaClient, grafana: FakeGrafana) -> None:
    sink(client).take([CLOSED])
    sink(client).take([Story(replace(OPEN.incident, opened_unix_s=NOW_S - 5.0))])  # within the region of the first
    assert len(grafana.annotations) == 3


def test_grafana_sink_does_not_recreate_a_deleted_annotation(client: GrafanaClient, grafana: FakeGrafana) -> None:
    ours = sink(client)
    ours.take([OPEN])
    del grafana.annotations[1]
    ours.take([CLOSED])
    ours.take([CLOSED])
    assert list(grafana.annotations) == [2]
    assert grafana.writes.count("PATCH /api/annotations/1") == 1


def test_grafana_sink_posts_other_annotations_if_one_is_refused(client: GrafanaClient, grafana: FakeGrafana) -> None:
    refusals = iter([Reply(400, {"message": "no such thing"})])
    grafana.instead = lambda request: next(refusals, None) if request.startswith("POST") else None
    ours = sink(client)
    with pytest.raises(GrafanaRefusedError, match="no such thing"):
        ours.take([OPEN])
    assert [entry["tags"][-1] for entry in grafana.annotations.values()] == ["action:requeue"]
    ours.take([OPEN])
    assert len(grafana.annotations) == 2


def test_a_token_that_is_refused_is_not_tried_again_and_again(client: GrafanaClient, grafana: FakeGrafana) -> None:
    grafana.role = "Viewer"
    with pytest.raises(GrafanaRefusedError, match="needs the role Editor"):
        sink(client).take([OPEN, CLOSED])
    assert grafana.writes == ["POST /api/annotations"]


def test_grafana_sink_does_not_repeat_annotations_after_an_outage(client: GrafanaClient, grafana: FakeGrafana) -> None:
    ours = sink(client)
    grafana.instead = lambda request: (
        Reply(503, "") if request.startswith("POST") and len(grafana.annotations) else None
    )
    with pytest.raises(RetryLaterError):
        ours.take([OPEN])
    grafana.instead = lambda _: None
    ours.take([OPEN])
    assert len(grafana.annotations) == 2


def test_hostile_names_are_taken_by_grafana(client: GrafanaClient, grafana: FakeGrafana) -> None:
    sink(client).take([HOSTILE])
    (entry,) = grafana.annotations.values()
    assert any(tag.startswith("job:</b>: \N{PILE OF POO}") for tag in entry["tags"])
