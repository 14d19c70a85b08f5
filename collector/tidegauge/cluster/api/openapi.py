"""The OpenAPI 3.1 document of the HTTP API: every page, its parameters with their bounds, and its answers.

Served at ``/api/v1/openapi.json``. The shapes are derived from the types of the answers, the bounds are the routes' own
constants; a test compares the pages with the route table and real answers with these schemas.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from tidegauge import __version__
from tidegauge.cluster.api.act_api import MAX_NUMBER
from tidegauge.cluster.api.heat_map import COLUMNS, MAX_COLUMNS, MAX_ROWS, HeatMap
from tidegauge.cluster.api.http_api import FORM_TYPE
from tidegauge.cluster.api.login_api import MAX_NAME_CHARS, MAX_NEXT_CHARS, MAX_SECRET_CHARS, ViewerFacts
from tidegauge.cluster.api.loop_api import FEW, MANY
from tidegauge.cluster.api.memory_api import MAX_JOB_ID_CHARS, MAX_PIECES
from tidegauge.cluster.api.overview import JobPage, NodePage, NodesPage, Overview
from tidegauge.cluster.api.overview_api import MAX_NODE_ID_CHARS
from tidegauge.cluster.api.profile_api import MAX_JOBS, MAX_RANKS_CHARS, ProfiledJob
from tidegauge.cluster.views import AskedProfile, Event, NodeStatus, ProfileProblem, ServiceStatus
from tidegauge.core.evidence import Evidence
from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord, JobFacts, LoopStatus
from tidegauge.core.incidents.acts import DEFAULT_EXEMPT_HOURS, MAX_EXEMPT_HOURS, ActKind, PersonAct
from tidegauge.core.incidents.grades import MAX_COMMENT_CHARS, Grade, GradeAnswer, GradedIncident
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.job_records.search import ANY
from tidegauge.core.jobs.right_size import SizedUsage, UsageBy
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.views import JobView
from tidegauge.http.sessions import COOKIE, SECURE_COOKIE

Schema = dict[str, Any]
LARGEST = 10**15 - 1
"""As ``Request.number`` allows."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of a query, or one field of a form."""

    name: str
    text: str
    schema: Mapping[str, Any]
    required: bool = False

    def document(self) -> Schema:
        whole = {"name": self.name, "in": "query", "description": self.text, "schema": dict(self.schema)}
        return {**whole, "required": True} if self.required else whole


@dataclass(frozen=True)
class Form:
    """The form that a path accepts."""

    summary: str
    fields: tuple[Parameter, ...]
    answer: Any = None
    """As ``ApiPage.answer``."""


@dataclass(frozen=True)
class ApiPage:
    """One path."""

    summary: str
    answer: Any = None
    """A type, or a mapping of keys to types: what is answered as JSON; ``None``: it is no JSON."""
    parameters: tuple[Parameter, ...] = ()
    media: tuple[str, ...] = ("application/json",)
    errors: tuple[int, ...] = ()
    """Besides those that every page may answer with."""
    text: str = ""
    form: Form | None = None


def _whole(*, default: int | None = None, most: int = LARGEST) -> Schema:
    schema: Schema = {"type": "integer", "minimum": 0, "maximum": most}
    return schema if default is None else {**schema, "default": default}


