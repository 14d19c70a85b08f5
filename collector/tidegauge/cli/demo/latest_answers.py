"""What the demo has seen so far: the API's latest answer for each rank, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidegauge.core.units import format_band, format_bytes
from tidegauge.core.verdicts import Verdict, state_word
from tidegauge.core.wire import from_wire

Answer = Mapping[str, Any]
"""One rank in an answer of ``/api/v1/jobs``."""


@dataclass
class LastSeen:
    """One rank as it was last told of."""

    latest: Answer

    @property
    def verdict(self) -> Verdict:
        return from_wire(Verdict, self.latest["verdict"])


class LatestAnswers:
    """All ranks of all jobs."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], LastSeen] = {}

    def add(self, jobs: list[Answer]) -> None:
        """Take in one answer of the API."""
        for job in jobs:
            for rank in job["ranks"]:
                self._ranks[str(job["job_id"]), int(rank["identity"]["rank"])] = LastSeen(rank)

    def ranks(self, job_id: str) -> list[LastSeen]:
        """The ranks of a job seen so far, by rank."""
        return [history for (job, _), history in sorted(self._ranks.items()) if job == job_id]

    def verdicts(self, job_id: str) -> dict[int, Verdict]:
        return {history.latest["identity"]["rank"]: history.verdict for history in self.ranks(job_id)}

    def rows(self, job_names: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
        """One line a rank: job, rank, GPU, step, allocated, reserved, nontorch, verdict, growth, time to OOM."""
        for job_id, name in job_names.items():
            for history in self.ranks(job_id):
                rank, verdict = history.latest, history.verdict
                yield (
                    name,
                    str(rank["identity"]["rank"]),
                    "-" if rank["gpu"] is None else str(rank["gpu"]),
                    str(rank["step"]),
                    format_bytes(rank["allocated_bytes"]),
                    format_bytes(rank["reserved_bytes"]),
                    "-" if rank["nontorch_bytes"] is None else format_bytes(rank["nontorch_bytes"]),
                    _state(verdict),
                    "" if verdict.bytes_per_step is None else format_bytes(verdict.bytes_per_step.likely),
                    "" if verdict.seconds_to_oom is None else format_band(verdict.seconds_to_oom),
                )


def _state(verdict: Verdict) -> str:
    """ "ok", "growing (allocated)": the signal in which it grows."""
    word = state_word(verdict.state, verdict.severity)
    return word if verdict.signal is None else f"{word} ({verdict.signal.value})"


HEADER = (
    "job",
    "rank",
    "GPU",
    "step",
    "allocated",
    "reserved",
    "nontorch",
    "verdict",
    "per step",
    "out of memory in",
)
