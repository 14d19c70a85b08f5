"""Pages of the HTTP API for acts of people on an incident: acknowledge it, exempt its job, ask for evidence, grade it.

The one place where such an act is judged and done, whether it comes from a page, a command, ``tidegauge top`` or, by
the notifier, from a button on Slack. It is written down before it is done, and also if it is refused.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegauge.cluster.api.grade_api import why_not_graded, write_grade
from tidegauge.cluster.api.http_api import (
    FORM_HEADERS,
    BadRequestError,
    NotFoundError,
    Request,
    Route,
    html_answer,
)
from tidegauge.cluster.api.loop_api import store_errors, store_route, visible_incident
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.acts import (
    DEFAULT_EXEMPT_HOURS,
    MAX_EXEMPT_HOURS,
    MAX_REQUEST_ID_CHARS,
    NOT_SILENCED,
    ActKind,
    ActOutcome,
    ActWay,
    PersonAct,
    acknowledgement,
)
from tidegauge.core.units import format_duration
from tidegauge.http.access import NotAllowedError, Viewer
from tidegauge.http.server import Response

log = logging.getLogger(__name__)

MAX_NUMBER = (1 << 31) - 1
"""Of an incident: what the database's column holds."""
MAX_NAME_CHARS = 256
MAX_REFUSED_CHARS = 200
LOST_AFTER_S = 60.0
"""Age at which an act that was begun and not finished is done again: who did it is gone."""
HOUR_S = 3600.0
FOR_OTHERS = ("request_id", "by", "sender", "opened_ms", "refused")
"""Fields that only the head's own socket may send: it tells what another person asked for."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:-]+")
NOT_YOURS = "only the owner of its job and Tidegauge's admins may do that"
UNKNOWN_PERSON = "nobody on this cluster is known under your Slack account; an admin can add you to slack_users_file"


class ActQuestion(NamedTuple):
    """What a page asks: what do you want to do about this incident?"""

    incident: Incident
    acts: Sequence[PersonAct]
    """All that are kept, oldest first."""
    viewer: Viewer
    now_unix_s: float
    said: str | None = None
    """What became of the form."""


ActPage = Callable[[ActQuestion], str]
"""A question in, a page for people out."""
AskEvidence = Callable[[Incident, str], str]
"""Asks the rank to look at first for evidence of this id; returns a sentence. Raises ``LookupError``."""


class RefusedActError(Exception):
    """The act may not be done, or makes no sense now; the message is for the person."""

    def __init__(self, message: str, *, status: type[Exception] = BadRequestError) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class _Asked:
    """A form, as it was read."""

    act: PersonAct
    viewer: Viewer
    """Whose rights count: not the notifier's, but those of the person that it names."""
    opened_ms: int | None
    refused: str | None
    """Why the notifier itself lets it not pass."""