_SINCE = Parameter("since", "Leave out what ended before this time (unix seconds).", _whole(default=0))
_LIMIT = Parameter("limit", "Maximum number of results; the newest are kept.", _whole(default=FEW, most=MANY))
_JOB_ID = Parameter(
    "job_id", "The job id.", {"type": "string", "minLength": 1, "maxLength": MAX_JOB_ID_CHARS}, required=True
)
_ATTEMPT = Parameter("attempt", "The attempt of the job.", _whole(default=0))
_UID = Parameter("uid", "The job's owner; left out: whoever has a job with that id.", _whole())
_GROUP = Parameter(
    "group",
    "The group of ranks, as the job's `group` in `/api/v1/jobs`; left out: the first one.",
    {"type": "string", "maxLength": MAX_JOB_ID_CHARS},
)
_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_JOB_ID_CHARS}
_JOB = (_JOB_ID, _ATTEMPT, _UID, _GROUP)
_OWN_JOB = (_JOB_ID, _ATTEMPT, Parameter("uid", "The job's owner.", _whole(), required=True), _GROUP)
_WORDS = Parameter("words", "Only what has all of these words.", {"type": "string"})
_SORT = Parameter("sort", "alarm, share, name, user or size.", {"type": "string"})
_RANKS = {"type": "string", "maxLength": MAX_RANKS_CHARS, "pattern": "^[0-9]{1,9}(,[0-9]{1,9})*$"}
_RANK = Parameter("rank", "Only this rank.", _whole())
_SEEN_AS = "seen_as is the user to whose jobs the list is limited; null: no limit."
_HTML = ("text/html; charset=utf-8",)
_GRADES = "Grade an incident as a leak or not: its owner, or an admin"
_ANSWER = (
    Parameter("incident", "The incident's number.", _whole(), required=True),
    Parameter("grade", "The answer.", {"type": "string", "enum": [grade.value for grade in Grade]}, required=True),
    Parameter("comment", "Why.", {"type": "string", "maxLength": MAX_COMMENT_CHARS}),
)
_ACT = "Acknowledge an incident, exempt its job for a time, ask for evidence, grade it: its owner, or an admin"
_ACT_FIELDS = (
    Parameter("incident", "The incident's number.", _whole(most=MAX_NUMBER), required=True),
    Parameter("act", "What to do.", {"type": "string", "enum": [kind.value for kind in ActKind]}, required=True),
    Parameter(
        "hours", "Of `exempt`: for how long; 0 ends it.", _whole(default=DEFAULT_EXEMPT_HOURS, most=MAX_EXEMPT_HOURS)
    ),
)
_NEXT = Parameter("next", "Path on this server to go on to.", {"type": "string", "maxLength": MAX_NEXT_CHARS})
_LOGIN = (
    _NEXT,
    Parameter(
        "token", "An API token, a MUNGE credential or a token of Kubernetes.",
        {"type": "string", "maxLength": MAX_SECRET_CHARS},
    ),
    Parameter("name", "Without a token: the user.", {"type": "string", "maxLength": MAX_NAME_CHARS}),
    Parameter("password", "The user's password.", {"type": "string", "maxLength": MAX_SECRET_CHARS}),
)  # fmt: skip
_EXPOSITIONS = (
    "text/plain; version=0.0.4; charset=utf-8",
    "application/openmetrics-text; version=1.0.0; charset=utf-8",
)


class IncidentLine:
    """An ``Incident`` in a list, to which ``loop_api`` adds the numbers of all its ranks, the last decision and who
    looks at it."""


class ToldChange(NamedTuple):
    """A line of an incident's history, as ``loop_api`` returns it."""

    kind: ChangeKind
    at_unix_s: float
    text: str
    incident: Incident


class TargetGroup(NamedTuple):
    """One group of targets for Prometheus' ``http_sd_configs``."""

    targets: tuple[str, ...]
    labels: Mapping[str, str]


