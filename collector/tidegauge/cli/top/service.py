"""Requests of ``tidegauge top`` to the coordinator: bounded ones per refresh, and those that people make by a key."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import CommandError
from tidegauge.cli.policy.grade import recorded_words
from tidegauge.cli.policy.switch import pause_actions, resume_actions
from tidegauge.cli.service_api import LONG_ANSWER_S, api_url, ask, ask_remote_rank, asks_here, read, send
from tidegauge.cli.top.model import IncidentRow
from tidegauge.cluster.api.client import TIMEOUT_S
from tidegauge.cluster.api.overview import JobPage, NodeLine, NodePage, Overview
from tidegauge.cluster.views import Event
from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.evidence.request import MAX_EVENTS, Window, evidence_request
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord, LoopStatus
from tidegauge.core.incidents.acts import ActKind, PersonAct
from tidegauge.core.incidents.grades import Grade
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.memory_history import MemoryPoint

MAX_INCIDENTS = 50
"""Maximum number of incidents or decisions per refresh, the newest."""
MAX_ENDED = 200
"""Maximum number of jobs that ended, the latest."""


class OpenIncidents(NamedTuple):
    """The open incidents, or why they are unknown."""

    lines: tuple[IncidentRow, ...]
    problem: str | None = None


class EndedList(NamedTuple):
    """Jobs that ended, the latest first."""

    records: tuple[JobRecord, ...]
    left_out: int
    """Jobs that ended before these."""


class ShownIncident(NamedTuple):
    """Everything about one incident."""

    incident: Incident
    history: tuple[Mapping[str, Any], ...]
    """The lines as the API returns them; ``cli.timeline`` reads them."""
    records: tuple[DecisionRecord, ...]
    status: LoopStatus
    acts: tuple[PersonAct, ...] = ()


Ask = Callable[[str, float], dict[str, Any]]
"""A function that returns the API's answer to a path, within a timeout in seconds. Raises ``CommandError``."""
Send = Callable[[str, Mapping[str, str]], dict[str, Any]]
"""A function that returns the API's answer to a form of these fields at a path. Raises ``CommandError``."""
Switch = Callable[[str | None], list[str]]
"""A function that sets the head's switch of all actions, for a reason; sentences for the user. Raises
``CommandError``."""
AskRank = Callable[[JobKey, int, Mapping[str, Any]], Mapping[str, Any]]
"""A function that returns a rank's answer to a request. Raises ``CommandError``."""


