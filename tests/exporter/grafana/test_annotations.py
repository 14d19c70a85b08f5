"""Incidents as annotations: which there are, and that other people's words stay words."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from loop_store import told_store
from sample_views import NOW_S
from scheduler_values import JOB, decision, died_of_oom, incident
from tidegauge.core.incidents import ChangeKind, Closure, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, DecisionStatus, Disposition, Outcome
from tidegauge_exporter.grafana.annotations import AnnotationText, annotations_of, tag
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story

LINKS = Links(service_url="http://head:9495")
OVER = incident(state=IncidentState.CLOSED, closure=Closure.RECOVERED, closed_unix_s=NOW_S + 60.0)


def told(number: int) -> Story:
    store = told_store()
    found = store.incidents.incident(number)
    assert found is not None
    history = tuple(store.incidents.lines(number))
    return Story(found, history, tuple(store.audit.records_of(number)))


def remarks(story: Story) -> tuple[AnnotationText, ...]:
    return annotations_of(story, cluster="alps", links=LINKS)


def test_an_open_incident_is_a_mark_with_what_got_worse_and_what_was_done() -> None:
    found = remarks(told(1))
    assert [one.annotation.tags[4:] for one in found] == [
        ("cause:leak",), ("cause:leak", "escalated"), ("action:checkpoint",),
    ]  # fmt: skip
    assert [one.annotation.at_unix_ms for one in found] == [
        round((NOW_S - before_s) * 1000) for before_s in (600, 240, 60)
    ]
    assert {one.annotation.end_unix_ms for one in found} == {None}
    assert [one.final for one in found] == [False, True, True]
    assert {one.annotation.tags[:4] for one in found} == {("tidegauge", "cluster:alps", "incident:1", "job:4711")}


def test_texts_say_what_happened_and_link_to_the_report() -> None:
    opened, escalated, checkpoint = (one.annotation.text for one in remarks(told(1)))
    assert opened.startswith("<b>Incident 1: leak, warning</b><br>Rank 1 of job 4711 grows by 12.0 MiB per step")
    assert escalated.startswith("<b>Incident 1: now critical</b>")
    assert checkpoint.startswith("<b>checkpoint done</b><br>2 of 2 ranks saved at step 412<br>Why: rank 1 of job 4711")
    link = '<a href="http://head:9495/report?incident=1" target="_blank" rel="noopener">report</a>'
    assert all(text.endswith(f"<br>{link}") for text in (opened, escalated, checkpoint))


def test_without_an_address_there_is_no_link() -> None:
    assert "<a" not in annotations_of(told(1), cluster="alps", links=Links())[0].annotation.text


def test_a_closed_incident_is_a_region_that_says_how_it_ended() -> None:
    (region,) = remarks(told(2))
    assert region.final
    assert region.annotation.at_unix_ms == round((NOW_S - 7200.0) * 1000)
    assert region.annotation.end_unix_ms == round((NOW_S - 3600.0) * 1000)
    assert "Closed after 60 min: it stopped and did not come back." in region.annotation.text


def test_a_region_that_ended_in_an_error_is_told_in_the_past_tense() -> None:
    opened = IncidentChange(ChangeKind.OPENED, NOW_S - 28.0, incident())
    (region,) = remarks(Story(died_of_oom(), (opened,)))
    assert "Rank 1 of job 4711 ran out of GPU memory at 08:00:00 UTC" in region.annotation.text
    assert "Closed after 30 s: it ended in an out-of-memory error." in region.annotation.text
    assert "runs out" not in region.annotation.text


def test_figures_that_move_do_not_change_the_text() -> None:
    first = incident(bytes_per_step=None)
    history = (IncidentChange(ChangeKind.OPENED, first.opened_unix_s, first),)
    moved = incident(grown_bytes=1, updated_unix_s=NOW_S + 5)
    assert remarks(Story(first, history)) == remarks(Story(moved, history))


def test_annotations_omit_notifications_and_actions_not_carried_out() -> None:
    def record(action: ActionKind, disposition: Disposition, outcome: Outcome | None) -> DecisionRecord:
        made = decision(action, disposition=disposition)
        return DecisionRecord(made, DecisionStatus.FINISHED, outcome, finished_s=NOW_S)

    story = Story(
        incident(),
        decisions=(
            record(ActionKind.NOTIFY, Disposition.DO, Outcome.DONE),
            record(ActionKind.REQUEUE, Disposition.WOULD, None),
            record(ActionKind.REQUEUE, Disposition.WITHHELD, None),
            DecisionRecord(decision(ActionKind.REQUEUE), DecisionStatus.STARTED, started_s=NOW_S, starts=1),
        ),
    )
    assert len(remarks(story)) == 1


def test_every_outcome_of_an_action_has_words() -> None:
    for outcome in Outcome:
        record = DecisionRecord(decision(ActionKind.CAP), DecisionStatus.FINISHED, outcome, finished_s=NOW_S)
        (_, done) = remarks(Story(incident(), decisions=(record,)))
        assert done.annotation.text.startswith("<b>cap ")


def test_incidents_of_a_new_database_are_others() -> None:
    again = replace(incident(), opened_unix_s=NOW_S - 599.0)
    assert remarks(Story(incident()))[0].key != remarks(Story(again))[0].key


def test_annotation_text_escapes_markup_in_a_job_id() -> None:
    job_id = '<script>alert(1)</script>"><img src=x onerror=y>&'
    story = Story(incident(job=JOB._replace(job_id=job_id)))

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.seen.append(tag)

    parser = Tags()
    parser.feed(remarks(story)[0].annotation.text)
    assert parser.seen == ["b", "br", "br", "a"]


@given(st.text(max_size=400), st.text(max_size=400))
def test_tags_fit_whatever_a_job_calls_itself(job_id: str, cluster: str) -> None:
    story = Story(replace(OVER, number=10**9, key=OVER.key._replace(job=JOB._replace(job_id=job_id))))
    history = (IncidentChange(ChangeKind.ESCALATED, NOW_S, story.incident),)
    for remark in annotations_of(replace(story, history=history), cluster=cluster, links=LINKS):
        written = json.dumps(remark.annotation.tags, ensure_ascii=False, separators=(",", ":"))
        assert len(written.encode()) + 5 * sum(written.count(char) for char in "<>&") <= 500
        assert len(remark.annotation.text) < 6000


def test_a_tag_is_what_grafana_gives_back() -> None:
    assert tag("job", " a\n b\x00 : c ") == "job:a b : c"
    assert tag("job", "  ") == "job"
