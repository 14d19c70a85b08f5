"""What stays of a job: one record of each attempt, kept up while it runs and complete when it has ended. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Optional, Union

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.jobs.launches import LaunchSummary
from tidegauge.core.verdicts import LeakState, Severity, Signal, alarm_level
from tidegauge.core.views import OWNER_SEPARATOR, GpuPlace, JobView, RankSummary, job_array_name, name_owners

NO_STEPS_OOM_S = 60.0
"""A rank that counts no steps died of an OOM if its last sample is at most so much later."""
MAX_INCIDENTS = 32
"""Of a job, the newest."""


class JobEnd(str, Enum):
    """How a job ended: ``ENDED``, ``KILLED`` and ``OOM`` by its ranks and their nodes, the others by its scheduler."""

    UNKNOWN = "unknown"
    """Its nodes, or the service, were away when it ended."""
    ENDED = "ended"
    """Every process ended by itself, with whatever exit status."""
    KILLED = "killed"
    """A signal ended a rank: SIGTERM, SIGKILL, or a crash."""
    COMPLETED = "completed"
    """Its scheduler, or ``tidegauge run``, saw it end with exit status 0."""
    FAILED = "failed"
    """The same with another exit status, a signal of its own or a time limit."""
    CANCELLED = "cancelled"
    """Its scheduler ended it because somebody wished so."""
    PREEMPTED = "preempted"
    """Its scheduler ended it to make room for another job, and did not start it again so far."""
    REQUEUED = "requeued"
    """It was ended to start again as another attempt."""
    OOM = "oom"
    """A rank ended in the step in which it ran out of GPU memory."""

    @property
    def level(self) -> int:
        """The order in which a later observation may replace an earlier one."""
        return list(JobEnd).index(self)

    @property
    def is_final(self) -> bool:
        """Nobody knows better."""
        return self in (JobEnd.REQUEUED, JobEnd.OOM)


class RankPeak(NamedTuple):
    """The highest memory of one rank; on the GPU, where it has had several limits, under the one that it came nearest
    to. ``None`` is unknown."""

    rank: int
    hostname: str
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: Optional[int]
    """What it might take on its GPU then: its cap, else the GPU's total. ``reserved_bytes`` is never above it."""
    nontorch_bytes: Optional[int] = None
    """GPU memory outside PyTorch."""
    host_bytes: Optional[int] = None
    """Host memory of its process and its descendants."""
    inactive_split_bytes: Optional[int] = None
    """Free parts of blocks that PyTorch has split, at its last reading: fragmentation."""
    alloc_retries: Optional[int] = None
    """How often PyTorch freed what it kept and tried again."""
    ooms: Optional[int] = None
    """Out-of-memory errors, whether or not it survived them."""
    steps: int = 0
    step_s: Optional[float] = None
    """The median time of a step."""
    gpu_bytes: Optional[int] = None
    """The total of its GPU, whatever its cap."""


class JobRecord(NamedTuple):
    """One attempt of one user's job, all groups of its ranks together. Times are those of the coordinator."""

    job: JobKey
    job_name: Optional[str]
    user_name: str
    scheduler: Optional[str]
    array: Optional[str]
    """``123_4``, the name of a task of a Slurm array."""
    nodes: int
    world_size: int
    started_unix_s: float
    """When ``tidegauge run`` started it, else when the service first saw it."""
    updated_unix_s: float
    ended_unix_s: Optional[float]
    """``None`` while it runs, as is ``end``."""
    end: Optional[JobEnd]
    steps: int
    """Of the rank that came furthest."""
    fullest: RankPeak
    """The rank whose GPU was fullest."""
    state: LeakState
    """The worst verdict of its whole life, with its severity and signal."""
    severity: Optional[Severity]
    signal: Optional[Signal]
    ooms: int
    """Ranks seen with an out-of-memory error at the same time, whether or not the job survived it."""
    account: Optional[str] = None
    """Of Slurm, as the next two are of Slurm and Kubernetes."""
    partition: Optional[str] = None
    namespace: Optional[str] = None
    script: Optional[str] = None
    """What was run: the path of ``__main__``, or ``-m module``. The job's claim, as are the next four."""
    script_sha256: Optional[str] = None
    arguments: Optional[str] = None
    """Of the script, cut off."""
    torch_version: Optional[str] = None
    alloc_conf: Optional[str] = None
    gpus: int = 0
    """GPUs that its ranks used; 0: unknown."""
    incidents: tuple[int, ...] = ()
    """Numbers of its incidents, the newest ``MAX_INCIDENTS``."""
    actions: tuple[str, ...] = ()
    """Kinds of actions that were carried out on it, in the order of the first of each."""
    change: Optional[str] = None
    """What no earlier run of the same job did (``JobView.change``)."""


