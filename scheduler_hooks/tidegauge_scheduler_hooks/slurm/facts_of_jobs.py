"""Finds the Slurm job of a watched job, and its facts for the policy. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from tidegauge.core.ids import scheduler_restarts
from tidegauge.core.incidents.actions import ActionKind, SchedulerFacts
from tidegauge.core.jobs.slurm import KEEP, MAY_REQUEUE, comment_words
from tidegauge.core.views import JobView, RankSummary
from tidegauge_scheduler_hooks.facts import torch_handle
from tidegauge_scheduler_hooks.ports import THROUGH_RANKS
from tidegauge_scheduler_hooks.slurm.jobs_json import SlurmJob
from tidegauge_scheduler_hooks.slurm.squeue_rows import Run


def job_number(view: JobView) -> int | None:
    """The number of the Slurm job that these ranks are in; ``None``: only they themselves claim it.

    The confirmation of one living rank's slurmd is enough: other ranks may have started a moment ago."""
    return _number_by(view, _living(view))


def _number_by(view: JobView, ranks: Iterable[RankSummary]) -> int | None:
    uid = view.ranks[0].uid
    placed = any(rank.slurm is not None and rank.slurm.job_id == view.job_id and rank.uid == uid for rank in ranks)
    if not placed or not (view.job_id.isascii() and view.job_id.isdigit() and len(view.job_id) <= 10):
        return None
    return int(view.job_id)


def find(views: Mapping[int, Iterable[JobView]], jobs: Iterable[SlurmJob]) -> list[tuple[JobView, SlurmJob]]:
    """Each view (by ``job_number``) with its job: of the same user, and not in a later attempt than the ranks are.

    Ranks of a run that has just been replaced are seen a little longer; they must not be taken for the next one."""
    return [
        (view, job)
        for job in jobs
        for view in views.get(job.job_id, ())
        if job.uid == view.key.uid and job.restarts <= _restarts(view)
    ]


def facts_of(job: SlurmJob, view: JobView, *, requeue_unasked: bool, node_gres: Mapping[str, str]) -> SchedulerFacts:
    """The facts of ``job``. ``node_gres`` holds the gres of each node, by name."""
    asked = comment_words(job.comment)
    run = Run(job.job_id, job.restarts, job.started_unix_s or 0)
    return SchedulerFacts(
        incarnation=run.incarnation,
        running=job.running,
        requeueable=_can_start_again(job) and (requeue_unasked or MAY_REQUEUE in asked),
        exempt=KEEP in asked,
        restarts=job.restarts,
        account=job.account,
        partition=job.partition,
        qos=job.qos,
        array_name=job.name if job.name is not None and "_" in job.name else None,
        started_unix_s=job.started_unix_s,
        ends_unix_s=job.ends_unix_s,
        gpu_share=gpu_share(job.gres, job.nodes, node_gres),
        can=_can(job),
        handle={**({} if job.name is None else {"name": job.name}), **torch_handle(view)},
    )


def by_number(views: Iterable[JobView]) -> dict[int, list[JobView]]:
    """The views of Slurm jobs; one number may have those of two users, or of two attempts."""
    return _grouped((job_number(view), view) for view in views)


def ended_by_number(views: Iterable[JobView]) -> dict[int, list[JobView]]:
    """The same of jobs whose ranks have all ended."""
    return _grouped((_number_by(view, view.ranks), view) for view in views)


def _grouped(numbered: Iterable[tuple[int | None, JobView]]) -> dict[int, list[JobView]]:
    found: dict[int, list[JobView]] = {}
    for number, view in numbered:
        if number is not None:
            found.setdefault(number, []).append(view)
    return found


def _can(job: SlurmJob) -> frozenset[ActionKind]:
    """The actions that Slurm knows for such a job; whether we have the right to them shows when one is tried."""
    can = {ActionKind.NOTIFY, *THROUGH_RANKS}
    if job.name is not None and not job.het:
        can |= {ActionKind.ANNOTATE, ActionKind.CANCEL}
    if _can_start_again(job):
        can |= {ActionKind.REQUEUE, ActionKind.HOLD}
    return frozenset(can)