PAGES: Mapping[str, ApiPage] = {
    "/api/v1/me": ApiPage("Who asks, what they see, and the ways to log in", ViewerFacts),
    "/api/v1/status": ApiPage("The service and its nodes", ServiceStatus),
    "/api/v1/nodes": ApiPage("Every node", {"nodes": tuple[NodeStatus, ...]}),
    "/api/v1/jobs": ApiPage(
        "Every watched job with all its ranks", {"jobs": tuple[JobView, ...], "seen_as": str | None},
        text=f"Large: about 700 bytes a rank. Screens use /api/v1/overview. {_SEEN_AS}",
    ),
    "/api/v1/overview": ApiPage("One line for each job, the most severe first", Overview),
    "/api/v1/job": ApiPage("One job, with one line for each rank", JobPage, (*_JOB, _RANK), errors=(404,)),
    "/api/v1/node-overview": ApiPage("One line for each node, with its GPUs and the jobs on it", NodesPage),
    "/api/v1/node": ApiPage(
        "One node with its GPUs, and one line for each rank on it", NodePage,
        (Parameter("node_id", "As in `/api/v1/node-overview`.",
                   {"type": "string", "minLength": 1, "maxLength": MAX_NODE_ID_CHARS}, required=True),),
        errors=(404,),
    ),
    "/api/v1/events": ApiPage(
        "Events, oldest first", {"events": tuple[Event, ...]},
        (Parameter("after", "Only events after this number.", _whole(default=0)),),
    ),
    "/api/v1/memory": ApiPage(
        "Memory of ranks over time",
        {"job_id": str, "attempt": int, "uid": int | None, "group": str, "ranks": tuple[RankMemory, ...]},
        (
            Parameter("incident", "Of the ranks of this incident; job_id, attempt and uid are ignored then.", _whole()),
            Parameter(_JOB_ID.name, "Of the ranks of this job.", _JOB_ID.schema), *_JOB[1:], _RANK,
        ),
        errors=(404,),
        text="Of ranks that are gone: what the latest record of the job keeps (with uid: the fullest ranks), or the "
        "incident.",
    ),
    "/api/v1/heat-map": ApiPage(
        "The share of its limit that each rank of a job held over time, on one time axis", HeatMap,
        (*_JOB, Parameter("columns", "Stretches of time.", _whole(default=COLUMNS, most=MAX_COLUMNS))), errors=(404,),
        text=f"A job of more than {MAX_ROWS} ranks has a row for each node.",
    ),
    "/api/v1/incidents": ApiPage(
        "Incidents, newest first", {"incidents": tuple[IncidentLine, ...], "seen_as": str | None},
        (Parameter("all", "1: include closed incidents.", _whole(default=0, most=1)), _SINCE, _LIMIT), text=_SEEN_AS,
    ),
    "/api/v1/incident": ApiPage(
        "One incident with its history and decisions",
        {
            "incident": Incident, "history": tuple[ToldChange, ...], "decisions": tuple[DecisionRecord, ...],
            "answers": tuple[GradeAnswer, ...], "acts": tuple[PersonAct, ...], "left_out": int,
        },
        (Parameter("number", "The incident's number.", _whole(default=0)),), errors=(404,),
    ),
    "/api/v1/incident-marks": ApiPage(
        "A mark for each incident that changes whenever the incident does", {"marks": Mapping[int, str]}, (_SINCE,)
    ),
    "/api/v1/incident-changes": ApiPage(
        "Changes of all incidents, oldest first",
        {"changes": tuple[IncidentChange, ...], "facts": Mapping[int, JobFacts], "left_out": int}, (_SINCE,),
    ),
    "/api/v1/decisions": ApiPage(
        "Decisions, and acts of people, oldest first",
        {"decisions": tuple[DecisionRecord, ...], "left_out": int, "acts": tuple[PersonAct, ...]}, (_SINCE, _LIMIT),
    ),
    "/api/v1/ended-jobs": ApiPage(
        "Records of ended jobs, the last one first",
        {"jobs": tuple[JobRecord, ...], "left_out": int, "seen_as": str | None}, (
            _SINCE, Parameter("until", "Leave out what ended at or after this time (unix seconds).", _whole()),
            Parameter("user", "Only jobs of this owner.", _NAME), Parameter("account", "Only of this account.", _NAME),
            Parameter("name", f"Only jobs of this name; {ANY} in it stands for any characters.", _NAME),
            Parameter(
                "ended", "Only jobs that ended so.", {"type": "string", "enum": [end.value for end in JobEnd]}
            ),
            Parameter("job_id", "Only of this job, or of this task of an array (123_4).", _NAME), _LIMIT,
        ), text=_SEEN_AS,
    ),
    "/api/v1/job-record": ApiPage(
        "The record of one job, running or ended: its latest start, with its ranks, incidents and all its attempts",
        {
            "record": JobRecord, "memory": JobMemory | None, "incidents": tuple[IncidentLine, ...],
            "attempts": tuple[JobRecord, ...], "has_profile": bool, "other_uids": tuple[int, ...],
        },
        (
            Parameter("job_id", "The job id, or a task of an array (123_4).", _NAME),
            Parameter("name", "The job's name, where the id is not known.", _NAME),
            Parameter("attempt", "The attempt of the job; left out: the latest.", _whole()), _UID,
        ),
        errors=(404,),
    ),
    "/api/v1/usage": ApiPage(
        "What ended runs of 10 minutes and more had and needed, those that left most memory unused first",
        {"usage": tuple[SizedUsage, ...], "seen_as": str | None},
        (
            Parameter("by", "What runs are summed up by.", {"type": "string", "enum": [by.value for by in UsageBy]}),
            Parameter("user", "Only runs of this user.", _NAME),
            Parameter("name", "Only runs with this job name; `*` stands for any characters.", _NAME),
            _SINCE, _LIMIT,
        ),
        text=_SEEN_AS,
    ),
    "/api/v1/evidence": ApiPage(
        "Evidence of growth for a job or an incident", {"evidence": tuple[Evidence, ...]},
        (
            Parameter("incident", "Of this incident; job_id, attempt and uid are ignored then.", _whole()),
            Parameter(_JOB_ID.name, "Of this job, with uid.", _JOB_ID.schema), *_JOB[1:],
            Parameter("limit", "Maximum number of results.", _whole(default=MAX_PIECES, most=MAX_PIECES)),
        ),
        errors=(404,),
    ),
    "/api/v1/profiled-jobs": ApiPage(
        "Jobs with memory profiles, the newest first, and ranks of running jobs that have no new one, with the reason",
        {"jobs": tuple[ProfiledJob, ...], "problems": tuple[ProfileProblem, ...], "seen_as": str | None},
        (Parameter("limit", "Maximum number of results.", _whole(default=MAX_JOBS, most=MAX_JOBS)),), text=_SEEN_AS,
    ),
    "/api/v1/profiles": ApiPage(
        "What fills the GPUs of a job's ranks at their peaks, by rank",
        {"profiles": tuple[RankProfile, ...], "asked": tuple[AskedProfile, ...]}, _OWN_JOB, errors=(404,),
        text="packed is empty here: /api/v1/profile has the whole of one rank.",
        form=Form(
            "Ask running ranks for a memory profile now: the job's owner, or an admin",
            (*_OWN_JOB, Parameter("ranks", "These ranks, such as 0,3; left out: all.", _RANKS)),
            {"asked": tuple[AskedProfile, ...]},
        ),
    ),
    "/api/v1/profile": ApiPage(
        "The memory profile of one rank", {"about": RankProfile, "profile": StepProfile},
        (*_OWN_JOB, Parameter("rank", "The rank.", _whole(), required=True)), errors=(404,),
    ),
    "/api/v1/grades": ApiPage(
        "Incidents of growth that notified their owner, or would have, with their grades",
        {"incidents": tuple[GradedIncident, ...], "left_out": int, "seen_as": str | None}, (_SINCE, _LIMIT),
        text=_SEEN_AS, form=Form(_GRADES, _ANSWER, {"answers": tuple[GradeAnswer, ...], "yours": GradeAnswer | None}),
    ),
    "/api/v1/acts": ApiPage(
        "What people asked for about an incident, and what became of it, oldest first",
        {"acts": tuple[PersonAct, ...], "may": tuple[ActKind, ...]},
        (Parameter("incident", "The incident's number.", _whole(most=MAX_NUMBER), required=True),),
        errors=(404,), form=Form(_ACT, _ACT_FIELDS, {"act": PersonAct, "text": str}),
    ),
    "/api/v1/policy": ApiPage("Status of incidents, policy and actions", LoopStatus),
    "/api/v1/openapi.json": ApiPage("This document", object),
    "/": ApiPage("The web UI: its page of jobs", None, (_WORDS, _SORT), _HTML),
    "/jobs": ApiPage("Jobs, the one to look at first on top", None, (_WORDS, _SORT), _HTML),
    "/job": ApiPage("One job, running or ended", None, (*_JOB, _RANK, _WORDS), _HTML, (404,)),
    "/incidents": ApiPage(
        "Incidents", None, (Parameter("show", "all: closed ones as well.", {"type": "string"}),), _HTML
    ),
    "/report": ApiPage(
        "One incident", None, (Parameter("incident", "The incident's number.", _whole(default=0)),), _HTML, (404,)
    ),
    "/nodes": ApiPage(
        "Nodes, their GPUs and whose ranks are on them", None,
        (_WORDS, Parameter("show", "problem, unknown: only such nodes.", {"type": "string"})), _HTML,
    ),
    "/history": ApiPage(
        "Jobs that ended", None,
        (
            *(Parameter(name, f"Only of this {name}.", {"type": "string"}) for name in ("user", "name", "account")),
            Parameter("ended", "Only jobs that ended so.", {"type": "string"}),
            Parameter("days", "How far back: 1, 7, 30 or 90 days.", {"type": "string"}),
        ),
        _HTML,
    ),
    "/policy": ApiPage("What is done, would be done and is on hold, and why", None, (), _HTML),
    "/profile": ApiPage("Memory profiles of a job's ranks", None, _OWN_JOB, _HTML, (404,)),
    "/compare": ApiPage(
        "Two memory profiles side by side", None,
        tuple(Parameter(name, "A rank, as the form sends it.", {"type": "string"}) for name in ("before", "after")),
        _HTML,
    ),
    "/ui/site.css": ApiPage("The style sheet of the web UI", None, (), ("text/css; charset=utf-8",)),
    "/ui/site.js": ApiPage("The script of the web UI", None, (), ("text/javascript; charset=utf-8",)),
    "/grade": ApiPage(
        "A form to grade an incident", None,
        (Parameter("incident", "The incident's number.", _whole(), required=True),), _HTML, (404,),
        form=Form(_GRADES, _ANSWER),
    ),
    "/act": ApiPage(
        "A form to act on an incident", None,
        (Parameter("incident", "The incident's number.", _whole(most=MAX_NUMBER), required=True),), _HTML, (404,),
        form=Form(_ACT, _ACT_FIELDS),
    ),
    "/login": ApiPage(
        "A form to log in with a browser", None,
        (_NEXT, Parameter("again", "1: the browser was led here by this page.", {"type": "string"})), _HTML,
        text="Begins no session. Whoever is logged in is led to next.",
        form=Form("Log in: 303 with a session cookie, or the form with the reason", _LOGIN),
    ),
    "/logout": ApiPage(
        "A form to log out", None, (), _HTML, form=Form("End the session: 303 to the form to log in", ()),
    ),
    "/runbooks": ApiPage("What each alert means, and what to do", None, (), _HTML),
    "/sd": ApiPage("Targets for Prometheus' http_sd_configs", tuple[TargetGroup, ...]),
    "/metrics": ApiPage("Metrics of jobs, incidents and actions, for Prometheus", None, (), _EXPOSITIONS),
    "/healthz": ApiPage("Whether the coordinator answers", None, (), ("text/plain; charset=utf-8",)),
}  # fmt: skip
"""Every page of ``CoordinatorService.routes``."""

