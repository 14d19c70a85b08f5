"""The HTTP API's pages on what people say of incidents: a leak or not. Their answers are all that the API ever writes.

GET only reads, because programs that look at the links of messages open them. An answer is a form that is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tidegauge.cluster.api.http_api import (
    FORM_HEADERS,
    BadRequestError,
    Request,
    Route,
    UnavailableError,
    html_answer,
    json_route,
)
from tidegauge.cluster.api.loop_api import FEW, MANY, away, visible_incident
from tidegauge.cluster.api.loop_reads import GradeReads, LoopStore
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.incidents.grades import MAX_COMMENT_CHARS, Grade, GradeAnswer
from tidegauge.web.access import Viewer
from tidegauge.web.server import Response

log = logging.getLogger(__name__)


class Grades(GradeReads, Protocol):
    """``store.GradeStore`` as far as it is used here. Every method raises ``AuditError``."""

    def add(self, number: int, answer: GradeAnswer, /) -> bool:
        """Write an answer to incident ``number`` down; ``False``: there is no such incident."""


class AnsweredStore(LoopStore, Protocol):
    """The database as far as it is used here."""

    @property
    def grades(self) -> Grades: ...


class GradeQuestion(NamedTuple):
    """What a page asks of one person about one incident."""

    incident: Incident
    answers: Sequence[GradeAnswer]
    """Of everybody, oldest first."""
    yours: GradeAnswer | None
    """The viewer's own latest, if they gave one."""
    viewer: Viewer


GradePage = Callable[[GradeQuestion | None], str]
"""A question in, a page for people out; ``None``: nobody said about which incident."""
NO_INCIDENT = (
    "incident is missing: its number is in the notification, and `tidegauge policy grade` lists "
    "incidents without an answer"
)


class GradePages:
    """Routes and forms by path. ``store`` and ``now_s`` raise ``AuditError`` for as long as there is no database."""

    def __init__(self, store: Callable[[], AnsweredStore], now_s: Callable[[], float], page: GradePage) -> None:
        """``now_s``: the policy clock, which the times of all that is written go by."""
        self._store = store
        self._now_s = now_s
        self._page = page

    def routes(self) -> dict[str, Route]:
        return {"/api/v1/grades": json_route(self._notified), "/grade": self._page_of(self._asked)}

    def forms(self) -> dict[str, Route]:
        return {
            "/api/v1/grades": json_route(self._kept),
            "/grade": self._page_of(self._answered),
        }

    def _page_of(self, question: Callable[[Request], GradeQuestion]) -> Route:
        """People come here without a number, too: by a link that was cut, or by hand."""

        def page(request: Request) -> Response:
            if not request.query.get("incident"):
                return html_answer(self._page(None), FORM_HEADERS, status=400)
            return html_answer(self._page(question(request)), FORM_HEADERS)

        return page

    def _kept(self, request: Request) -> object:
        question = self._answered(request)
        return {"answers": question.answers, "yours": question.yours}

    def _notified(self, request: Request) -> object:
        limit = request.number("limit", default=FEW, most=MANY)
        since_s, whose = float(request.number("since", default=0)), request.viewer.only
        try:
            table = self._store().grades
            found = table.notified(since_s=since_s, limit=limit, user_name=whose)
            left_out = max(table.count_notified(since_s=since_s, user_name=whose) - limit, 0)
        except AuditError as error:
            raise UnavailableError(away(error)) from error
        return {"incidents": found, "left_out": left_out, "seen_as": whose}

    def _asked(self, request: Request) -> GradeQuestion:
        number = request.number("incident", default=0)
        try:
            return self._question(number, request.viewer)
        except AuditError as error:
            raise UnavailableError(away(error)) from error

    def _answered(self, request: Request) -> GradeQuestion:
        """The question again, with the answer that the form holds."""
        request.only("incident", "grade", "comment")
        if not request.query.get("incident"):
            raise BadRequestError(NO_INCIDENT)
        number, grade, viewer = request.number("incident", default=0), _grade(request), request.viewer
        comment = _comment(request)
        assert viewer.name is not None, "the server takes no form from nobody"
        try:
            incident = visible_incident(self._store(), number, viewer)
            if not incident.key.cause.is_growth:
                what = incident.key.cause.value
                raise BadRequestError(f"incident {number} is {what}: a fact, so it is not graded")
            answer = GradeAnswer(grade, viewer.name, viewer.sees_all, self._now_s(), comment)
            self._store().grades.add(number, answer)
            log.info("incident %d graded %s by %s", number, grade.value, viewer.name)
            return self._question(number, viewer)
        except AuditError as error:
            raise UnavailableError(away(error)) from error

    def _question(self, number: int, viewer: Viewer) -> GradeQuestion:
        store = self._store()
        incident = visible_incident(store, number, viewer)
        yours = None if viewer.name is None else store.grades.last_of(number, viewer.name)
        return GradeQuestion(incident, store.grades.answers(number), yours, viewer)


def _grade(request: Request) -> Grade:
    text = request.text("grade", most_chars=20)
    try:
        return Grade(text)
    except ValueError:
        known = " or ".join(grade.value for grade in Grade)
        raise BadRequestError(f"grade must be {known}, not {text!r}") from None


def _comment(request: Request) -> str | None:
    """One line, or none."""
    if not request.query.get("comment"):
        return None
    return " ".join(request.text("comment", most_chars=MAX_COMMENT_CHARS).split()) or None
