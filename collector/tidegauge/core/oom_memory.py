"""Which out-of-memory errors are known already: a rank shows its latest one for as long as it is shown itself.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tidegauge.core.incidents import Incident, IncidentCause, JobKey, OomRecord, RankFinding


class OomMemory:
    """The latest error of each rank, for ``keep_s`` after its job was last heard of."""

    def __init__(self, incidents: Iterable[Incident], *, keep_s: float) -> None:
        """``incidents``: whose errors are known, in any state."""
        self._keep_s = keep_s
        self._known: dict[JobKey, dict[int, OomRecord]] = {}
        self._heard_s: dict[JobKey, float] = {}
        for incident in sorted(incidents, key=lambda incident: incident.number):
            if incident.key.cause is IncidentCause.OUT_OF_MEMORY:
                self.learn(incident.key.job, incident.findings)

    def of(self, job: JobKey) -> Mapping[int, OomRecord]:
        """By rank."""
        return self._known.get(job, {})

    def learn(self, job: JobKey, findings: Iterable[RankFinding]) -> None:
        """These have been told."""
        known = self._known.setdefault(job, {})
        known.update({finding.rank: finding.oom for finding in findings if finding.oom is not None})

    def pass_time(self, heard: Collection[JobKey], now_s: float) -> None:
        """Forget jobs that are not among those ``heard`` of, and have not been for ``keep_s``."""
        for job in list(self._known):
            if job in heard:
                self._heard_s[job] = now_s
            elif now_s - self._heard_s.setdefault(job, now_s) > self._keep_s:
                del self._known[job], self._heard_s[job]
