"""``tidegauge profile JOB``: what fills the GPUs of a job's ranks, from the service."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

from tidegauge.analysis.profile.imbalance_words import imbalance_advice, imbalance_sentence
from tidegauge.analysis.profile.words import rank_doubts
from tidegauge.cli.errors import FINE, CommandError, UsageError, need
from tidegauge.cli.jobs.history import MAX_ENDED
from tidegauge.cli.jobs.names import Named, SeveralJobsError, meant, other_jobs
from tidegauge.cli.output import print_wrapped, progress, said_when_slow, write_output
from tidegauge.cli.profile.advising import with_cards
from tidegauge.cli.profile.estimated import beside_estimate, read_estimate
from tidegauge.cli.profile.missing import close_files
from tidegauge.cli.profile.outside import outside_parts
from tidegauge.cli.profile.page import PageTable, Part, print_page, profile_page
from tidegauge.cli.service_api import ANSWER_S, LONG_ANSWER_S, ask, read, send, until
from tidegauge.cluster.api.profile_api import ProfiledJob
from tidegauge.cluster.views import AskedProfile, AskState
from tidegauge.core.ids import JobKey, job_name
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.imbalance import Imbalance, ImbalanceCause, cause_of, imbalance_of
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.request import MAX_S, TRIP_S
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes
from tidegauge.core.views import JobView, job_array_name
from tidegauge.core.wire import to_wire
from tidegauge.estimator.results import Estimate

MAX_COLUMNS = 6
"""Categories in the table of ranks; the others are summed up."""
ASK_SLACK_S = 30.0
_ASKING = "waiting for the coordinator"
_JOB_RANK = re.compile(r"(.+):([0-9]{1,9})", re.ASCII)
_FURTHER = re.compile(r" \([^()]*\)$")
"""Of a name in a table: array task, group of ranks, attempt."""
_UNDER_WAY = (AskState.ASKING, AskState.RECORDING)


class _Known(NamedTuple):
    """A group of ranks of a job that the service knows."""

    key: JobKey
    named: Named
    running: bool


class ComparedRank(NamedTuple):
    """A rank's profile, to compare it."""

    title: str
    profile: StepProfile
    problems: Sequence[str]


class _Uneven(NamedTuple):
    """For ``--json`` as well."""

    ranks: Imbalance
    cause: ImbalanceCause
    sentence: str
    advice: str | None

    @property
    def told(self) -> str:
        return " ".join(filter(None, (self.sentence, self.advice)))


def show_job(what: str | None, args: argparse.Namespace) -> int:
    """Show the profiles of a job, or of the last one that has any. Raises ``CommandError``."""
    estimate = None if args.estimate is None else read_estimate(args.estimate)
    with said_when_slow(_ASKING):
        job = _last(args) if what is None else _find(what, args)
    if args.now:
        _record(job, args)
    whole = cache(partial(_whole, job, args))
    with said_when_slow(f"reading the profiles of job {_name(job)}"):
        found = _profiles(job, args, args.ranks)
        worst = max(found, key=lambda one: one.allocated_bytes)
        profile = whole(worst.rank)
        uneven = _imbalance(found, whole)
        page = None if args.html is None else _page(job, found, uneven, whole, estimate)
    estimated = None if estimate is None else beside_estimate(estimate, profile, worst.process_outside_bytes)
    if page is not None:
        write_output(args.html, page.encode(errors="replace"))
    if args.json:
        about = {"job": to_wire(job.key), "ranks": [_rank(one) for one in found], "rank": worst.rank}
        print(
            json.dumps(
                {
                    **about,
                    "imbalance": to_wire(uneven),
                    "estimate": to_wire(estimated and estimated.parts),
                    "profile": to_wire(profile),
                }
            )
        )
    else:
        print_page(_parts(job, found, worst, profile, uneven, args.top))
        if estimated is not None:
            print()
            print_page([estimated.table])
    return FINE


