"""Requests of ``tidegauge top`` to the coordinator: one or two bounded ones per refresh, and evidence by a key."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import CommandError
from tidegauge.cli.service_api import LONG_ANSWER_S, api_url, ask, ask_remote_rank, asks_here, read
from tidegauge.cli.top.model import IncidentRow
from tidegauge.cluster.api.client import TIMEOUT_S
from tidegauge.cluster.api.overview import JobPage, Overview
from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.evidence.request import Window, evidence_request
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord, LoopStatus
from tidegauge.core.memory_history import MemoryPoint

MAX_INCIDENTS = 50
"""Maximum number of open incidents per refresh, the newest."""


class OpenIncidents(NamedTuple):
    """The open incidents, or why they are unknown."""

    lines: tuple[IncidentRow, ...]
    problem: str | None = None


class ShownIncident(NamedTuple):
    """Everything about one incident."""

    incident: Incident
    history: tuple[Mapping[str, Any], ...]
    """The lines as the API returns them; ``cli.timeline`` reads them."""
    records: tuple[DecisionRecord, ...]
    status: LoopStatus


Ask = Callable[[str, float], dict[str, Any]]
"""A function that returns the API's answer to a path, within a timeout in seconds. Raises ``CommandError``."""
AskRank = Callable[[JobKey, int, Mapping[str, Any]], Mapping[str, Any]]
"""A function that returns a rank's answer to a request. Raises ``CommandError``."""


class Service:
    """The coordinator's API as values. Its methods raise ``CommandError`` if there is no answer."""

    def __init__(self, ask: Ask, address: Callable[[], str], ask_rank: AskRank) -> None:
        self._ask = ask
        self._address = address
        self._ask_rank = ask_rank

    @classmethod
    def of(cls, args: argparse.Namespace) -> Service:
        """The service that every command asks; it is looked up at each request, because it may have restarted."""
        public_url = load_settings(args).public_url
        return cls(
            lambda path, timeout_s: ask(args, path, timeout_s=timeout_s, quietly=True),
            lambda: public_url or api_url(args),
            lambda job, rank, request: ask_remote_rank(asks_here(args), job, rank, request),
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
        )

    def ask_evidence(self, job: JobKey, rank: int) -> str:
        """Start collecting evidence on a rank, and return a sentence for the user. Blocks for seconds."""
        evidence_id = f"asked-{secrets.token_hex(8)}"
        self._ask_rank(job, rank, evidence_request(evidence_id, EvidenceReason.ASKED, Window()))
        return f"collecting evidence on rank {rank}: in one or two minutes its incident and `tidegauge report` show it"

    def report_url(self, number: int) -> str:
        """The URL of an incident's report: the public one if the settings have it, else the one on this machine."""
        return f"{self._address().rstrip('/')}/report?incident={number}"


def _incident_line(raw: Mapping[str, Any]) -> IncidentRow:
    last = raw.get("last_decision")
    incident = read(Incident, raw)
    return IncidentRow(
        incident, tuple(raw.get("ranks", incident.ranks)), None if last is None else read(DecisionRecord, last)
    )