_ALWAYS: Mapping[int, str] = {
    400: "A parameter is missing or out of range.",
    401: "Not authenticated; only if authentication is on.",
    403: "Not allowed for this user.",
    421: "Host has a name that may be another site's; only without authentication.",
    429: "Too many wrong passwords from this address: try later.",
    500: "The page failed; see the coordinator's log.",
    503: "Too many requests at once, or the database is unavailable.",
}
_OF_FORMS: Mapping[int, str] = {
    400: "A field is missing, out of range, duplicate or unknown.",
    411: "The form has no Content-Length.",
    413: "The form is too long.",
    415: "The body is not a form.",
}
_SOMETIMES: Mapping[int, str] = {404: "No such incident or job, or it belongs to someone else."}


_MUNGE = "`Munge CREDENTIAL`, where munge_login is on."
_SESSION = f"Begun at /login; over TLS it is called {SECURE_COOKIE}."


def openapi_document() -> Schema:
    schemas = Schemas()
    paths = {path: _methods(path, page, schemas) for path, page in PAGES.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegauge coordinator API",
            "version": __version__,
            "description": "Read only, except for people's acts on incidents, grades among them, and requests for "
            "memory profiles. Sizes are "
            "bytes, times are unix seconds; null is unknown. Keys may be added.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"password": []}, {"token": []}, {"munge": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas.components(), "Error": _ERROR},
            "securitySchemes": {
                "password": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
                "munge": {"type": "apiKey", "in": "header", "name": "Authorization", "description": _MUNGE},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": _SESSION},
            },
        },
    }