def rank_of_job(what: str, args: argparse.Namespace) -> ComparedRank:
    """The rank that ``JOB:RANK`` names, or the fullest of ``JOB``. Raises ``CommandError``."""
    match = _JOB_RANK.fullmatch(what)
    name, ranks = (match[1], (int(match[2]),)) if match else (what, ())
    with said_when_slow(_ASKING):
        job = _find(name, args)
        fullest = max(_profiles(job, args, ranks), key=lambda one: one.allocated_bytes)
        profile = _whole(job, args, fullest.rank)
    title = f"job {_name(job)}, rank {fullest.rank} on {one_line(fullest.hostname)}"
    return ComparedRank(title, profile, fullest.problems)


def _ask(args: argparse.Namespace, path: str, *, timeout_s: float = ANSWER_S) -> dict[str, Any]:
    """The API's answer; who asks several times says once what for. Raises ``CommandError``."""
    return ask(args, path, timeout_s=timeout_s, quietly=True)


def _whole(job: _Known, args: argparse.Namespace, rank: int) -> StepProfile:
    """With the smaller cards that would do. Raises ``CommandError``."""
    answer = _ask(args, f"/api/v1/profile?{_query(job.key, rank=rank)}", timeout_s=LONG_ANSWER_S)
    profile = read(StepProfile, answer["profile"])
    return profile if profile.advice is None else replace(profile, advice=with_cards(profile.advice))


def _imbalance(found: Sequence[RankProfile], whole: Callable[[int], StepProfile]) -> _Uneven | None:
    """Whose memory is uneven, and why."""
    uneven = imbalance_of(found)
    if uneven is None:
        return None
    cause = cause_of(uneven, whole(uneven.rank), whole(uneven.peer))
    return _Uneven(uneven, cause, imbalance_sentence(uneven, cause), imbalance_advice(cause))


def _last(args: argparse.Namespace) -> _Known:
    if args.now:
        raise UsageError("--now needs a job: --last shows a profile that is there")
    jobs = _ask(args, "/api/v1/profiled-jobs?limit=1")["jobs"]
    if not jobs:
        raise CommandError(f"the service has no memory profile of a job of yours yet. {_WHEN}")
    key = read(ProfiledJob, jobs[0]).job
    return _Known(key, Named(key.job_id, key.attempt, group=key.group), running=False)


_WHEN = (
    "Ranks at level auto are profiled once they are past their warm-up, and `tidegauge profile JOB --now` asks running "
    "ones"
)


def _find(what: str, args: argparse.Namespace) -> _Known:
    """The group of ranks that ``what`` names: running ones first, then the one with the newest profile; of jobs that
    ended with that name, the newest with a profile."""
    try:
        views = [read(JobView, raw) for raw in _ask(args, "/api/v1/jobs")["jobs"]]
    except CommandError as error:
        told = f"{one_line(what)} is no file here{close_files(what)}; to look for a job of that name: {error}"
        raise CommandError(told, exit_code=error.exit_code) from error
    known = [_Known(view.key, _named(view), view.running) for view in views if view.ranks]
    watched = {one.key for one in known}
    profiled = [read(ProfiledJob, raw).job for raw in _ask(args, "/api/v1/profiled-jobs")["jobs"]]
    known += [
        _Known(key, Named(key.job_id, key.attempt, group=key.group), running=False)
        for key in profiled
        if key not in watched
    ]
    found = _meant(known, what) or _meant(_ended(what, profiled, args), what)
    running = [one for one in found if one.running]
    if len(ids := {one.key.job_id for one in running}) > 1:
        raise SeveralJobsError(what, ids)
    if not found:
        raise UsageError(
            f"{one_line(what)} is neither a file nor a job that the service watches or has a profile of; "
            f"`tidegauge jobs` lists jobs{close_files(what)}"
        )
    order = {key: place for place, key in enumerate(profiled)}
    chosen = min(found, key=lambda one: (not one.running, order.get(one.key, len(order))))
    if len({one.key.uid for one in found if one.key.job_id == chosen.key.job_id}) > 1:
        raise CommandError(f"several users have a job {one_line(what)}: an admin of the service sees all of them")
    others = dict.fromkeys(one.key.job_id for one in found if one.key.job_id != chosen.key.job_id)
    if others:
        print(f"tidegauge profile: {other_jobs(what, chosen.key.job_id, others)}", file=sys.stderr)
    return chosen