class ActPages:
    """Routes and forms by path. ``store`` and ``now_s`` raise ``AuditError`` while the database is not open."""

    def __init__(
        self,
        store: Callable[[], LoopStore],
        now_s: Callable[[], float],
        ask_evidence: AskEvidence,
        page: ActPage,
        *,
        admins: Collection[str] = (),
    ) -> None:
        """``now_s`` is the policy clock; ``admins`` are the names in ``api_admins``, for people whom the notifier
        names."""
        self._store = store
        self._now_s = now_s
        self._ask_evidence = ask_evidence
        self._page = page
        self._admins = frozenset(admins)

    def routes(self) -> dict[str, Route]:
        return {"/api/v1/acts": store_route(self._list), "/act": self._shown}

    def forms(self) -> dict[str, Route]:
        return {"/api/v1/acts": store_route(self._sent), "/act": self._answered}

    def _list(self, request: Request) -> object:
        number = request.number("incident", default=0, most=MAX_NUMBER)
        viewer = self._meant(request) if "by" in request.query else request.viewer
        store = self._store()
        incident = visible_incident(store, number, viewer)
        acts = store.acts.of_incident(number)
        return {"acts": acts, "may": _makes_sense(incident, acts)}

    def _meant(self, request: Request) -> Viewer:
        """The person whom the notifier names. Raises ``BadRequestError`` for anybody else who names one."""
        named = next(field for field in FOR_OTHERS if field in request.query)
        if not request.viewer.speaks_for_others:
            raise BadRequestError(f"{named} is only for the notifier on the head")
        by = request.text("by", most_chars=MAX_NAME_CHARS) if request.query.get("by") else None
        return Viewer(by, sees_all=by is not None and by in self._admins, reads_metrics=False)

    def _sent(self, request: Request) -> object:
        asked = self._read(request)
        try:
            act = self._done(asked)
        except RefusedActError as error:
            if asked.act.way is ActWay.SLACK:  # an answer like others: the notifier tells it to the person
                return {"act": self._refuse(asked, str(error)), "text": str(error)}
            self._refuse(asked, str(error))
            raise error.status(str(error)) from error
        return {"act": act, "text": said_of(act)}

    def _shown(self, request: Request) -> Response:
        with store_errors():
            return html_answer(self._page(self._question(request)), FORM_HEADERS)

    def _answered(self, request: Request) -> Response:
        with store_errors():
            asked = self._read(request)
            try:
                said = said_of(self._done(asked))
            except RefusedActError as error:
                self._refuse(asked, str(error))
                said = f"Refused: {error}."
            return html_answer(self._page(self._question(request, said)), FORM_HEADERS)

    def _question(self, request: Request, said: str | None = None) -> ActQuestion:
        number = request.number("incident", default=0, most=MAX_NUMBER)
        store = self._store()
        incident = visible_incident(store, number, request.viewer)
        return ActQuestion(incident, store.acts.of_incident(number), request.viewer, self._now_s(), said)

    def _read(self, request: Request) -> _Asked:
        request.only("incident", "act", "hours", *FOR_OTHERS)
        if "incident" not in request.query:
            raise BadRequestError("incident is missing: its number")
        number, kind = request.number("incident", default=0, most=MAX_NUMBER), _kind(request)
        hours = request.number("hours", default=DEFAULT_EXEMPT_HOURS, most=MAX_EXEMPT_HOURS)
        now_s = self._now_s()
        until_s = now_s + hours * HOUR_S if kind is ActKind.EXEMPT else None
        if not any(field in request.query for field in FOR_OTHERS):
            viewer = request.viewer
            assert viewer.name is not None, "the server takes no form from nobody"
            act = PersonAct(secrets.token_hex(16), number, kind, viewer.name, viewer.is_admin, now_s)
            return _Asked(act._replace(until_unix_s=until_s), viewer, None, None)
        viewer = self._meant(request)
        request_id = _plain(request, "request_id", MAX_REQUEST_ID_CHARS)
        sender = _plain(request, "sender", MAX_NAME_CHARS)
        act = PersonAct(request_id, number, kind, viewer.name, viewer.is_admin, now_s, ActWay.SLACK, sender, until_s)
        opened_ms = request.number("opened_ms", default=0) if "opened_ms" in request.query else None
        why = request.text("refused", most_chars=MAX_REFUSED_CHARS) if request.query.get("refused") else None
        return _Asked(act, viewer, opened_ms, why)

    def _done(self, asked: _Asked) -> PersonAct:
        """The act as it is written down in the end. Raises ``RefusedActError``, and ``AuditError``."""
        store, act = self._store(), asked.act
        before = store.acts.find(act.request_id)
        if before is None:
            incident = self._judged(store, asked)
            before = store.acts.begin(act)
            if before is not None:
                return before
        elif before.outcome is ActOutcome.BEGUN and act.at_unix_s - before.at_unix_s > LOST_AFTER_S:
            incident, act = self._judged(store, asked), before
        else:
            return before
        outcome, detail = ActOutcome.DONE, None
        if act.kind is ActKind.SNAPSHOT:
            try:
                detail = self._ask_evidence(incident, f"asked-{act.request_id[:32]}")
            except LookupError as error:
                outcome, detail = ActOutcome.FAILED, str(error.args[0])
        elif act.kind.grade is not None:
            assert act.by is not None, "nobody unknown passes the judgement"
            write_grade(store, incident, act.kind.grade, by=act.by, as_admin=act.as_admin, at_s=act.at_unix_s)
        done = store.acts.finish(act.request_id, outcome, detail)
        log.info("incident %d: %s by %s: %s", act.number, act.kind.value, act.by, outcome.value)
        return done

    def _judged(self, store: LoopStore, asked: _Asked) -> Incident:
        """The incident, if the person may do this to it now. Raises ``RefusedActError``."""
        act = asked.act
        if asked.refused is not None:
            raise RefusedActError(asked.refused)
        if act.by is None:
            raise RefusedActError(UNKNOWN_PERSON)
        incident = store.incidents.incident(act.number)
        if incident is None or not asked.viewer.sees(incident.user_name, incident.key.job.job_id):
            # The same words for both: nobody learns by a forged number which incidents there are.
            raise RefusedActError(f"no incident {act.number} of yours: {NOT_YOURS}", status=NotFoundError)
        try:
            asked.viewer.check_may_act(incident.user_name, incident.key.job.job_id)
        except NotAllowedError as error:
            raise RefusedActError(str(error), status=NotAllowedError) from None
        if asked.opened_ms is not None and asked.opened_ms != round(incident.opened_unix_s * 1000):
            raise RefusedActError(f"this button is about an earlier incident {act.number}, which is not kept any more")
        if act.kind.grade is not None:
            if (reason := why_not_graded(incident)) is not None:
                raise RefusedActError(reason)
        elif not incident.is_open:
            raise RefusedActError(f"incident {act.number} is closed")
        return incident

    def _refuse(self, asked: _Asked, why: str) -> PersonAct:
        refused = asked.act._replace(outcome=ActOutcome.REFUSED, detail=why)
        log.info("incident %d: %s by %s refused: %s", refused.number, refused.kind.value, refused.by, why)
        acts = self._store().acts
        before = acts.begin(refused)
        if before is not None and before.outcome is ActOutcome.BEGUN:  # by a coordinator that is gone
            return acts.finish(before.request_id, ActOutcome.REFUSED, why)
        return before or refused