def openapi_json() -> bytes:
    return json.dumps(openapi_document(), ensure_ascii=False, separators=(",", ":")).encode()


_ERROR: Schema = {
    "type": "object",
    "description": "What is wrong.",
    "properties": {"error": {"type": "string"}, "pages": {"type": "array", "items": {"type": "string"}}},
    "required": ["error"],
}


_UNIONS = (Union, types.UnionType)
_SCALARS: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    str: {"type": "string"},
    float: {"type": ["number", "null"]},
    object: {},
    Any: {},
}


class Schemas:
    """JSON Schemas of values as ``core.wire.to_wire`` writes them, derived from their types.

    JSON Schema 2020-12, as in OpenAPI 3.1. Classes are collected by name: ``#/components/schemas/NAME``. A float that
    is infinite or unknown is ``null``, so every float may be ``null``.
    """

    def __init__(self) -> None:
        self._forms: dict[str, type] = {}
        self._schemas: dict[str, Schema] = {}

    def of(self, form: Any) -> Schema:
        """The schema of a type. Raises ``TypeError`` for one that has no JSON form."""
        if hasattr(form, "__supertype__"):
            return self.of(form.__supertype__)
        if isinstance(form, Mapping):  # what a page puts together itself
            properties = {key: self.of(part) for key, part in form.items()}
            return {"type": "object", "properties": properties, "required": list(form)}
        if form is IncidentLine:
            more = self.of(
                {"ranks": tuple[int, ...], "last_decision": DecisionRecord | None, "acknowledged_by": str | None}
            )
            return {"allOf": [self.of(Incident), more]}
        if form in _SCALARS:
            return _SCALARS[form]
        origin, parts = get_origin(form), get_args(form)
        if origin in _UNIONS:
            return self._optional(parts)
        if origin in (tuple, frozenset, list, Sequence):
            return self._list(parts)
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(parts[1])}
        if isinstance(form, type) and issubclass(form, Enum):
            return self._named(form, lambda: {"enum": [member.value for member in form]})
        if isinstance(form, type) and (dataclasses.is_dataclass(form) or hasattr(form, "_fields")):
            return self._named(form, lambda: self._object(form))
        raise TypeError(f"{form} has no JSON form")

    def components(self) -> dict[str, Schema]:
        return dict(sorted(self._schemas.items()))

    def _optional(self, parts: tuple[Any, ...]) -> Schema:
        inner = [self.of(part) for part in parts if part is not type(None)]
        return inner[0] if len(inner) == len(parts) == 1 else {"anyOf": [*inner, {"type": "null"}]}

    def _list(self, parts: tuple[Any, ...]) -> Schema:
        if len(parts) == 1 or parts[-1] is Ellipsis:
            return {"type": "array", "items": self.of(parts[0])}
        length = len(parts)
        return {
            "type": "array",
            "prefixItems": [self.of(part) for part in parts],
            "minItems": length,
            "maxItems": length,
        }

    def _named(self, form: type, make: Callable[[], Schema]) -> Schema:
        name = form.__name__
        if self._forms.setdefault(name, form) is not form:
            raise TypeError(f"two classes are called {name}: {self._forms[name].__module__} and {form.__module__}")
        if name not in self._schemas:
            self._schemas[name] = {}  # a value may hold others of its own class
            self._schemas[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, form: Any) -> Schema:
        """``to_wire`` writes every field. Later versions may write more, which readers pass over."""
        hints = get_type_hints(form)
        names = form._fields if hasattr(form, "_fields") else [field.name for field in dataclasses.fields(form)]
        text = (form.__doc__ or "").strip()
        is_written = text and not text.startswith(f"{form.__name__}(")
        said = {"description": " ".join(text.partition("\n\n")[0].split())} if is_written else {}
        return {
            "type": "object",
            **said,
            "properties": {name: self.of(hints[name]) for name in names},
            "required": list(names),
        }


