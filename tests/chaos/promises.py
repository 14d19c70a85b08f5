"""The promises, as comparisons of what was there before with what is there now: values in, sentences on trouble out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MAX_GAP_S = 2.0
TIMES_BEFORE = 3.0
"""A rank is disturbed if two of its steps lie further apart than both: on a machine whose cores three nodes share,
steps of 0.2 s are late now and then."""

MAX_UNSEEN_S = 10.0
"""Two scrapes of 5 s."""
LEAKS = 2.0
"""``tidegauge_rank_leak_state`` of a leak."""

UNDISTURBED, KEPT, ONCE, FRESH = "training undisturbed", "nothing lost", "nothing twice", "series fresh or gone"
UNBROKEN = "no gap in /metrics"
PROMISES = (UNDISTURBED, KEPT, ONCE, FRESH, UNBROKEN)


class Step(NamedTuple):
    """One line of a rank's own count."""

    pid: int
    """As the rank's host numbers it."""
    step: int
    at_s: float
    """Monotonic."""


class Attempt(NamedTuple):
    """Of a job: what its ranks' series bear beside their rank and device."""

    job_id: str
    number: int


class Page(NamedTuple):
    """What a node's ``/metrics`` answered."""

    at_s: float
    """Monotonic."""
    series: Mapping[str, float]
    """Counters and verdicts, by name with labels."""


@dataclass
class Account:
    """Everything that the service has shown, as its API writes it."""

    incidents: dict[int, dict[str, Any]] = field(default_factory=dict)
    lines: dict[int, set[tuple[str, float]]] = field(default_factory=dict)
    """Of each incident's history, without the lines that only tell new figures."""
    decisions: dict[str, dict[str, Any]] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)
    """By place: a digest of what is there."""

    def carried_out(self, job: str, action: str) -> int:
        """Decisions about a job that were begun."""
        return sum(
            record["decision"]["incident"]["job_name"] == job
            and record["decision"]["action"] == action
            and record["started_s"] is not None
            for record in self.decisions.values()
        )

    def open_numbers(self) -> set[int]:
        return {number for number, one in self.incidents.items() if one["closed_unix_s"] is None}


@dataclass(frozen=True)
class JobRecord:
    """What a job says of its own life."""

    name: str
    running: bool
    starts: int
    """How often rank 0 began."""
    pids: Mapping[int, int]
    """By rank, of the latest attempt."""
    saved_for: Sequence[str]
    """The request of each checkpoint that rank 0 made."""
    messages: int
    """How often its owner was told of an incident where the job prints."""


def disturbed(before: JobRecord, now: JobRecord, *, requeues: int) -> list[str]:
    """A job that was to go on. ``requeues``: how many of its starts since ``before`` the audit explains."""
    if not now.running:
        return [f"{now.name} has ended"]
    starts = now.starts - before.starts
    if starts != requeues:
        return [f"{now.name} was started again {starts} times, {requeues} of them by a requeue"]
    if starts == 0 and now.pids != before.pids:
        return [f"{now.name} has other processes: {now.pids}, before {before.pids}"]
    return []


def longest_gap(steps: Sequence[Step], saving: Collection[int]) -> float:
    """Seconds between two steps of one process; after the steps in ``saving`` the job saved its state: its own time."""
    pairs = zip(steps, steps[1:], strict=False)
    return max((b.at_s - a.at_s for a, b in pairs if a.pid == b.pid and a.step not in saving), default=0.0)


def allowed_gap(before_s: float) -> float:
    """How far two steps may lie apart, where they lay ``before_s`` apart at most before the trouble."""
    return max(MAX_GAP_S, TIMES_BEFORE * before_s)


def lost(shown: Account, now: Account) -> list[str]:
    """What was shown and is not there any more, or is something else."""
    said = [line for number in shown.incidents for line in _lost_of(number, shown, now)]
    for key, record in shown.decisions.items():
        found = now.decisions.get(key)
        if found is None:
            said.append(f"the decision {key} is lost")
        elif record["outcome"] not in (None, found["outcome"]):
            said.append(f"the decision {key} was {record['outcome']}, and is {found['outcome']}")
    changed = [place for place, digest in shown.snapshots.items() if now.snapshots.get(place) != digest]
    return said + [f"the snapshot {place} is lost or another one" for place in changed]