def said_of(act: PersonAct) -> str:
    """What the person reads who asked for it."""
    if act.outcome is ActOutcome.REFUSED:
        return act.detail or "refused"
    if act.outcome is ActOutcome.FAILED:
        return f"Nothing has changed: {act.detail}"
    if act.outcome is ActOutcome.BEGUN:
        return "This is under way already."
    return {
        ActKind.ACKNOWLEDGE: f"Acknowledged: incident {act.number} shows that you are looking at it. {NOT_SILENCED}",
        ActKind.UNACKNOWLEDGE: f"Nobody is shown as looking at incident {act.number} any more.",
        ActKind.EXEMPT: _exempt_words(act),
        ActKind.SNAPSHOT: act.detail or "",
        ActKind.LEAK: f"Recorded: incident {act.number} is a leak.",
        ActKind.NOT_A_LEAK: f"Recorded: incident {act.number} is not a leak.",
    }[act.kind]


def _makes_sense(incident: Incident, acts: Sequence[PersonAct]) -> list[ActKind]:
    """What can be done now by whoever may do anything about it."""
    of_open = [ActKind.ACKNOWLEDGE, ActKind.EXEMPT, ActKind.SNAPSHOT]
    if acknowledgement(acts) is not None:
        of_open.insert(1, ActKind.UNACKNOWLEDGE)
    of_growth = [ActKind.LEAK, ActKind.NOT_A_LEAK]
    return of_open * incident.is_open + of_growth * incident.key.cause.is_growth


def _exempt_words(act: PersonAct) -> str:
    left_s = (act.until_unix_s or 0.0) - act.at_unix_s
    if left_s <= 0:
        return "The exemption of the job is over: the policy's rules apply again."
    return (
        f"For the next {format_duration(left_s)} Tidegauge takes no action on this attempt of the job; its owner still "
        "gets messages."
    )


def _kind(request: Request) -> ActKind:
    text = request.text("act", most_chars=20)
    try:
        return ActKind(text)
    except ValueError:
        known = ", ".join(kind.value for kind in ActKind)
        raise BadRequestError(f"act must be one of {known}, not {text!r}") from None


def _plain(request: Request, name: str, most_chars: int) -> str:
    text = request.text(name, most_chars=most_chars)
    if not _PLAIN.fullmatch(text):
        raise BadRequestError(f"{name} has characters that it never has")
    return text