def _methods(path: str, page: ApiPage, schemas: Schemas) -> Schema:
    name = path.removeprefix("/api/v1/").strip("/").replace("-", "_").replace(".", "_")
    said = {**_ALWAYS, **{status: _SOMETIMES[status] for status in page.errors}}
    read = {
        "operationId": name,
        "summary": page.summary,
        **({"description": page.text} if page.text else {}),
        "parameters": [parameter.document() for parameter in page.parameters],
        "responses": _responses(page.summary, page.answer, page.media, said, schemas),
    }
    if page.form is None:
        return {"get": read}
    form, said = page.form, {**_ALWAYS, **_SOMETIMES, **_OF_FORMS}
    send = {
        "operationId": f"{name}_answer",
        "summary": form.summary,
        "parameters": [],
        "requestBody": {"required": True, "content": {FORM_TYPE: {"schema": _form_schema(form)}}},
        "responses": _responses(form.summary, form.answer, page.media, said, schemas),
    }
    return {"get": read, "post": send}


def _form_schema(form: Form) -> Schema:
    return {
        "type": "object",
        "properties": {field.name: {**field.schema, "description": field.text} for field in form.fields},
        "required": [field.name for field in form.fields if field.required],
        "additionalProperties": False,
    }


def _responses(
    summary: str, answer: Any, media: tuple[str, ...], errors: Mapping[int, str], schemas: Schemas
) -> Schema:  # fmt: skip
    content: Schema = {} if answer is None else {"schema": schemas.of(answer)}
    return {
        "200": {"description": summary, "content": {each: dict(content) for each in media}},
        **{str(status): _error(text) for status, text in sorted(errors.items())},
    }


def _error(text: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": text, "content": content}
