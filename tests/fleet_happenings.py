"""Incidents and actions of the made-up fleet of ``fleet_story``, as the coordinator counts them: a script a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from fleet_story import ESTABLISHED_AT, OOM_AT, STALE_FROM, Fleet, Moment, Plot, job_id, plot_of
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.actions import ActionKind, Disposition, Outcome
from tidegauge.core.incidents.loop_figures import JobFigures, LoopFigures, OpenIncident, SlurmLabels
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.core.verdicts import Severity


class _Incident(NamedTuple):
    """What a plot leads to, on its first attempt. Times are shares of the history."""

    cause: IncidentCause
    opened: float
    critical: float
    """From when on it is critical; a warning before."""
    closed: float
    actions: tuple[tuple[float, ActionKind, Outcome | Disposition], ...]


_NEVER: Final = 2.0
ACCOUNTS: Final = ("physics", "biology", "chemistry")
"""Of job 0, 1, 2 and so on."""
_SCRIPT: Final = {
    Plot.LEAK: _Incident(
        IncidentCause.LEAK,
        ESTABLISHED_AT,
        STALE_FROM,
        _NEVER,
        (
            (0.36, ActionKind.NOTIFY, Outcome.DONE),
            (0.50, ActionKind.NOTIFY, Outcome.DONE),
            (0.85, ActionKind.CHECKPOINT, Outcome.NO_PROOF),
            (0.90, ActionKind.CHECKPOINT, Outcome.DONE),
        ),
    ),
    Plot.OUT_OF_MEMORY: _Incident(
        IncidentCause.OUT_OF_MEMORY,
        OOM_AT,
        OOM_AT,
        OOM_AT + 0.03,
        ((0.601, ActionKind.NOTIFY, Outcome.DONE), (0.605, ActionKind.REQUEUE, Outcome.DONE)),
    ),
    Plot.FRAGMENTATION: _Incident(
        IncidentCause.FRAGMENTATION,
        ESTABLISHED_AT,
        STALE_FROM,
        _NEVER,
        ((0.36, ActionKind.NOTIFY, Outcome.DONE), (0.82, ActionKind.REQUEUE, Disposition.WITHHELD)),
    ),
    Plot.OUTSIDE_ALLOCATOR: _Incident(
        IncidentCause.OUTSIDE_ALLOCATOR, ESTABLISHED_AT, STALE_FROM, _NEVER, ((0.4, ActionKind.NOTIFY, Outcome.FAILED),)
    ),
}


def loop_figures(fleet: Fleet, moment: Moment) -> LoopFigures:
    """What the coordinator has counted by then; it acts, and its database works."""
    opened: Counter[IncidentCause] = Counter()
    still_open: Counter[tuple[IncidentCause, Severity]] = Counter()
    actions: Counter[tuple[str, str]] = Counter()
    of_jobs = {}
    for number, job, script in _scripts(fleet):
        if moment.share < script.opened:
            continue
        opened[script.cause] += 1
        over = [action for action in script.actions if action[0] <= moment.share]
        actions.update((kind.value, outcome.value) for _, kind, outcome in over)
        incidents: tuple[OpenIncident, ...] = ()
        if moment.share < script.closed:
            severity = Severity.CRITICAL if moment.share >= script.critical else Severity.WARNING
            incidents = (OpenIncident(number, script.cause, severity, _unix_s(fleet, script.opened)),)
            still_open[script.cause, severity] += 1
        of_jobs[JobKey(job_id(job), 0, 1001 + job % 5)] = JobFigures(
            incidents,
            {
                (kind.value, outcome.value): _unix_s(fleet, share)
                for share, kind, outcome in over
                if isinstance(outcome, Outcome)
            },
        )
    silent = sum(fleet.stale(node, moment) for node in range(fleet.nodes))
    return LoopFigures(
        store_works=True,
        acting=True,
        paused=False,
        breaker_open=False,
        incidents_total=opened,
        incidents_open=still_open,
        actions_total=actions,
        of_jobs=of_jobs,
        usage={by: usage(by) for by in UsageBy},
        slurm={
            JobKey(job_id(job), attempt, 1001 + job % 5, group): SlurmLabels(
                ("gpu", "long")[job % 2], ACCOUNTS[job % 3]
            )
            for job in range(fleet.jobs)
            for attempt in range(2)
            for group in ("", "step 1")
        },
        nodes={"ok": fleet.nodes + 1 - silent, "waiting": 0, "stale": silent, "gone": 0},
    )


def usage(by: UsageBy) -> tuple[GpuUsage, ...]:
    """Four rows: the first needs a ninth of its GPUs, the last all of them."""
    gib, hour_s = 1 << 30, 3600.0
    return tuple(
        GpuUsage(
            name=f"{by.value}-{number}", user_name="ada" if by is UsageBy.JOB else "", runs=4 - number, ooms=0, gpus=8,
            gpu_seconds=320 * hour_s, had_byte_seconds=320 * hour_s * 80 * gib,
            needed_byte_seconds=320 * hour_s * need * gib, limit_bytes=80 * gib, highest_bytes=need * gib,
            mean_bytes=need * gib, gpu_bytes=80 * gib,
        )
        for number, need in enumerate((9, 30, 50, 79))
    )  # fmt: skip


def _scripts(fleet: Fleet) -> Iterator[tuple[int, int, _Incident]]:
    """Incident numbers, jobs and what happens to them."""
    jobs = [job for job in range(fleet.jobs) if plot_of(job) in _SCRIPT]
    for number, job in enumerate(jobs, start=1):
        yield number, job, _SCRIPT[plot_of(job)]


def _unix_s(fleet: Fleet, share: float) -> float:
    return fleet.began_unix_s + share * fleet.duration_s