def _meant(known: Sequence[_Known], what: str) -> Sequence[_Known]:
    """As other commands take a name, and by the column "name" of `tidegauge jobs`."""
    return meant(known, what, lambda one: one.named) or [one for one in known if one.named.given == what]


def _ended(what: str, profiled: Sequence[JobKey], args: argparse.Namespace) -> Sequence[_Known]:
    """Jobs that ended of that id, task of an array or name, by their records; the newest first."""
    ways = [(key, name) for name in dict.fromkeys((what, _FURTHER.sub("", what))) for key in ("job_id", "name")]
    asked = (urlencode({"since": 0, "limit": MAX_ENDED, key: name}, errors="replace") for key, name in ways)
    answers = (_ask(args, f"/api/v1/ended-jobs?{query}")["jobs"] for query in asked)
    records = [read(JobRecord, raw) for raw in next(filter(None, answers), ())]
    groups: dict[JobKey, list[JobKey]] = {}
    for key in profiled:
        groups.setdefault(key.whole, []).append(key)
    return [
        _Known(key, Named(key.job_id, key.attempt, record.array, record.job_name, key.group), running=False)
        for record in records
        for key in groups.get(record.job, [record.job])
    ]


def _named(view: JobView) -> Named:
    return Named(view.job_id, view.attempt, job_array_name(view), view.job_name, view.group_name)


def _profiles(job: _Known, args: argparse.Namespace, ranks: Collection[int]) -> Sequence[RankProfile]:
    """Those of ``ranks``, or all; one at least."""
    answer = _ask(args, f"/api/v1/profiles?{_query(job.key)}", timeout_s=LONG_ANSWER_S)
    found = [read(RankProfile, raw) for raw in answer["profiles"]]
    if not found:
        raise CommandError(f"job {_name(job)} has no memory profile yet. {_WHEN}")
    if not ranks:
        return found
    missing = sorted(set(ranks) - {one.rank for one in found})
    if missing:
        have = ", ".join(str(one.rank) for one in found)
        raise CommandError(f"rank {missing[0]} of job {_name(job)} has no memory profile; there are those of {have}")
    return [one for one in found if one.rank in ranks]


def _record(job: _Known, args: argparse.Namespace) -> None:
    """Ask the ranks now, and wait until each has recorded or refused. Raises ``CommandError`` if none has a profile."""
    fields = {name: str(value) for name, value in job.key._asdict().items() if value != ""}
    if args.ranks:
        fields["ranks"] = ",".join(map(str, args.ranks))
    with progress("profile") as say:
        say("asking the ranks")
        asked = _asked(send(args, "/api/v1/profiles", fields), args.ranks)
        waited = {one.rank for one in asked if one.state in _UNDER_WAY}

        def over() -> Sequence[AskedProfile] | None:
            answer = _ask(args, f"/api/v1/profiles?{_query(job.key)}")
            now = [one for one in _asked(answer, args.ranks) if one.rank in waited]
            say(_how_far(now))
            return None if any(one.state in _UNDER_WAY for one in now) else now

        ended = until(over, within_s=MAX_S + TRIP_S + ASK_SLACK_S)
    if ended is None:
        raise CommandError(f"the ranks of job {_name(job)} did not record within the time; check `tidegauge status`")
    failed = [one for one in ended if one.state is AskState.FAILED]
    for one in failed:
        print_wrapped("", f"rank {one.rank} has no new profile: {one_line(one.problem or 'it did not say why')}")
    if ended and len(failed) == len(ended):
        raise CommandError(f"no rank of job {_name(job)} recorded a profile now")


def _asked(answer: Mapping[str, Any], ranks: Collection[int]) -> Sequence[AskedProfile]:
    found = [read(AskedProfile, raw) for raw in answer["asked"]]
    return [one for one in found if not ranks or one.rank in ranks]


def _how_far(asked: Sequence[AskedProfile]) -> str:
    done = sum(one.state not in _UNDER_WAY for one in asked)
    recording = sum(one.state is AskState.RECORDING for one in asked)
    return f"{done} of {len(asked)} ranks done; {recording} recording, which takes some training steps"