class Service:
    """The coordinator's API as values. Its methods raise ``CommandError`` if there is no answer."""

    def __init__(
        self, ask: Ask, address: Callable[[], str], ask_rank: AskRank, send: Send, pause: Switch, resume: Switch
    ) -> None:
        self._ask = ask
        self._address = address
        self._ask_rank = ask_rank
        self._send = send
        self.pause = pause
        self.resume = resume

    @classmethod
    def of(cls, args: argparse.Namespace) -> Service:
        """The service that every command asks; it is looked up at each request, because it may have restarted."""
        pages_url = load_settings(args).pages_url
        return cls(
            lambda path, timeout_s: ask(args, path, timeout_s=timeout_s, quietly=True),
            lambda: pages_url or api_url(args),
            lambda job, rank, request: ask_remote_rank(asks_here(args), job, rank, request),
            lambda path, fields: send(args, path, fields),
            lambda reason: pause_actions(_of_this_head(args, "pause"), reason),
            lambda _: resume_actions(_of_this_head(args, "resume")),
        )

    def overview_raw(self) -> dict[str, Any]:
        return self._ask("/api/v1/overview", TIMEOUT_S)

    def job_raw(self, job: JobKey, *, rank: int | None = None) -> dict[str, Any]:
        asked = {**job._asdict(), **({} if rank is None else {"rank": rank})}
        return self._ask(f"/api/v1/job?{urlencode(asked)}", TIMEOUT_S)

    def incidents_raw(self) -> dict[str, Any]:
        return self._ask(f"/api/v1/incidents?limit={MAX_INCIDENTS}", TIMEOUT_S)

    def overview(self) -> Overview:
        return read(Overview, self.overview_raw())

    def job(self, job: JobKey, *, rank: int | None = None) -> JobPage:
        """A job with all its ranks, or one. Raises ``CommandError`` also minutes after the end of the job."""
        return read(JobPage, self.job_raw(job, rank=rank))

    def memory(self, job: JobKey, rank: int) -> tuple[MemoryPoint, ...]:
        """The memory history of a rank, oldest first; empty if the rank is unknown."""
        answer = self._ask(f"/api/v1/memory?{urlencode({**job._asdict(), 'rank': rank})}", TIMEOUT_S)
        return tuple(read(MemoryPoint, point) for told in answer["ranks"] for point in told["points"])

    def incidents(self) -> OpenIncidents:
        """The open incidents. Never raises: jobs are shown while the database of incidents is unavailable."""
        try:
            found = self.incidents_raw()["incidents"]
            return OpenIncidents(tuple(_incident_line(raw) for raw in found))
        except CommandError as error:
            return OpenIncidents((), str(error))

    def incident(self, number: int) -> ShownIncident:
        answer = self._ask(f"/api/v1/incident?number={number}", LONG_ANSWER_S)
        return ShownIncident(
            read(Incident, answer["incident"]),
            tuple(answer["history"]),
            tuple(read(DecisionRecord, raw) for raw in answer["decisions"]),
            read(LoopStatus, self._ask("/api/v1/policy", TIMEOUT_S)),
            tuple(read(PersonAct, raw) for raw in answer.get("acts", ())),  # missing in an older service's answer
        )

    def nodes_raw(self) -> dict[str, Any]:
        raw = self._ask("/api/v1/node-overview", LONG_ANSWER_S)
        for one in raw["nodes"][:1]:  # the others are read as they are drawn
            read(NodeLine, one)
        return raw

    def node_raw(self, node_id: str) -> dict[str, Any]:
        return self._ask(f"/api/v1/node?{urlencode({'node_id': node_id})}", TIMEOUT_S)

    def node(self, node_id: str) -> NodePage:
        return read(NodePage, self.node_raw(node_id))

    def ended_jobs(self) -> EndedList:
        """The jobs that ended last. Raises ``CommandError``, also while the database is unavailable."""
        answer = self._ask(f"/api/v1/ended-jobs?limit={MAX_ENDED}", LONG_ANSWER_S)
        return EndedList(tuple(read(JobRecord, raw) for raw in answer["jobs"]), int(answer["left_out"]))

    def events(self, after: int) -> tuple[Event, ...]:
        """What happened to nodes, jobs and verdicts after the event of this number."""
        return tuple(read(Event, raw) for raw in self._ask(f"/api/v1/events?after={after}", TIMEOUT_S)["events"])

    def latest_incidents(self) -> tuple[Incident, ...]:
        """Open and closed incidents, the newest first."""
        found = self._ask(f"/api/v1/incidents?all=1&limit={MAX_INCIDENTS}", LONG_ANSWER_S)["incidents"]
        return tuple(_incident_line(raw).incident for raw in found)

    def decisions(self) -> tuple[DecisionRecord, ...]:
        """The latest decisions, oldest first."""
        found = self._ask(f"/api/v1/decisions?limit={MAX_INCIDENTS}", LONG_ANSWER_S)["decisions"]
        return tuple(read(DecisionRecord, raw) for raw in found)

    def grade(self, number: int, grade: Grade) -> str:
        """Record whether an incident was a leak, as ``tidegauge policy grade`` does; a sentence for the user."""
        answer = self._send("/api/v1/grades", {"incident": str(number), "grade": grade.value})
        return recorded_words(number, answer)

    def act(self, number: int, kind: ActKind) -> str:
        """Act on an incident, as ``tidegauge incidents acknowledge`` does; a sentence for the user."""
        return str(self._send("/api/v1/acts", {"incident": str(number), "act": kind.value})["text"])

    def ask_profile(self, job: JobKey, rank: int) -> str:
        """Ask for a memory profile of a rank, as ``tidegauge profile --now`` does; a sentence for the user."""
        fields = {name: str(value) for name, value in job._asdict().items() if value != ""}
        self._send("/api/v1/profiles", {**fields, "ranks": str(rank)})
        return f"rank {rank} was asked: in a minute or two `tidegauge profile {job.job_id}` shows what filled its GPU"

    def ask_snapshot(self, job: JobKey, rank: int) -> str:
        """Have a rank write a snapshot, as ``tidegauge snapshot`` does; a sentence for the user. Blocks for seconds."""
        asked = {"command": "snapshot", "reason": EvidenceReason.ASKED.value, "max_events": MAX_EVENTS, "now": False}
        step = self._ask_rank(job, rank, asked).get("step")
        return f"rank {rank} wrote a snapshot at step {step}; its node stores it, and a report of its incident shows it"

    def ask_evidence(self, job: JobKey, rank: int) -> str:
        """Start collecting evidence on a rank, and return a sentence for the user. Blocks for seconds."""
        evidence_id = f"asked-{secrets.token_hex(8)}"
        self._ask_rank(job, rank, evidence_request(evidence_id, EvidenceReason.ASKED, Window()))
        return f"collecting evidence on rank {rank}: in one or two minutes its incident and `tidegauge report` show it"

    def page_url(self, address: str) -> str:
        """The URL of a web page at this relative address: the public one if the settings have it, else the one on this
        machine."""
        return f"{self._address().rstrip('/')}/{address}"


def _of_this_head(args: argparse.Namespace, what: str) -> argparse.Namespace:
    """``args`` for a command on the head's own files. Raises ``CommandError`` if another service is shown."""
    if args.api:
        raise CommandError(
            f"the switch is on the head: run `tidegauge policy {what}` there, as the service's user or root"
        )
    return args


def _incident_line(raw: Mapping[str, Any]) -> IncidentRow:
    last = raw.get("last_decision")
    incident = read(Incident, raw)
    return IncidentRow(
        incident, tuple(raw.get("ranks", incident.ranks)), None if last is None else read(DecisionRecord, last)
    )
