"""Pages of the HTTP API for grades: people say whether an incident was a leak.

GET only reads, because mail and chat programs open the links of messages. A POST of a form writes a grade.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegauge.cluster.api.http_api import FORM_HEADERS, BadRequestError, Request, Route, html_answer
from tidegauge.cluster.api.loop_api import FEW, MANY, store_errors, store_route, visible_incident
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.grades import MAX_COMMENT_CHARS, Grade, GradeAnswer
from tidegauge.http.access import Viewer
from tidegauge.http.server import Response

log = logging.getLogger(__name__)


class GradeQuestion(NamedTuple):
    """The question on a page: was this incident a leak? With the answers so far."""

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
    """Routes and forms by path. ``store`` and ``now_s`` raise ``AuditError`` while the database is not open."""

    def __init__(self, store: Callable[[], LoopStore], now_s: Callable[[], float], page: GradePage) -> None:
        """``now_s`` is the policy clock, as for all times in the database."""
        self._store = store
        self._now_s = now_s
        self._page = page

    def routes(self) -> dict[str, Route]:
        return {"/api/v1/grades": store_route(self._notified), "/grade": self._page_of(self._asked)}

    def forms(self) -> dict[str, Route]:
        return {"/api/v1/grades": store_route(self._kept), "/grade": self._page_of(self._answered)}

    def _page_of(self, question: Callable[[Request], GradeQuestion]) -> Route:
        """A page also for people who come without a number: by a link that was cut, or by hand."""

        def page(request: Request) -> Response:
            if not request.query.get("incident"):
                return html_answer(self._page(None), FORM_HEADERS, status=400)
            with store_errors():
                return html_answer(self._page(question(request)), FORM_HEADERS)

        return page

    def _kept(self, request: Request) -> object:
        question = self._answered(request)
        return {"answers": question.answers, "yours": question.yours}

    def _notified(self, request: Request) -> object:
        limit = request.number("limit", default=FEW, most=MANY)
        since_s, whose = float(request.number("since", default=0)), request.viewer.only
        table = self._store().grades
        found = table.notified(since_s=since_s, limit=limit, user_name=whose)
        left_out = max(table.count_notified(since_s=since_s, user_name=whose) - limit, 0)
        return {"incidents": found, "left_out": left_out, "seen_as": request.viewer.seen_as}

    def _asked(self, request: Request) -> GradeQuestion:
        return self._question(request.number("incident", default=0), request.viewer)

    def _answered(self, request: Request) -> GradeQuestion:
        """The question with the answer of the form, which is written down."""
        request.only("incident", "grade", "comment")
        if not request.query.get("incident"):
            raise BadRequestError(NO_INCIDENT)
        number, grade, viewer = request.number("incident", default=0), _grade(request), request.viewer
        comment = _comment(request)
        assert viewer.name is not None, "the server takes no form from nobody"
        incident = visible_incident(self._store(), number, viewer)
        viewer.check_may_act(incident.user_name, incident.key.job.job_id)
        if (reason := why_not_graded(incident)) is not None:
            raise BadRequestError(reason)
        write_grade(
            self._store(), incident, grade,
            by=viewer.name, as_admin=viewer.is_admin, at_s=self._now_s(), comment=comment,
        )  # fmt: skip
        return self._question(number, viewer)

    def _question(self, number: int, viewer: Viewer) -> GradeQuestion:
        store = self._store()
        incident = visible_incident(store, number, viewer)
        yours = None if viewer.name is None else store.grades.last_of(number, viewer.name)
        return GradeQuestion(incident, store.grades.answers(number), yours, viewer)


def why_not_graded(incident: Incident) -> str | None:
    """Why nobody is asked whether this was a leak; ``None``: people are."""
    cause = incident.key.cause
    return None if cause.is_growth else f"incident {incident.number} is {cause.value}: a fact, so it is not graded"


def write_grade(
    store: LoopStore, incident: Incident, grade: Grade, *, by: str, as_admin: bool, at_s: float,
    comment: str | None = None,
) -> None:  # fmt: skip
    """Write down the answer of a person who may give it, to an incident of growth."""
    store.grades.add(incident.number, GradeAnswer(grade, by, as_admin, at_s, comment))
    log.info("incident %d graded %s by %s", incident.number, grade.value, by)


def _grade(request: Request) -> Grade:
    text = request.text("grade", most_chars=20)
    try:
        return Grade(text)
    except ValueError:
        known = " or ".join(grade.value for grade in Grade)
        raise BadRequestError(f"grade must be {known}, not {text!r}") from None


def _comment(request: Request) -> str | None:
    if not request.query.get("comment"):
        return None
    return " ".join(request.text("comment", most_chars=MAX_COMMENT_CHARS).split()) or None
