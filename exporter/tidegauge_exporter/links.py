"""Addresses that messages, alerts and dashboards link to. Only what is configured is linked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

FLEET: Final = "tidegauge-fleet"
JOB: Final = "tidegauge-job"
RANK: Final = "tidegauge-rank"
INCIDENTS: Final = "tidegauge-incidents"
"""Uids of the dashboards; links of other people rely on them."""


@dataclass(frozen=True)
class Links:
    """``None`` or an empty text for an address that nobody configured."""

    grafana_url: str | None = None
    """Where people reach Grafana (setting ``grafana_url``)."""
    service_url: str | None = None
    """Where people reach the coordinator's API (setting ``public_url``): reports and runbooks."""

    def fleet(self, *, cluster: str, from_unix_s: float, to_unix_s: float | None) -> str | None:
        """The Fleet dashboard over this time; ``to_unix_s=None``: until now."""
        return self._dashboard(FLEET, {"var-cluster": cluster}, from_unix_s, to_unix_s)

    def incidents(self, *, cluster: str, from_unix_s: float, to_unix_s: float | None) -> str | None:
        """The Incidents dashboard over this time."""
        return self._dashboard(INCIDENTS, {"var-cluster": cluster}, from_unix_s, to_unix_s)

    def job(
        self, *, cluster: str, job_id: str, attempt: int, from_unix_s: float, to_unix_s: float | None
    ) -> str | None:
        """The Job dashboard over this time."""
        return self._dashboard(
            JOB, {"var-cluster": cluster, "var-job_id": job_id, "var-attempt": str(attempt)}, from_unix_s, to_unix_s
        )

    def rank(
        self, *, cluster: str, job_id: str, attempt: int, rank: int, from_unix_s: float, to_unix_s: float | None
    ) -> str | None:
        """The Rank dashboard over this time."""
        variables = {"var-cluster": cluster, "var-job_id": job_id, "var-attempt": str(attempt), "var-rank": str(rank)}
        return self._dashboard(RANK, variables, from_unix_s, to_unix_s)

    def incident(self, number: int) -> str | None:
        """The report of an incident, a page of the coordinator."""
        return None if not self.service_url else f"{self.service_url.rstrip('/')}/report?incident={number}"

    def grade(self, number: int) -> str | None:
        """The question whether an incident was a leak, a page of the coordinator."""
        return None if not self.service_url else f"{self.service_url.rstrip('/')}/grade?incident={number}"

    def runbook(self, alert: str) -> str | None:
        """What an alert means and what to do, a page of the coordinator."""
        return None if not self.service_url else f"{self.service_url.rstrip('/')}/runbooks#{quote(alert.lower())}"

    def exemption(self) -> str | None:
        """How an owner keeps Tidegauge from acting on a job, a page of the coordinator."""
        return None if not self.service_url else f"{self.service_url.rstrip('/')}/runbooks#keep-my-job-running"

    def _dashboard(
        self, uid: str, variables: dict[str, str], from_unix_s: float, to_unix_s: float | None
    ) -> str | None:
        if not self.grafana_url:
            return None
        to = "now" if to_unix_s is None else str(int(to_unix_s * 1000))
        query = {**variables, "from": str(int(from_unix_s * 1000)), "to": to}
        return f"{self.grafana_url.rstrip('/')}/d/{uid}?{urlencode(query, errors='replace')}"
