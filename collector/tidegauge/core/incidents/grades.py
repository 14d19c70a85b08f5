"""Grades: people's answers on whether an incident was a leak, and the precision computed from them. Values only.

Only growth is graded: an out-of-memory error and an exceeded share are facts, not forecasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.incidents import CAUSE_OF_SIGNAL, IncidentCause
from tidegauge.core.verdicts import Severity

MAX_COMMENT_CHARS = 500
Z_95 = 1.96
"""Of the normal distribution, for an interval of 95 %."""
_SIGNALS = {cause: signal.value for signal, cause in CAUSE_OF_SIGNAL.items()}


class Grade(str, Enum):
    """A person's answer about an incident."""

    LEAK = "leak"
    """The notification was right."""
    NOT_A_LEAK = "not_a_leak"
    """It was false."""


GRADE_WORDS = {Grade.LEAK: "a leak", Grade.NOT_A_LEAK: "not a leak"}
RULE = {
    Grade.LEAK: "nothing in the job would have stopped the growth before memory ran out",
    Grade.NOT_A_LEAK: "something in the job would have stopped it before that",
}
"""Which answer is right: one question, so that each incident has one answer. The help, the page and docs/policy.md say
it in these words."""
RULE_NOTE = "It does not matter whether somebody meant the growth, nor whether the job ended first."
EXAMPLES = (
    (Grade.NOT_A_LEAK, "a buffer that was meant, has a bound, and fits when it is full"),
    (Grade.LEAK, "a buffer that was meant, and does not fit when it is full"),
    (Grade.LEAK, "a cache without a bound"),
    (Grade.LEAK, "a CUDA graph for each input shape, where new shapes keep coming"),
    (Grade.NOT_A_LEAK, "a CUDA graph for each of a fixed number of shapes, all of which fit"),
)


class GradeAnswer(NamedTuple):
    """One person's answer to whether an incident was a leak."""

    grade: Grade
    by: str
    """Their name, as the HTTP API knows them or, on its local socket, the kernel."""
    as_admin: bool
    """They may see all jobs; else they own this one."""
    at_unix_s: float
    comment: Optional[str] = None


class GradedIncident(NamedTuple):
    """A growth incident that notified its owner, or would have, with the answers to it."""

    number: int
    user_name: str
    cause: IncidentCause
    """The last that it had: at its end or, while it is open, now. Evidence may have changed it."""
    severity: Severity
    """The highest that it ever had."""
    opened_unix_s: float
    told: bool
    """The owner was told. Else a message was decided and the policy's mode (``observe``) kept it back."""
    answers: tuple[GradeAnswer, ...] = ()
    """All that are kept, oldest first."""

    @property
    def answer(self) -> Optional[GradeAnswer]:
        """The one that counts."""
        return counting(self.answers)


class PrecisionRow(NamedTuple):
    """A row of the table: the incidents of one group."""

    group: str
    """For people: ``all``, ``severity critical``, ``cause leak (allocated)``."""
    told: int
    would_tell: int
    answered: int
    leaks: int
    """Of those that were answered."""
    precision: Optional[float]
    """Share of leaks among those that were answered; ``None``: nobody answered."""
    low: Optional[float]
    high: Optional[float]
    """Wilson's 95 % interval of ``precision``."""

    @property
    def unanswered(self) -> int:
        return self.told + self.would_tell - self.answered

    @property
    def precision_of_all(self) -> Optional[tuple[float, float]]:
        """Precision of all of them if every unanswered one was false, and if every one was right."""
        whole = self.told + self.would_tell
        return (self.leaks / whole, (self.leaks + self.unanswered) / whole) if whole else None


def counting(answers: Sequence[GradeAnswer]) -> Optional[GradeAnswer]:
    """The answer that counts: the latest of an admin, else the latest of all; ``answers`` are oldest first."""
    of_admins = [one for one in answers if one.as_admin]
    return next(reversed(of_admins or list(answers)), None)


def answer_in_words(answer: GradeAnswer) -> str:
    """ "not a leak, says ada (admin): a replay buffer"."""
    return f"{GRADE_WORDS[answer.grade]}, says {_who(answer)}" + (f": {answer.comment}" if answer.comment else "")


def why_not_counted(
    yours: GradeAnswer, answers: Sequence[GradeAnswer], *, when: Callable[[float], str]
) -> Optional[str]:
    """Why the answer ``yours`` does not count, for its author; ``None``: it counts. ``yours`` is the author's last
    among ``answers``; the text names whose counts instead. ``when`` writes a time."""
    counts = counting(answers)
    if counts is None or counts == yours:
        return None
    admins = counts.as_admin and not yours.as_admin
    why = "an admin's answer counts before the owner's" if admins else "the later answer counts"
    said, day = GRADE_WORDS[counts.grade], when(counts.at_unix_s)
    return f'It does not count: {_who(counts)} answered "{said}" on {day}, and {why}.'


def precision_rows(incidents: Iterable[GradedIncident]) -> tuple[PrecisionRow, ...]:
    """The precision table: a row for all incidents, then one per severity (worst first) and per cause with its signal.
    Each incident is in one row of either kind. Groups without an incident have no row."""
    found = list(incidents)
    groups = [("all", found)]
    groups += [
        (f"severity {severity.value}", [one for one in found if one.severity is severity])
        for severity in sorted(Severity, key=lambda one: -one.level)
    ]
    groups += [
        (f"cause {cause.value} ({_SIGNALS[cause.as_seen]})", [one for one in found if one.cause is cause])
        for cause in IncidentCause
        if cause.is_growth
    ]
    return tuple(_row(name, members) for name, members in groups if members or name == "all")


def wilson_interval(part: int, whole: int) -> tuple[float, float]:
    """Wilson's 95 % interval for the share ``part / whole``, where ``whole`` is at least 1."""
    share, squared = part / whole, Z_95 * Z_95
    middle = (share + squared / (2 * whole)) / (1 + squared / whole)
    reach = Z_95 / (1 + squared / whole) * math.sqrt(share * (1 - share) / whole + squared / (4 * whole * whole))
    return max(middle - reach, 0.0), min(middle + reach, 1.0)


def _who(answer: GradeAnswer) -> str:
    return f"{answer.by} (admin)" if answer.as_admin else answer.by


def _row(group: str, incidents: Sequence[GradedIncident]) -> PrecisionRow:
    told = sum(one.told for one in incidents)
    answers = [one.answer for one in incidents if one.answer is not None]
    leaks = sum(one.grade is Grade.LEAK for one in answers)
    low, high = wilson_interval(leaks, len(answers)) if answers else (None, None)
    precision = leaks / len(answers) if answers else None
    return PrecisionRow(group, told, len(incidents) - told, len(answers), leaks, precision, low, high)