def _can_start_again(job: SlurmJob) -> bool:
    """Whether Slurm can requeue it: of the parts of a heterogeneous job slurmctld restarts all or none."""
    return job.batch and job.may_requeue and job.name is not None and not job.het


def _restarts(view: JobView) -> int:
    """The number of times that Slurm had started these ranks' job before."""
    each = [rank.identity.attempts_each for rank in _living(view)]
    return max((scheduler_restarts(view.attempt, one) for one in each), default=view.attempt)


def _living(view: JobView) -> list[RankSummary]:
    return [rank for rank in view.ranks if rank.alive]


MAX_NODES = 10_000
_GRES = re.compile(r"(?P<kind>[A-Za-z_]+)(?::[^:,()]+)?:(?P<count>\d{1,9})(?:\((?P<where>[^()]*)\))?")
_OF_CARD = re.compile(r"(\d{1,9})/(\d{1,9})")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
"""One entry of a host list: commas in brackets do not end it."""
SHARED = ("shard", "mps")


class Gres(NamedTuple):
    """One entry of a list such as ``gpu:h200:2(IDX:0-1),shard:h200:8``."""

    kind: str
    number: int
    where: str
    """The text in brackets: ``IDX:0-1``; ``2/4,0/4`` (the counts of each card); empty."""


def parse_gres(text: str) -> list[Gres]:
    """The entries of a list; anything else in it is left out."""
    return [Gres(one["kind"], int(one["count"]), one["where"] or "") for one in _GRES.finditer(text)]


def needs_nodes(gres: Sequence[str]) -> bool:
    """Whether the share of a job with this ``gres_detail`` needs the gres of its nodes (22.05)."""
    return any(one.kind in SHARED and not _OF_CARD.search(one.where) for text in gres for one in parse_gres(text))


def gpu_share(gres: Sequence[str], nodes: str, node_gres: Mapping[str, str]) -> float | None:
    """The smallest share of any of its cards, above 0 and at most 1; ``None``: whole cards, none, or not known.

    ``gres`` is the job's on each of ``nodes``, ``node_gres`` the whole of each node."""
    shares: list[float] = []
    for text, name in zip(gres, chain(expand(nodes), repeat(""))):
        for one in parse_gres(text):
            if one.kind in SHARED:
                shares += _of_cards(one, parse_gres(node_gres.get(name, "")))
    return min((share for share in shares if 0 < share <= 1), default=None)


def expand(nodes: str) -> list[str]:
    """The names in a host list: ``n[1-2],m[01-03]x`` (scontrol(1), ``show hostnames``); at most ``MAX_NODES``."""
    names: list[str] = []
    for part in _PART.findall(nodes):
        for name in _names(part):
            if len(names) >= MAX_NODES:
                return names
            names.append(name)
    return names


def _of_cards(asked: Gres, node: Sequence[Gres]) -> list[float]:
    of_each = [(int(used), int(total)) for used, total in _OF_CARD.findall(asked.where)]
    if of_each:
        return [used / total for used, total in of_each if used and total]
    in_all = sum(one.number for one in node if one.kind == asked.kind)
    cards = sum(one.number for one in node if one.kind == "gpu")
    if not in_all or not cards or not asked.number:
        return []
    return [asked.number / _cards_used(asked.where) / (in_all / cards)]


def _cards_used(where: str) -> int:
    """Of ``IDX:0,2-3``: 3."""
    spans = _RANGE.findall(where.removeprefix("IDX:"))
    return max(1, sum(int(last or first) - int(first) + 1 for first, last in spans))


def _names(part: str) -> Iterator[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        yield before
        return
    ranges, _, after = rest.partition("]")
    for first, last in _RANGE.findall(ranges):
        for number in range(int(first), min(int(last or first), int(first) + MAX_NODES) + 1):
            for end in _names(after):
                yield f"{before}{number:0{len(first)}}{end}"