def interrupted(open_before: Iterable[int], now: Account, going_on: Collection[str]) -> list[str]:
    """Incidents that were closed or opened once more although their job (one of ``going_on``) trains on."""
    said = []
    for number in open_before:
        one = now.incidents.get(number)
        if one is not None and one["job_name"] in going_on and one["closed_unix_s"] is not None:
            said.append(f"incident {number} was closed ({one['closure']}), though its job goes on")
    keys = [str(now.incidents[number]["key"]) for number in now.open_numbers()]
    return said + [f"more than one incident is open about {key}" for key in sorted(set(keys)) if keys.count(key) > 1]


def unseen(pages: Sequence[Page], began_s: float, ended_s: float, *, jobs: Collection[Attempt]) -> float:
    """The longest time for which a scrape would have missed a rank of ``jobs`` that was there when the trouble began;
    with none such, any rank."""
    since = _since(pages, began_s)
    ranks = {name for name in since[0].series if name.startswith("tidegauge_rank_steps_total{")} if since else set()
    ranks = {name for name in ranks if _is_of(name, jobs)}
    seen = [[page.at_s for page in since if name in page.series] for name in ranks]
    seen = seen or [[page.at_s for page in since if any("_rank_" in name for name in page.series)]]
    return max(
        _longest([max(times[0], began_s), *times[1:], ended_s]) if times else ended_s - began_s for times in seen
    )


def broken_series(pages: Sequence[Page], began_s: float, *, jobs: Collection[Attempt]) -> list[str]:
    """Counters that fell, and leaks that were one no longer, since the last page before the trouble: of the agent, and
    of ``jobs``."""
    said: dict[str, None] = {}
    last: dict[str, float] = {}
    for page in _since(pages, began_s):
        for name, value in page.series.items():
            if "_rank_" in name and not _is_of(name, jobs):
                continue
            before = last.get(name, value)
            if name.startswith("tidegauge_rank_leak_state"):
                if before == LEAKS != value:
                    said[f"{name} was {before:g}, and then {value:g}"] = None
            elif value < before:
                said[f"{name} fell from {before:g} to {value:g}"] = None
            last[name] = value
    return list(said)


def moved_onset(before: int | None, now: int | None, step: int) -> list[str]:
    """``before`` and ``now``: the leak's onset; ``step``: the rank's when the trouble began. A detector that was never
    stopped moves an onset by a little as it learns more; one that forgot finds it near the trouble, or later."""
    if before is None or (now is not None and now <= (before + step) / 2):
        return []
    return [f"the onset of the leak was step {before}, and is {now}; the trouble began at step {step}"]


def _since(pages: Sequence[Page], began_s: float) -> Sequence[Page]:
    first = max((at for at, page in enumerate(pages) if page.at_s <= began_s), default=0)
    return pages[first:]


def _is_of(series: str, jobs: Collection[Attempt]) -> bool:
    """Whether a rank of one of them has it: a tenant who claims to be one has no device."""
    return 'UUID="' in series and any(
        f'job_id="{job.job_id}"' in series and f'attempt="{job.number}"' in series for job in jobs
    )


def _longest(times: Sequence[float]) -> float:
    return max(after - before for before, after in zip(times, times[1:], strict=False))


def twice(job: JobRecord, now: Account) -> list[str]:
    """What was done to the job, by its own word, against what the audit says; of its whole life."""
    said = [f"{job.name} saved twice for {one}" for one in sorted(set(job.saved_for)) if job.saved_for.count(one) > 1]
    for what, times, action in (
        ("saved", len(job.saved_for), "checkpoint"),
        ("was started again", job.starts - 1, "requeue"),
        ("was told of an incident", job.messages, "notify"),
    ):
        known = now.carried_out(job.name, action)
        if times > known:
            said.append(f"{job.name} {what} {times} times, and the audit has {known} times {action}")
    return said


def _lost_of(number: int, shown: Account, now: Account) -> list[str]:
    before, after = shown.incidents[number], now.incidents.get(number)
    if after is None:
        return [f"incident {number} is lost"]
    said = []
    if (after["key"], after["opened_unix_s"]) != (before["key"], before["opened_unix_s"]):
        said.append(f"incident {number} is another one")
    if before["closed_unix_s"] is not None and after["closed_unix_s"] is None:
        said.append(f"incident {number} was closed, and is not")
    if lines := shown.lines.get(number, set()) - now.lines.get(number, set()):
        said.append(f"incident {number} has lost {sorted(lines)}")
    return said + [
        f"incident {number} has lost some of its {name}"
        for name in ("snapshots", "reports")
        if not set(before[name]) <= set(after[name])
    ]
