"""The form by which people acknowledge an incident and exempt its job: who sees which buttons, and no script."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_values import incident
from tidegauge.core.incidents import Incident, IncidentState
from tidegauge.core.incidents.acts import ActKind, ActOutcome, ActWay, PersonAct
from tidegauge.http.access import EVERYBODY, Viewer
from tidegauge_exporter.links import Links
from tidegauge_exporter.reports.act_page import MAX_SHOWN, acts_section, render_act_page

NOW_S = 1_800_000_000.0
ADA = Viewer("ada", sees_all=False, reads_metrics=False)
ROOT = Viewer("root", sees_all=True, reads_metrics=True)
ACKNOWLEDGED = PersonAct("a", 1, ActKind.ACKNOWLEDGE, "ada", False, NOW_S, outcome=ActOutcome.DONE)


def page(acts: Sequence[PersonAct] = (), viewer: Viewer = ADA, about: Incident | None = None, said: str = "") -> str:
    return render_act_page(
        about or incident(), acts, viewer, now_unix_s=NOW_S, said=said or None, links=Links(service_url="https://head")
    )


def test_the_owner_can_acknowledge_and_exempt_for_a_time_and_reads_what_that_does_not_do() -> None:
    html = page()
    assert html.count('<form method="post">') == 2
    assert '<button name="act" value="acknowledge">' in html
    assert '<option value="24">24 hours</option>' in html
    assert "The policy goes on as before." in html
    assert "You act as ada." in html
    assert 'href="https://head/report?incident=1"' in html


def test_who_acknowledged_can_take_it_back_and_others_can_take_over() -> None:
    assert '<button name="act" value="unacknowledge">' in page([ACKNOWLEDGED])
    assert '<button name="act" value="acknowledge">' in page([ACKNOWLEDGED], ROOT)


def test_an_exemption_in_force_can_be_ended() -> None:
    exempt = ACKNOWLEDGED._replace(kind=ActKind.EXEMPT, until_unix_s=NOW_S + 60.0)
    assert '<option value="0">' in page([exempt])
    assert '<option value="0">' not in page([exempt._replace(until_unix_s=NOW_S)])


def test_nobody_acts_on_a_closed_incident_or_without_a_name() -> None:
    assert "<form" not in page(about=incident(state=IncidentState.CLOSED))
    assert "<form" not in page(viewer=EVERYBODY)


def test_what_people_chose_is_text_on_the_page() -> None:
    evil = "<script>alert(1)</script>"
    act = ACKNOWLEDGED._replace(by=evil, outcome=ActOutcome.FAILED, detail=evil)
    html = page([act], Viewer(evil, sees_all=True, reads_metrics=True), incident(job_name=evil), said=evil)
    assert "<script" not in html
    assert "&lt;script&gt;" in html


def test_the_latest_acts_are_listed_without_refused_ones() -> None:
    acts = [ACKNOWLEDGED._replace(request_id=str(at), at_unix_s=NOW_S + at) for at in range(MAX_SHOWN + 3)]
    refused = ACKNOWLEDGED._replace(by="mallory", outcome=ActOutcome.REFUSED)
    html = acts_section([*acts, refused, acts[-1]._replace(way=ActWay.SLACK)])
    assert html.count("<tr>") == MAX_SHOWN
    assert "mallory" not in html
    assert "Ada acknowledged the incident, on Slack" in html
    assert acts_section([refused]) == ""
