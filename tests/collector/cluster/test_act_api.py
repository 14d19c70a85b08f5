"""Acts of people on incidents: who may, once each, written down before they are done, refused ones as well."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from scheduler_values import finding, incident
from tidegauge.cluster.api.act_api import FOR_OTHERS, LOST_AFTER_S, NOT_YOURS, UNKNOWN_PERSON, ActPages, ActQuestion
from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request
from tidegauge.cluster.store import Store, open_store
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, Incident, IncidentCause, IncidentChange, IncidentState
from tidegauge.core.incidents.acts import (
    MAX_EXEMPT_HOURS,
    ActKind,
    ActOutcome,
    ActWay,
    PersonAct,
    acknowledgement,
    exemption_in_force,
)
from tidegauge.core.incidents.grades import Grade
from tidegauge.core.wire import from_wire
from tidegauge.http.access import Viewer

NOW_S = 1_800_000_000.0
ADA = Viewer("ada", sees_all=False, reads_metrics=False)
BOB = Viewer("bob", sees_all=False, reads_metrics=False)
ROOT = Viewer("root", sees_all=True, reads_metrics=True)
HEAD = Viewer("tidegauge", sees_all=True, reads_metrics=True, speaks_for_others=True)
ADAS, BOBS, CLOSED, SHARE = 1, 2, 3, 4


@dataclass
class Office:
    """A database with incidents of two users, and the pages over it."""

    store: Store
    now_s: float = NOW_S
    asked: list[tuple[int, str]] = field(default_factory=list)
    """Incidents whose rank was asked for evidence, and the ids."""
    silent: str | None = None
    """Why the rank gives no evidence."""

    def pages(self) -> ActPages:
        return ActPages(lambda: self.store, lambda: self.now_s, self._ask, self._page, admins=["root"])

    def send(self, viewer: Viewer = ADA, **fields: Any) -> tuple[PersonAct, str]:
        """The answer to a form."""
        form = {"incident": str(ADAS), "act": "acknowledge", **{name: str(value) for name, value in fields.items()}}
        answer = self.pages().forms()["/api/v1/acts"](Request(form, None, viewer))
        raw: Mapping[str, Any] = json.loads(answer.body)
        return from_wire(PersonAct, raw["act"]), raw["text"]

    def by_slack(self, by: str = "ada", request_id: str = "click-1", **fields: Any) -> tuple[PersonAct, str]:
        return self.send(HEAD, request_id=request_id, sender="T0ROSE/U0ADA", by=by, **fields)

    def acts(self, number: int = ADAS) -> list[PersonAct]:
        return list(self.store.acts.of_incident(number))

    def _ask(self, about: Incident, evidence_id: str) -> str:
        if self.silent is not None:
            raise LookupError(self.silent)
        self.asked.append((about.number, evidence_id))
        return "Rank 1 records evidence."

    def _page(self, question: ActQuestion) -> str:
        return f"{question.incident.number} {question.said}"


def opened(number: int, owner: str, **changes: Any) -> Incident:
    job = JobKey(f"{owner}s-{number}", 0, 1000)
    return incident(
        job=job, number=number, user_name=owner, findings=(finding(1),), opened_unix_s=NOW_S - 600.0,
        updated_unix_s=NOW_S, **changes,
    )  # fmt: skip


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    store = open_store(f"sqlite:///{tmp_path}/t.db")
    closed = replace(opened(CLOSED, "ada"), state=IncidentState.CLOSED, closed_unix_s=NOW_S - 1.0)
    known = (
        opened(ADAS, "ada"), opened(BOBS, "bob"), opened(SHARE, "ada", cause=IncidentCause.SHARE_EXCEEDED),
    )  # fmt: skip
    store.incidents.save([IncidentChange(ChangeKind.OPENED, one.opened_unix_s, one) for one in (*known, closed)])
    yield Office(store)
    store.close()


def test_the_owner_acknowledges_and_takes_it_back_and_both_are_on_record(office: Office) -> None:
    act, text = office.send()
    assert (act.by, act.as_admin, act.outcome, act.way) == ("ada", False, ActOutcome.DONE, ActWay.API)
    assert "looking at it" in text
    assert "The policy goes on as before." in text
    assert acknowledgement(office.acts()) == act
    office.send(ROOT)
    assert acknowledgement(office.acts()).by == "root"  # type: ignore[union-attr]  # SAFETY: it was acknowledged
    office.send(act="unacknowledge")
    assert acknowledgement(office.acts()) is None
    assert [one.kind.value for one in office.acts()] == ["acknowledge", "acknowledge", "unacknowledge"]


@pytest.mark.parametrize("number", [BOBS, 77])
def test_anybody_elses_incident_is_refused_in_the_words_for_one_that_does_not_exist(
    office: Office, number: int
) -> None:
    with pytest.raises(NotFoundError, match=f"no incident {number} of yours: {NOT_YOURS}"):
        office.send(incident=number)
    act, text = office.by_slack(incident=number)
    assert text == f"no incident {number} of yours: {NOT_YOURS}"
    assert act.outcome is ActOutcome.REFUSED
    assert [(one.by, one.outcome) for one in office.acts(number)] == [("ada", ActOutcome.REFUSED)] * 2


@pytest.mark.parametrize("kind", list(ActKind))
def test_a_stranger_does_nothing_whatever_they_ask_for(office: Office, kind: ActKind) -> None:
    office.by_slack("bob", act=kind.value)
    with pytest.raises(NotFoundError):
        office.send(BOB, act=kind.value)
    assert {one.outcome for one in office.acts()} == {ActOutcome.REFUSED}
    assert office.asked == []
    assert office.store.acts.exemptions(now_s=NOW_S) == {}
    assert office.store.grades.answers(ADAS) == ()


def test_an_admin_acts_by_their_own_name_and_not_by_the_notifiers(office: Office) -> None:
    act, _ = office.by_slack("root", act="exempt", hours=2)
    assert (act.by, act.as_admin, act.way, act.sender) == ("root", True, ActWay.SLACK, "T0ROSE/U0ADA")
    assert act.until_unix_s == NOW_S + 7200.0
    refused, _ = office.by_slack("tidegauge", "click-2")
    assert refused.outcome is ActOutcome.REFUSED, "the head's own user is no admin by that"


@pytest.mark.parametrize("name", FOR_OTHERS)
def test_only_the_heads_own_socket_speaks_for_others(office: Office, name: str) -> None:
    for viewer in (ADA, ROOT):
        with pytest.raises(BadRequestError, match=f"{name} is only for the notifier"):
            office.send(viewer, **{name: "root"})
    assert office.acts() == []


def test_an_account_that_nobody_here_has_is_refused_and_recorded(office: Office) -> None:
    act, text = office.send(HEAD, request_id="click-1", sender="T0ROSE/U0GUEST")
    assert text == UNKNOWN_PERSON
    assert (act.by, act.sender, act.outcome) == (None, "T0ROSE/U0GUEST", ActOutcome.REFUSED)


def test_what_the_notifier_lets_not_pass_is_recorded_with_its_reason(office: Office) -> None:
    act, text = office.by_slack(refused="the button was not made by this Tidegauge")
    assert (act.outcome, act.detail, text) == (ActOutcome.REFUSED, text, "the button was not made by this Tidegauge")


@pytest.mark.parametrize("kind", ["acknowledge", "unacknowledge", "exempt", "snapshot"])
def test_a_closed_incident_is_graded_and_nothing_else(office: Office, kind: str) -> None:
    with pytest.raises(BadRequestError, match="incident 3 is closed"):
        office.send(incident=CLOSED, act=kind)
    act, _ = office.send(incident=CLOSED, act="not_a_leak")
    assert act.outcome is ActOutcome.DONE
    assert office.store.grades.answers(CLOSED)[0][:3] == (Grade.NOT_A_LEAK, "ada", False)


def test_a_fact_is_not_graded(office: Office) -> None:
    with pytest.raises(BadRequestError, match="a fact, so it is not graded"):
        office.send(incident=SHARE, act="leak")


def test_a_button_of_an_earlier_incident_of_this_number_does_nothing(office: Office) -> None:
    right = round((NOW_S - 600.0) * 1000)
    _, text = office.by_slack(opened_ms=right - 1)
    assert "an earlier incident" in text
    act, _ = office.by_slack(request_id="click-2", opened_ms=right)
    assert act.outcome is ActOutcome.DONE


def test_the_same_click_again_does_nothing_more_and_gets_the_same_answer(office: Office) -> None:
    first = office.by_slack(act="snapshot")
    office.now_s += 5.0
    assert office.by_slack(act="snapshot") == first
    assert office.asked == [(ADAS, "asked-click-1")]
    gone = replace(opened(ADAS, "ada"), state=IncidentState.CLOSED, closed_unix_s=NOW_S)
    office.store.incidents.save([IncidentChange(ChangeKind.CLOSED, NOW_S, gone)])
    assert office.by_slack(act="snapshot") == first, "also after the incident has closed"
    assert len(office.acts()) == 1


def test_an_act_whose_coordinator_died_is_done_by_the_next_one(office: Office) -> None:
    lost = PersonAct("click-1", ADAS, ActKind.SNAPSHOT, "ada", False, NOW_S, ActWay.SLACK, "T0ROSE/U0ADA")
    office.store.acts.begin(lost)
    _, text = office.by_slack(act="snapshot")
    assert (text, office.asked) == ("This is under way already.", [])
    office.now_s += LOST_AFTER_S + 1.0
    act, _ = office.by_slack(act="snapshot")
    assert (act.outcome, office.asked) == (ActOutcome.DONE, [(ADAS, "asked-click-1")])


def test_an_act_whose_coordinator_died_is_refused_if_it_makes_no_sense_any_more(office: Office) -> None:
    lost = PersonAct("click-1", ADAS, ActKind.EXEMPT, "ada", False, NOW_S, ActWay.SLACK, "T0ROSE/U0ADA")
    office.store.acts.begin(lost)
    gone = replace(opened(ADAS, "ada"), state=IncidentState.CLOSED, closed_unix_s=NOW_S)
    office.store.incidents.save([IncidentChange(ChangeKind.CLOSED, NOW_S, gone)])
    office.now_s += LOST_AFTER_S + 1.0
    act, text = office.by_slack(act="exempt")
    assert (act.outcome, text) == (ActOutcome.REFUSED, "incident 1 is closed")
    assert office.acts() == [act], "the record says so, too"


def test_a_rank_that_gives_no_evidence_is_told_and_recorded(office: Office) -> None:
    office.silent = "rank 1 is busy"
    act, text = office.send(act="snapshot")
    assert (act.outcome, text) == (ActOutcome.FAILED, "Nothing has changed: rank 1 is busy")


def test_an_exemption_lasts_for_a_bounded_time_and_can_be_ended(office: Office) -> None:
    act, text = office.send(act="exempt", hours=8)
    assert "For the next 8 h" in text
    assert exemption_in_force(office.acts(), now_unix_s=NOW_S + 8 * 3600.0 - 1.0) == act
    assert exemption_in_force(office.acts(), now_unix_s=NOW_S + 8 * 3600.0) is None
    _, text = office.send(act="exempt", hours=0)
    assert "is over" in text
    assert office.store.acts.exemptions(now_s=NOW_S) == {}
    with pytest.raises(BadRequestError, match="at most 168"):
        office.send(act="exempt", hours=MAX_EXEMPT_HOURS + 1)


@pytest.mark.parametrize("fields", [{"act": "kill"}, {"incident": "x"}, {"hours": "-1"}, {"user": "root"}])
def test_a_form_that_makes_no_sense_is_refused(office: Office, fields: dict[str, str]) -> None:
    with pytest.raises(BadRequestError):
        office.send(ADA, **fields)
    assert office.acts() == []


def test_the_page_says_what_became_of_the_form(office: Office) -> None:
    page = office.pages()
    form = {"incident": str(ADAS), "act": "acknowledge"}
    answer = page.forms()["/act"](Request(form, None, ADA))
    assert "1 Acknowledged" in answer.body.decode()
    with pytest.raises(NotFoundError):
        page.forms()["/act"](Request(form, None, BOB))
    assert [one.outcome for one in office.acts()] == [ActOutcome.DONE, ActOutcome.REFUSED]
    assert page.routes()["/act"](Request({"incident": str(ADAS)}, None, ADA)).body == b"1 None"


def test_the_list_says_what_was_asked_and_what_the_viewer_may_do(office: Office) -> None:
    def told(viewer: Viewer, number: int = ADAS, **query: str) -> dict[str, Any]:
        route = office.pages().routes()["/api/v1/acts"]
        answer: dict[str, Any] = json.loads(route(Request({"incident": str(number), **query}, None, viewer)).body)
        return answer

    every = ["acknowledge", "exempt", "snapshot", "leak", "not_a_leak"]
    assert told(ADA) == {"acts": [], "may": every}
    office.send()
    assert told(ROOT)["may"][:2] == ["acknowledge", "unacknowledge"]
    assert told(ROOT)["acts"][0]["by"] == "ada"
    assert told(ADA, SHARE)["may"] == ["acknowledge", "exempt", "snapshot"]
    assert told(ADA, CLOSED)["may"] == ["leak", "not_a_leak"]
    assert told(HEAD, by="root")["may"] == told(ROOT)["may"]
    with pytest.raises(NotFoundError):
        told(BOB)
    with pytest.raises(NotFoundError):
        told(HEAD, by="bob")
    with pytest.raises(BadRequestError, match="only for the notifier"):
        told(ADA, by="root")