class JobEvent(NamedTuple):
    """News of a job from the loop of incidents and actions; told twice it changes nothing."""

    job: JobKey
    """With all its groups."""
    incident: Optional[int] = None
    """The number of an incident that was opened."""
    action: Optional[ActionKind] = None
    """An action that was carried out, and seen to be done."""


def by_job(views: Iterable[JobView]) -> dict[JobKey, list[JobView]]:
    """The views of each attempt of a job, all groups of its ranks together; those without ranks are left out."""
    found: dict[JobKey, list[JobView]] = defaultdict(list)
    for view in views:
        if view.ranks:
            found[view.key.whole].append(view)
    return found


def record_of(views: Sequence[JobView], before: Optional[JobRecord], *, now_s: float) -> JobRecord:
    """The record of a job after a look at all groups of its ranks, one at least. ``before``: the record so far."""
    living = [view for view in views if view.running]
    present = living or views
    ranks = [rank for view in views for rank in view.ranks]
    ranks_of_present = [rank for view in present for rank in view.ranks]
    places = [rank.slurm for rank in ranks if rank.slurm is not None]
    worst = max(views, key=_alarm)
    seen = JobRecord(
        job=views[0].key.whole,
        job_name=present[0].job_name,
        user_name=_owner(view.user_name for view in views),
        scheduler=present[0].scheduler,
        array=job_array_name(present[0]),
        nodes=len({host for view in present for host in view.hostnames}),
        world_size=sum(view.world_size for view in present),
        started_unix_s=min([now_s, *(view.launch.started_unix_s for view in views if view.launch is not None)]),
        updated_unix_s=now_s,
        ended_unix_s=None if living else now_s,
        end=None if living else _end(views),
        steps=max(rank.step for rank in ranks),
        fullest=_fullest(views),
        state=worst.state,
        severity=worst.severity,
        signal=worst.signal,
        ooms=sum(rank.last_oom is not None for rank in ranks),
        account=_first(place.account for place in places),
        partition=_first(place.partition for place in places),
        namespace=_first(None if rank.pod is None else rank.pod.namespace for rank in ranks),
        script=_first(rank.identity.script for rank in ranks_of_present),
        script_sha256=_first(rank.identity.script_sha256 for rank in ranks_of_present),
        arguments=_first(rank.identity.arguments for rank in ranks_of_present),
        torch_version=_first(rank.identity.torch_version for rank in ranks_of_present),
        alloc_conf=_first(rank.identity.alloc_conf for rank in ranks_of_present),
        gpus=len(_gpus(views)),
        change=_first(view.change for view in views),
    )
    return seen if before is None else _joined(before, seen)


def with_events(record: JobRecord, events: Iterable[JobEvent]) -> JobRecord:
    """The record after these events of its job."""
    incidents, actions = dict.fromkeys(record.incidents), dict.fromkeys(record.actions)
    for event in events:
        if event.incident is not None:
            incidents[event.incident] = None
        if event.action is not None:
            actions[event.action.value] = None
    return record._replace(incidents=tuple(incidents)[-MAX_INCIDENTS:], actions=tuple(actions))


def with_end(record: JobRecord, end: Optional[JobEnd]) -> JobRecord:
    """The record of a job of which somebody else has said how it ended."""
    if record.end is None or end is None or end.level <= record.end.level:
        return record
    return record._replace(end=end)