def _parts(
    job: _Known,
    found: Sequence[RankProfile],
    worst: RankProfile,
    profile: StepProfile,
    uneven: _Uneven | None,
    top: int,
) -> Iterator[Part]:
    which = "the only rank with a profile" if len(found) == 1 else f"the fullest of {len(found)} ranks with a profile"
    yield (
        f"Job {_name(job)}, rank {worst.rank} on {one_line(worst.hostname)}, {which}; steps {worst.began_step:,} to "
        f"{worst.ended_step:,}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(worst.at_unix_s))}."
    )
    yield from profile_page(profile, top, profile.advice, of_steps=True)
    yield from _outside_table(worst)
    yield from rank_doubts(worst)
    yield ranks_table(found)
    if uneven is not None:
        yield uneven.told


def _rank(one: RankProfile) -> Mapping[str, Any]:
    """For ``--json``."""
    return {**cast("Mapping[str, Any]", to_wire(one)), "outside": to_wire(outside_parts(one))}


def _outside_table(one: RankProfile) -> Iterator[PageTable]:
    parts = [part for part in outside_parts(one) if part.bytes]
    if parts:
        rows = [(part.name.value, format_bytes(part.bytes), part.source) for part in parts]
        yield PageTable("Outside PyTorch on its GPU", ("what", "bytes", "source"), rows)


def ranks_table(found: Sequence[RankProfile]) -> PageTable:
    """Ranks side by side: the largest categories of any rank, and the rest."""
    largest: dict[Category, int] = {}
    for one in found:
        for category, held in one.by_category.items():
            largest[category] = max(held, largest.get(category, 0))
    shown = sorted(largest, key=lambda category: -largest[category])[:MAX_COLUMNS]
    rows = []
    for one in found:
        cells = [one.by_category.get(category, 0) for category in shown]
        rest = one.allocated_bytes - sum(cells)
        in_bytes = (format_bytes(held) for held in (one.allocated_bytes, *cells, rest))
        rows.append((str(one.rank), one_line(one.hostname), one.phase.value, *in_bytes))
    names = [category.value for category in shown]
    header = ("rank", "host", "phase", "peak", *names, "rest")
    gives_way = ("host", "phase", "rest", *names[:0:-1])
    return PageTable("Allocated at the peak of each rank", header, rows, gives_way=gives_way)


def _page(
    job: _Known,
    found: Sequence[RankProfile],
    uneven: _Uneven | None,
    whole: Callable[[int], StepProfile],
    estimate: Estimate | None,
) -> str:
    """The page of these ranks; of many, some in full."""
    pages = need("tidegauge_exporter.reports.job_profile_page", extra="agent", what="a page")
    chosen, in_full, gaps = pages.ranks_in_full(found, uneven and uneven.ranks), [], []
    for one in chosen:
        try:
            profile = whole(one.rank)
        except CommandError as error:  # the fullest is here already
            gaps.append(f"Rank {one.rank} is not here in full: {error}.")
            continue
        tables = [pages.TextTable(*each[:3], numbers=[1]) for each in _outside_table(one)]
        if estimate is not None:
            beside = beside_estimate(estimate, profile, one.process_outside_bytes).table
            tables.append(pages.TextTable(*beside[:3], numbers=[1, 2, 3]))
        in_full.append(pages.RankInFull(one, profile, tables))
    if len(chosen) < len(found):
        gaps.append(
            f"Of {len(found)} ranks, {len(in_full)} are here in full: the fullest, the emptiest, and others from "
            "between them. `--ranks` makes a page of those that you name."
        )
    return str(
        pages.render_job(
            found,
            in_full,
            subject=_name(job),
            made_unix_s=time.time(),
            uneven=uneven and uneven.told,
            gaps=gaps,
        )
    )


def _name(job: _Known) -> str:
    named = job.named
    return one_line(job_name(named.job_id, named.attempt, named.array, group=named.group))


def _query(job: JobKey, **more: int) -> str:
    return urlencode({**job._asdict(), **more})
