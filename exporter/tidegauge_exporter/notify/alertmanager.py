"""Open incidents as alerts of Alertmanager (``POST /api/v2/alerts``), which decides when people are notified.

Nothing is kept over a restart: an alert that is not refreshed ends by itself, and a repeated one changes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, NamedTuple

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.incidents.wording import incident_sentence, meaning
from tidegauge.core.jobs.rank_groups import launch_in_replica
from tidegauge.core.verdicts import Severity
from tidegauge.http.client import HttpAnswer, HttpClient, NoResponseError
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.headlines import replicas_sentence
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.values import INCIDENT_ALERT, Story
from tidegauge_exporter.notify.deliveries import Deliveries
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.notify.replicas import told_as_one
from tidegauge_exporter.notify.retries import is_due

log = logging.getLogger(__name__)

REFRESH_EVERY_S = 60.0
LASTS_S = 240.0
"""An alert ends by itself if it was not refreshed for this long: three tries may fail, and the service may restart."""
ENDS_LATER_S = 90.0
"""Seconds between the end of an incident and of its alert: the alert mutes those of Prometheus' rules about the same
job, which take a scrape, an evaluation and a staleness to notice that the job has gone. (An end in the future would not
do: of two such ends Alertmanager keeps the later one.)"""
MAX_ALERTS_PER_REQUEST = 64
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024
MAX_ERROR_CHARS = 200
AWAY_AFTER_S = 600.0


class _Posted(NamedTuple):
    labels: Mapping[str, str]
    alert: Mapping[str, Any]
    at_unix_s: float
    is_open: bool


class AlertmanagerSink:
    """The sink that posts incidents to Alertmanager. ``url`` may have a path, as behind a gateway.

    Raises ``ValueError`` for a URL that is invalid or has a password in it. One thread calls ``take``; ``is_away`` may
    be called from any.
    """

    name = "alertmanager"

    def __init__(
        self, url: str, *, cluster: str, links: Links, wall_s: Callable[[], float], timeout_s: float = TIMEOUT_S
    ) -> None:
        self.deliveries = Deliveries(wall_s=wall_s)
        self._client = HttpClient(
            url, timeout_s=timeout_s, max_answer_bytes=MAX_ANSWER_BYTES,
            looks_like="the address of an Alertmanager looks like http://127.0.0.1:9093, without a password",
        )  # fmt: skip
        self._url = url.rstrip("/")
        self._cluster = cluster
        self._links = links
        self._wall_s = wall_s
        self._posted: dict[int, _Posted] = {}
        """Alerts that this process keeps firing, by number of the incident."""
        self._over_since_s: dict[int, float] = {}
        """Alerts whose incident is over, and since when."""
        self._settled: frozenset[int] = frozenset()
        """Incidents without alerts of an earlier process."""
        self._failing_since_unix_s: float | None = None

    def check(self) -> None:
        answer = self._ask("GET", "/api/v2/receivers").lstrip()
        if not answer.startswith(b"[") or b'"name"' not in answer:  # not parsed: the end of a long one is missing
            raise self._is_another(answer)

    def take(self, stories: Sequence[Story]) -> None:
        """Post new and ended alerts at once, and the others once a minute."""
        now_s, stories = self._wall_s(), told_as_one(stories)
        wanted = {story.incident.number: story for story in stories if _is_worth_an_alert(story.incident)}
        over = self._over(wanted, now_s)
        ended = {story.incident.number: story for story in stories if self._ended_anew(story.incident)}
        due = [
            story for number, story in sorted((wanted | ended).items())
            if number in ended or self._is_due(story, now_s)
        ]  # fmt: skip
        fresh = [story for story in stories if self._may_have_left_alerts(story.incident, now_s)]
        alerts = [alert for story in fresh for alert in self._left_behind(story, now_s)]
        alerts += [self._resolved(number, now_s) for number in over]
        for story in due:
            before = self._posted.get(story.incident.number)
            if before is not None and before.labels != self._labels(story):
                alerts.append(self._resolved(story.incident.number, now_s))
            alerts.append(self._firing(story, now_s))
        for first in range(0, len(alerts), MAX_ALERTS_PER_REQUEST):
            self._post(alerts[first : first + MAX_ALERTS_PER_REQUEST])
        settled = self._settled | {story.incident.number for story in fresh}
        self._settled = settled & {story.incident.number for story in stories}
        for number in over:
            del self._posted[number]
        for story in due:
            alert, incident = self._firing(story, now_s), story.incident
            self._posted[incident.number] = _Posted(self._labels(story), alert, now_s, incident.is_open)

    def is_away(self) -> bool:
        """True if Alertmanager has taken nothing for ten minutes."""
        since_s = self._failing_since_unix_s
        return since_s is not None and is_due(since_s, AWAY_AFTER_S, now_unix_s=self._wall_s())

    def _is_due(self, story: Story, now_s: float) -> bool:
        before = self._posted.get(story.incident.number)
        if before is None or before.labels != self._labels(story):
            return True
        return is_due(before.at_unix_s, REFRESH_EVERY_S, now_unix_s=now_s)

    def _ended_anew(self, incident: Incident) -> bool:
        """Whether it ended in an error that its alert, which goes on for a while, says to be still to come."""
        posted = self._posted.get(incident.number)
        has_died = not incident.is_open and oom_end(incident) is not None
        return has_died and posted is not None and posted.is_open

    def _over(self, wanted: Collection[int], now_s: float) -> list[int]:
        gone = [number for number in self._posted if number not in wanted]
        self._over_since_s = {number: self._over_since_s.get(number, now_s) for number in gone}
        return [number for number in gone if is_due(self._over_since_s[number], ENDS_LATER_S, now_unix_s=now_s)]

    def _may_have_left_alerts(self, incident: Incident, now_s: float) -> bool:
        ended_s = incident.closed_unix_s
        return incident.number not in self._settled and (ended_s is None or now_s - ended_s <= LASTS_S)

    def _left_behind(self, story: Story, now_s: float) -> list[dict[str, Any]]:
        """The ends of alerts about this incident that an earlier process posted: one for every severity that it had
        and, while it is open, no longer has."""
        incident = story.incident
        had = {change.incident.severity for change in story.history}
        over = had - {incident.severity} if _is_worth_an_alert(incident) else had
        return [
            _ended(self._firing(replace(story, incident=replace(incident, severity=severity)), now_s), now_s)
            for severity in sorted(over, key=lambda severity: severity.level)
            if severity.level >= Severity.WARNING.level
        ]

    def _labels(self, story: Story) -> dict[str, str]:
        incident, replicas = story.incident, story.replicas
        job, group = incident.key.job, incident.group_name
        labels = {
            "alertname": INCIDENT_ALERT,
            "cluster": self._cluster,
            "job_id": job.job_id,
            "attempt": str(job.attempt),
            "group": group if replicas is None else launch_in_replica(group),
            "server": "" if replicas is None else replicas.kind,
            "cause": incident.key.cause.value,
            "severity": incident.severity.value,
            "incident": str(incident.number),
            "user_name": incident.user_name,
        }
        return {name: value for name, value in labels.items() if value}  # to Alertmanager, an empty one is none

    def _firing(self, story: Story, now_s: float) -> dict[str, Any]:
        incident = story.incident
        opened_s = min(incident.opened_unix_s, now_s)
        report = self._links.incident(story.look_first.number)
        dashboard = self._links.job(self._cluster, incident.key.job, (opened_s - 3600.0, None))
        annotations = {
            "summary": f"{replicas_sentence(incident, story.replicas)} {incident_sentence(incident)}".strip(),
            "description": incident.explanation or meaning(incident),
            "runbook_url": self._links.runbook(INCIDENT_ALERT),
            "dashboard_url": dashboard,
            "job_url": self._links.job_page(incident.key.job),
            "report_url": report,
        }
        alert = {
            "labels": self._labels(story),
            "annotations": {name: text for name, text in annotations.items() if text},
            "startsAt": _rfc3339(opened_s),
            "endsAt": _rfc3339(now_s + LASTS_S),
        }
        source = report or dashboard
        return alert if source is None else {**alert, "generatorURL": source}

    def _resolved(self, number: int, now_s: float) -> dict[str, Any]:
        return _ended(self._posted[number].alert, now_s)

    def _post(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        if self._failing_since_unix_s is None:
            self._failing_since_unix_s = self._wall_s()  # until this has worked
        with self.deliveries.attempt():
            answer = self._ask("POST", "/api/v2/alerts", json.dumps(alerts).encode()).lstrip()
            if answer and not answer.startswith((b"{", b"[")):  # its own is empty
                raise self._is_another(answer)
        self._failing_since_unix_s = None

    def _is_another(self, answer: bytes) -> RefusedError:
        """The error for a good answer that is not Alertmanager's, as of a login page."""
        words = tidy(answer.decode(errors="replace"), MAX_ERROR_CHARS)
        return RefusedError(
            f"{self._url} does not answer as Alertmanager does: {words or '(nothing)'}; is alertmanager_url the "
            "address of an Alertmanager, with no login page in front of it?"
        )

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The beginning of a good answer."""
        try:
            answer = self._client.ask(method, path, body, {})
        except NoResponseError as error:
            raise RetryLaterError(f"Alertmanager at {self._url} does not answer: {error}") from error
        self._check(answer)
        return answer.body

    def _check(self, answer: HttpAnswer) -> None:
        status, _, body = answer
        if status == 200:
            return
        words = tidy(body.decode(errors="replace"), MAX_ERROR_CHARS)
        said = f"Alertmanager at {self._url} answers {status}: {words or '(nothing)'}"
        if status >= 500 or status == 429:
            raise RetryLaterError(said)
        if status == 404 or 300 <= status < 400:
            raise RefusedError(f"{said}; is alertmanager_url the address of an Alertmanager?")
        raise RefusedError(said)


def _is_worth_an_alert(incident: Incident) -> bool:
    return incident.is_open and incident.severity.level >= Severity.WARNING.level


def _ended(alert: Mapping[str, Any], at_s: float) -> dict[str, Any]:
    # Set back a clock, and it would end before it began, which Alertmanager refuses.
    return {**alert, "endsAt": max(_rfc3339(at_s), alert["startsAt"])}


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(timespec="milliseconds")