def end_by_actions(record: JobRecord) -> Optional[JobEnd]:
    """How actions ended it, if they did."""
    stops = [ActionKind(name) for name in record.actions if ActionKind(name).is_stop]
    if not stops:
        return None
    return JobEnd.REQUEUED if stops[-1] is ActionKind.REQUEUE else JobEnd.CANCELLED


def end_of_launch(launch: LaunchSummary, restarts: int) -> Optional[JobEnd]:
    """How the attempt after so many restarts ended, by its ``tidegauge run``, which has ended."""
    if launch.restarts != restarts:
        return JobEnd.REQUEUED
    if launch.cancelled:
        return JobEnd.CANCELLED
    return None if launch.exit_status is None else JobEnd.FAILED if launch.exit_status else JobEnd.COMPLETED


def lost(record: JobRecord) -> JobRecord:
    """The record of a job that nobody reports any more."""
    if record.end is not None:
        return record
    return record._replace(ended_unix_s=record.updated_unix_s, end=JobEnd.UNKNOWN)


def _joined(before: JobRecord, seen: JobRecord) -> JobRecord:
    worst = max(before, seen, key=_alarm)
    ended_s, end = seen.ended_unix_s, seen.end
    if before.end is not None and end is not None:  # an ended job's ranks are forgotten one by one
        ended_s, end = before.ended_unix_s, max(before.end, end, key=lambda one: one.level)
    return seen._replace(
        job_name=seen.job_name or before.job_name,
        user_name=_owner((before.user_name, seen.user_name)),
        array=seen.array or before.array,
        nodes=max(before.nodes, seen.nodes),
        world_size=max(before.world_size, seen.world_size),
        started_unix_s=before.started_unix_s,
        ended_unix_s=ended_s,
        end=end,
        steps=max(before.steps, seen.steps),
        fullest=_fuller(before.fullest, seen.fullest),
        state=worst.state,
        severity=worst.severity,
        signal=worst.signal,
        ooms=max(before.ooms, seen.ooms),
        account=seen.account or before.account,
        partition=seen.partition or before.partition,
        namespace=seen.namespace or before.namespace,
        script=seen.script or before.script,
        script_sha256=seen.script_sha256 or before.script_sha256,
        arguments=seen.arguments or before.arguments,
        torch_version=seen.torch_version or before.torch_version,
        alloc_conf=seen.alloc_conf or before.alloc_conf,
        gpus=max(before.gpus, seen.gpus),
        incidents=before.incidents,
        actions=before.actions,
        change=seen.change or before.change,
    )


def end_of(rank: RankSummary) -> JobEnd:
    """How a rank ended that its node does not see any more."""
    if _died_of_oom(rank):
        return JobEnd.OOM
    return JobEnd.ENDED if rank.detached else JobEnd.KILLED


def _end(views: Sequence[JobView]) -> JobEnd:
    known = [rank for view in views for rank in view.ranks if int(rank.identity.rank) not in view.stale]
    ends = {end_of(rank) for rank in known}
    if JobEnd.OOM not in ends and len(known) < sum(len(view.ranks) for view in views):
        return JobEnd.UNKNOWN
    return max(ends, key=lambda one: one.level)


def _died_of_oom(rank: RankSummary) -> bool:
    oom = rank.last_oom
    if oom is None or oom.step < rank.step:
        return False
    return rank.step > 0 or rank.last_sample_unix_s - oom.at_unix_s <= NO_STEPS_OOM_S


def _alarm(judged: Union[JobView, JobRecord]) -> tuple[int, int]:
    return alarm_level(judged.state, judged.severity)


def peak_of(view: JobView, place: int) -> RankPeak:
    """The figures of one of ``view.ranks`` now, with the peaks that PyTorch tells."""
    rank = view.ranks[place]
    return RankPeak(
        rank=int(rank.identity.rank),
        hostname=view.rank_hostnames[place] if view.rank_hostnames else rank.identity.hostname,
        allocated_bytes=rank.highest_allocated_bytes,
        reserved_bytes=rank.highest_reserved_bytes,
        limit_bytes=_limit_at(rank.highest_reserved_bytes, rank.limit_bytes),
        nontorch_bytes=rank.nontorch_bytes,
        host_bytes=rank.host_rss_bytes,
        inactive_split_bytes=rank.inactive_split_bytes,
        alloc_retries=rank.alloc_retries,
        ooms=rank.ooms,
        steps=rank.step,
        gpu_bytes=rank.gpu_bytes,
    )


