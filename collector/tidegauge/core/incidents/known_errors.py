"""Remembers reported out-of-memory errors: a rank keeps showing its latest one, which must not be reported again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident, IncidentCause, RankFinding
from tidegauge.core.samples import OomRecord

MAX_KNOWN = 16_384
"""Ranks of one job: more than any job has that was ever watched. Rank numbers are what processes call themselves."""


class KnownErrors:
    """The latest reported error of each rank of one job.

    Of more than ``MAX_KNOWN`` ranks it keeps the last reported, and a time up to which all other errors count as known:
    none is reported twice, a late one may be missed.
    """

    def __init__(self) -> None:
        self._of_rank: dict[int, OomRecord] = {}
        self._all_until_s = float("-inf")
        self._failed: set[int] = set()
        self._failed_since_s = float("inf")

    def begin(self, *, since_s: float = float("inf")) -> None:
        """A new incident: only ranks that fail from now on count. ``since_s``: its first error, if it was told before
        and not all of its ranks are known by name."""
        self._failed, self._failed_since_s = set(), since_s

    def has(self, rank: int, oom: OomRecord) -> bool:
        """Whether this error has been reported."""
        known = self._of_rank.get(rank)
        is_known = known is not None and (oom.at_unix_s, oom.step) == (known.at_unix_s, known.step)
        return is_known or oom.at_unix_s <= self._all_until_s

    def count_with(self, shown: Iterable[tuple[int, OomRecord]]) -> int:
        """The number of ranks that failed in the incident, with those that are shown with their latest error. A lower
        bound: of ranks that found no place in it those are missing, after a restart, that are not shown any more."""
        news = (rank for rank, oom in shown if oom.at_unix_s >= self._failed_since_s or not self.has(rank, oom))
        return len(self._failed.union(news))

    def learn(self, findings: Iterable[RankFinding]) -> None:
        """Remember the errors in these findings as reported."""
        for finding in findings:
            if finding.oom is not None:
                self._of_rank.pop(finding.rank, None)
                self._of_rank[finding.rank] = finding.oom
                self._failed.add(finding.rank)
        for rank in list(islice(self._of_rank, max(len(self._of_rank) - MAX_KNOWN, 0))):
            self.learn_time(self._of_rank.pop(rank).at_unix_s)
            self._failed.discard(rank)

    def learn_time(self, until_s: float) -> None:
        """Remember all errors up to then as reported."""
        self._all_until_s = max(self._all_until_s, until_s)


class OomMemory:
    """Known errors of each job, for ``keep_s`` after its last report."""

    def __init__(self, incidents: Iterable[Incident], *, keep_s: float) -> None:
        """``incidents``: whose errors are known, in any state."""
        self._keep_s = keep_s
        self._known: dict[JobKey, KnownErrors] = {}
        self._heard_s: dict[JobKey, float] = {}
        for incident in sorted(incidents, key=lambda incident: incident.number):
            if incident.key.cause is IncidentCause.OUT_OF_MEMORY:
                told_s = [finding.oom.at_unix_s for finding in incident.findings if finding.oom is not None]
                left_out = incident.ranks_left_out > 0
                self.begin(incident.key.job, since_s=min(told_s) if left_out and told_s else float("inf"))
                self.learn(incident.key.job, incident.findings)
                if left_out:  # their errors have been told too, and were before the latest
                    self._known[incident.key.job].learn_time(max(told_s, default=float("-inf")))

    def of(self, job: JobKey) -> KnownErrors:
        """The known errors of one job; not to be changed."""
        return self._known.get(job) or KnownErrors()

    def begin(self, job: JobKey, *, since_s: float = float("inf")) -> None:
        """An incident of the job opens: see ``KnownErrors.begin``."""
        self._known.setdefault(job, KnownErrors()).begin(since_s=since_s)

    def learn(self, job: JobKey, findings: Iterable[RankFinding]) -> None:
        """Remember the errors in these findings of the job as reported."""
        self._known.setdefault(job, KnownErrors()).learn(findings)

    def pass_time(self, heard: Collection[JobKey], now_s: float) -> None:
        """Forget jobs that are not in ``heard``, and were not for ``keep_s``."""
        for job in list(self._known):
            if job in heard:
                self._heard_s[job] = now_s
            elif now_s - self._heard_s.setdefault(job, now_s) > self._keep_s:
                del self._known[job], self._heard_s[job]
