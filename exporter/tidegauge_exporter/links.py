"""Addresses that messages, alerts and dashboards link to. Only configured addresses are linked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.http.loopback import is_loopback

FLEET: Final = "tidegauge-fleet"
JOB: Final = "tidegauge-job"
RANK: Final = "tidegauge-rank"
NODE: Final = "tidegauge-node"
INCIDENTS: Final = "tidegauge-incidents"
EFFICIENCY: Final = "tidegauge-efficiency"
"""Uids of the dashboards; links of other people rely on them."""

DASHBOARDS: Final = "tidegauge-"
"""The beginning of each of them."""

TimeRange = tuple[float, float | None]
"""Begin and end of the shown time in unix seconds; without an end: until now."""


@dataclass(frozen=True)
class Links:
    """Makes addresses of dashboards and pages; ``None`` for those that are not configured."""

    grafana_url: str | None = None
    """Grafana as people reach it (setting ``grafana_url``)."""
    service_url: str | None = None
    """The coordinator's API as people reach it (setting ``public_url``), which has reports and runbooks."""
    alertmanager_url: str | None = None
    """Alertmanager as the notifier reaches it (setting ``alertmanager_url``)."""

    def fleet(self, cluster: str, shown: TimeRange) -> str | None:
        return self._dashboard(FLEET, shown, cluster=cluster)

    def incidents(self, cluster: str, shown: TimeRange) -> str | None:
        return self._dashboard(INCIDENTS, shown, cluster=cluster)

    def job(self, cluster: str, job: JobKey, shown: TimeRange) -> str | None:
        return self._dashboard(JOB, shown, cluster=cluster, job_id=job.job_id, attempt=str(job.attempt))

    def rank(self, cluster: str, job: JobKey, rank: int, shown: TimeRange) -> str | None:
        return self._dashboard(
            RANK, shown, cluster=cluster, job_id=job.job_id, attempt=str(job.attempt), rank=str(rank)
        )

    def job_page(self, job: JobKey) -> str | None:
        """The coordinator's page of a job."""
        return self.page(job_address(job))

    def incident(self, number: int) -> str | None:
        """The report of an incident."""
        return self.page(incident_address(number))

    def grade(self, number: int) -> str | None:
        """The question whether an incident was a leak."""
        return self.page(f"grade?incident={number}")

    def act(self, number: int) -> str | None:
        """The form to acknowledge an incident and to exempt its job."""
        return self.page(f"act?incident={number}")

    def runbook(self, alert: str) -> str | None:
        """The meaning of an alert and what to do about it."""
        return self.page(f"runbooks#{quote(alert.lower())}")

    def exemption(self) -> str | None:
        """The ways in which an owner keeps Tidegauge from acting on a job."""
        return self.page("runbooks#keep-my-job-running")

    # Rules are shipped with addresses of this machine, and Alertmanager calls itself by its own; people are elsewhere.

    def alert_runbook(self, alert: str, annotated: str | None) -> str | None:
        """The runbook of one of our alerts: ``annotated`` at the alert, unless that is on this machine."""
        if annotated and not _is_here(annotated):
            return annotated
        return self.runbook(alert) or annotated

    def alert_dashboard(self, annotated: str | None) -> str | None:
        """The dashboard ``annotated`` at one of our alerts, in the configured Grafana if it is on this machine."""
        _, found, rest = (annotated or "").partition(f"/d/{DASHBOARDS}")
        if not (annotated and found and self.grafana_url and _is_here(annotated)):
            return annotated
        return f"{self.grafana_url.rstrip('/')}{found}{rest}"

    def alert_job(self, annotated: str | None) -> str | None:
        """The coordinator's page of the job, ``annotated`` at one of our alerts; at the configured address if it is on
        this machine, and none if there is no such address."""
        _, found, rest = (annotated or "").partition("/job?")
        if annotated and found and _is_here(annotated):
            return self.page(f"job?{rest}")
        return annotated

    def alertmanager(self, external_url: str) -> str | None:
        """Alertmanager for people: as it calls itself (``external_url``), unless that is on this machine, and they are
        elsewhere."""
        if not _is_here(external_url):
            return external_url
        if self.alertmanager_url and not _is_here(self.alertmanager_url):
            return self.alertmanager_url
        return external_url if self.service_url is None or _is_here(self.service_url) else None

    def page(self, path: str) -> str | None:
        """A page of the coordinator, such as ``jobs``."""
        return f"{self.service_url.rstrip('/')}/{path}" if self.service_url else None

    def _dashboard(self, uid: str, shown: TimeRange, **variables: str) -> str | None:
        if not self.grafana_url:
            return None
        from_unix_s, to_unix_s = shown
        query = {f"var-{name}": value for name, value in variables.items()}
        query["from"] = str(int(from_unix_s * 1000))
        query["to"] = "now" if to_unix_s is None else str(int(to_unix_s * 1000))
        return f"{self.grafana_url.rstrip('/')}/d/{uid}?{urlencode(query, errors='replace')}"


MAX_URL_CHARS = 3000
"""Slack's limit, which no address here comes near."""

BEFORE_S = 1800.0
"""Seconds before the incident began, and after it ended, that a dashboard shows."""


def job_address(job: JobKey, **more: object) -> str:
    """The address of a job's page, relative to the coordinator's other pages."""
    return _address("job", {**job._asdict(), **more})


def profile_address(job: JobKey) -> str:
    """The address of the page with the memory profile of a job, relative as ``job_address``."""
    return _address("profile", job._asdict())


def heat_map_address(job: JobKey) -> str:
    """The address of the figures of a job's map, below that of the API."""
    return _address("heat-map", job._asdict())


def incident_address(number: int) -> str:
    """The address of the report of an incident, relative as ``job_address``."""
    return _address("report", {"incident": number})


def _address(page: str, fields: Mapping[str, object]) -> str:
    """Fields that are empty are left out."""
    known = {name: value for name, value in fields.items() if value not in ("", None)}
    return f"{page}?{urlencode(known, errors='replace')}"


class Link(NamedTuple):
    """A label and its address; a link without an address is left out."""

    label: str
    url: str | None


def shown_time(incident: Incident) -> TimeRange:
    """The time of the incident, and ``BEFORE_S`` around it."""
    ended_s = incident.closed_unix_s
    return incident.opened_unix_s - BEFORE_S, None if ended_s is None else ended_s + BEFORE_S


def chosen_links(incident: Incident, *, cluster: str, links: Links) -> list[Link]:
    """The configured links to dashboard, job, report, exemption and grade of an incident that is not tamed."""
    job = incident.key.job
    chosen = [
        Link("Dashboard", links.job(cluster, job, shown_time(incident))),
        Link("Job", links.job_page(job)),
        Link("Report", links.incident(incident.number)),
    ]
    if incident.is_open:
        chosen.append(Link("Keep my job running", links.exemption()))
    if incident.key.cause.is_growth:
        chosen.append(Link("Say whether it is a leak", links.grade(incident.number)))
    return [link for link in chosen if link.url is not None and is_web(link.url)]


def _is_here(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def is_web(url: str) -> bool:
    """True for an address that a browser opens as a page, and that Slack takes."""
    shown = url.isprintable() and " " not in url
    return shown and len(url) <= MAX_URL_CHARS and url.startswith(("http://", "https://"))