def _limit_at(reserved_bytes: int, limit_bytes: Optional[int]) -> Optional[int]:
    """The limit that a rank had at its peak; ``None`` where it was another one, as the peak was above this."""
    return None if limit_bytes is None or reserved_bytes > limit_bytes else limit_bytes


def _fullest(views: Sequence[JobView]) -> RankPeak:
    """Only the one is made: this is done with every rank at every report."""
    filled = (
        (fullness_of(rank), -number, -place)
        for number, view in enumerate(views)
        for place, rank in enumerate(view.ranks)
    )
    _, number, place = max(filled)
    return peak_of(views[-number], -place)


def fullness(peak: RankPeak) -> tuple[float, int]:
    """Sort key: of two ranks the fuller one has the higher. Memory outside PyTorch counts as far as it is
    known, so that the fullest is the one that needs most of its GPU."""
    return _filled(peak.reserved_bytes, peak.nontorch_bytes, peak.limit_bytes)


def fullness_of(rank: RankSummary) -> tuple[float, int]:
    """The same of a rank as it is now."""
    return _filled(rank.highest_reserved_bytes, rank.nontorch_bytes, rank.limit_bytes)


def _filled(reserved_bytes: int, nontorch_bytes: Optional[int], limit_bytes: Optional[int]) -> tuple[float, int]:
    limit_bytes = _limit_at(reserved_bytes, limit_bytes)
    held_bytes = reserved_bytes + (nontorch_bytes or 0)
    return held_bytes / limit_bytes if limit_bytes else 0.0, held_bytes


_LATEST = {"rank", "hostname", "limit_bytes", "inactive_split_bytes", "step_s", "gpu_bytes"}
"""The fields of a peak that are no peaks."""
_HIGHEST = [place for place, name in enumerate(RankPeak._fields) if name not in _LATEST]


def highest(before: RankPeak, seen: RankPeak) -> RankPeak:
    """The figures of one rank at two times: the highest, for programs reset peaks, and of what is no peak the latest
    that is known. Of two limits the one under which it was fuller, with its memory on the GPU under that."""
    figures: list[Any] = [old if new is None else new for old, new in zip(before, seen)]
    for place in _HIGHEST:
        old: Any = before[place]
        if old is not None and old > figures[place]:
            figures[place] = old
    peak = RankPeak._make(figures)
    if before.limit_bytes == seen.limit_bytes:
        return peak
    if None in (before.limit_bytes, seen.limit_bytes) and _limit_at(peak.reserved_bytes, peak.limit_bytes) is not None:
        return peak
    fuller = max(before, seen, key=fullness)
    return peak._replace(
        allocated_bytes=fuller.allocated_bytes,
        reserved_bytes=fuller.reserved_bytes,
        limit_bytes=fuller.limit_bytes,
        nontorch_bytes=peak.nontorch_bytes if fuller.nontorch_bytes is None else fuller.nontorch_bytes,
    )


def _fuller(one: RankPeak, other: RankPeak) -> RankPeak:
    """The fuller of two; of one rank at two times, the later one last, the figures of both."""
    return highest(one, other) if one[:2] == other[:2] else max(one, other, key=fullness)


def _first(words: Iterable[Optional[str]]) -> Optional[str]:
    return next(filter(None, words), None)


def _gpus(views: Iterable[JobView]) -> set[GpuPlace]:
    return {
        (host, rank.uuid)
        for view in views
        for host, rank in zip(view.rank_hostnames or [rank.identity.hostname for rank in view.ranks], view.ranks)
        if rank.uuid is not None
    }


def _owner(names: Iterable[str]) -> str:
    """The owner; several names only where nodes call the job's uid differently, and then nobody owns the record."""
    found = {name for several in names for name in several.split(OWNER_SEPARATOR)}
    if len(found) > 1:
        found = {name for name in found if not name.isdigit()} or found
    return name_owners(found)
