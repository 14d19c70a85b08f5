"""``tidegauge jobs`` lists the watched jobs and the ranks whose memory grows."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidegauge.cli.arguments import OUTPUT, add_examples, group
from tidegauge.cli.errors import BAD_NEWS, FINE, CommandError
from tidegauge.cli.jobs.history import MAX_ENDED, print_records
from tidegauge.cli.output import print_json, print_page, print_table
from tidegauge.cli.service_api import NO_SUCH_PAGE, add_api_arguments, ask, read, web_pages, whose
from tidegauge.cli.times import ago, moment, since_unix_s
from tidegauge.cluster.api.client import ApiError
from tidegauge.core.evidence.growth_bound import GrowthBound
from tidegauge.core.evidence.words import end_words
from tidegauge.core.ids import JobKey, job_name
from tidegauge.core.incidents.wording import list_ranks
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.jobs.slurm import SlurmPlace, array_name
from tidegauge.core.units import format_band, format_bytes
from tidegauge.core.verdicts import OK, LeakState, Severity, Verdict, state_word
from tidegauge.core.wire import from_wire

if TYPE_CHECKING:
    from tidegauge_exporter.links import Links

HELP = "list watched jobs and the ranks whose memory grows, and jobs that ended lately"

HEADER = ("job", "name", "user", "ranks", "step", "allocated", "reserved", "state", "suspects", "signal", "per step",
          "OOM in")  # fmt: skip
GIVES_WAY = ("reserved", "signal", "step", "name", "allocated", "user", "ranks")
"""Columns that are dropped on a narrow terminal, in this order."""
POD_HEADER, POD_GIVES_WAY = (*HEADER, "pod"), (*GIVES_WAY, "pod")
"""Header and optional columns if a job runs in pods."""
LATELY_S, FEW_ENDED = 86_400.0, 10
"""How far back `jobs` looks for ended jobs without --ended, and how many it lists."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    group(parser, OUTPUT).add_argument(
        "--fail-on-leak", action="store_true",
        help="exit with 1 if the memory of a running job grows without bound (state leak or growing)",
    )  # fmt: skip
    parser.add_argument(
        "--ended", type=ago, metavar="SINCE",
        help=f"also list up to {MAX_ENDED} jobs that ended within this time, such as 7d (default: {FEW_ENDED} of 24h); "
        "`tidegauge history` has filters",
    )  # fmt: skip
    add_examples(
        parser,
        "tidegauge jobs               running jobs, and those that ended in the last 24 h",
        "tidegauge history            all jobs that ended, with filters",
        "tidegauge jobs --json        the same for scripts",
    )


def run(args: argparse.Namespace) -> int:
    answer = ask(args, "/api/v1/jobs")
    jobs, ended, pages = answer["jobs"], _ask_ended(args), web_pages(args)
    if args.json:
        told: dict[str, object] = {"ended": ended and _with_pages(ended["jobs"], _record_key, pages)}
        told |= {"ended_left_out": ended and ended["left_out"], "url": pages.page("jobs")}
        print_json({**answer, "jobs": _with_pages(jobs, _key, pages), **told})
    else:
        _print_watched(answer, pages)
        if ended is not None:
            _print_ended(ended, {_key(job).whole for job in jobs}, args.ended, pages)
        print_page(pages.page("jobs"))
    leaks = any(job["running"] and job["state"] == "leak" for job in jobs)
    return BAD_NEWS if leaks and args.fail_on_leak else FINE


def _with_pages(
    raw: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], JobKey], pages: Links
) -> Sequence[Mapping[str, Any]]:
    return [{**one, "url": pages.job_page(key(one))} for one in raw]


def _print_watched(answer: Mapping[str, Any], pages: Links) -> None:
    jobs = answer["jobs"]
    if jobs:
        urls = [pages.job_page(_key(job)) for job in jobs]
        pods = [_pod(job) for job in jobs]
        rows = [_row(job) for job in jobs]
        if any(pods):
            rows = [(*row, pod or "-") for row, pod in zip(rows, pods)]
            print_table(POD_HEADER, rows, gives_way=POD_GIVES_WAY, pages=urls)
        else:
            print_table(HEADER, rows, gives_way=GIVES_WAY, pages=urls)
    else:
        print(nothing_watched(os.environ, whose(answer)))


def _ask_ended(args: argparse.Namespace) -> dict[str, Any] | None:
    """The records of ended jobs; ``None`` if the service has none to give and nobody asked for them."""
    since_s = since_unix_s(args.ended or LATELY_S)
    limit = MAX_ENDED if args.ended else FEW_ENDED
    try:
        return ask(args, f"/api/v1/ended-jobs?since={since_s}&limit={limit}")
    except CommandError as error:
        if args.ended:
            raise
        cause = error.__cause__
        if not (isinstance(cause, ApiError) and cause.status == NO_SUCH_PAGE):  # an older service has no such page
            print(f"tidegauge jobs: ended jobs are not available: {error}", file=sys.stderr)
        return None


def _print_ended(answer: Mapping[str, Any], watched: Collection[JobKey], asked_s: float | None, pages: Links) -> None:
    """Print the jobs that have ended, without those that are still in the table of watched jobs."""
    records = [record for raw in answer["jobs"] if (record := read(JobRecord, raw)).job.whole not in watched]
    when = "in the last 24 h" if asked_s is None else f"since {moment(since_unix_s(asked_s))}"
    if not records:
        if asked_s is not None or not watched:
            wider = "" if asked_s is not None else "; `tidegauge history` looks further back"
            print(f"no job ended {when}{wider}")
        return
    print(f"\nEnded {when}:")
    print_records(records, pages)
    if answer["left_out"]:
        print(f"{answer['left_out']:,} more ended before these; `tidegauge history` lists and filters them")


def _key(job: Mapping[str, Any]) -> JobKey:
    return JobKey(job["job_id"], job["attempt"], job["ranks"][0]["uid"], job.get("group", ""))


def _record_key(raw: Mapping[str, Any]) -> JobKey:
    return read(JobRecord, raw).job


def nothing_watched(environ: Mapping[str, str], whose_only: str | None = None) -> str:
    """The message without jobs: how to start profiling on this host, with Slurm's option or, in a pod, with the label.

    ``whose_only`` says why others' jobs are not listed, as ``service_api.whose`` returns it.
    """
    none = "no jobs watched" if whose_only is None else f"no jobs of yours watched: {whose_only}"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return f"{none}; to watch one, add the label {PROFILE_LABEL}=auto to its pod template or namespace"
    slurm = ", or with `srun --memory-profile CMD`" if shutil.which("srun", path=environ.get("PATH")) else ""
    return f"{none}; start one with `tidegauge run -- CMD`{slurm}"


def _row(job: Mapping[str, Any]) -> Sequence[str]:
    ranks = job["ranks"]
    worst = _worst(job)
    verdict = OK if worst is None else from_wire(Verdict, worst["verdict"])
    left_s = verdict.seconds_to_oom if job["running"] else None
    steps = max(rank["step"] for rank in ranks)
    return (
        job_name(job["job_id"], job["attempt"], _array_name(ranks), group=job.get("group_name", "")),
        job["job_name"] or "-",
        job["user_name"],
        f"{sum(rank['alive'] for rank in ranks)}/{job['world_size']}",
        str(steps),
        format_bytes(max(rank["allocated_bytes"] for rank in ranks)),
        format_bytes(max(rank["reserved_bytes"] for rank in ranks)),
        _verdict(job, worst, has_steps=steps > 0 or bool(job.get("replicas"))),
        list_ranks(job["suspects"], common=job["common"]),
        job["signal"] or "-",
        "-" if verdict.bytes_per_step is None else format_bytes(verdict.bytes_per_step.likely),
        "-" if left_s is None else format_band(left_s),
    )


def _verdict(job: Mapping[str, Any], worst: Mapping[str, Any] | None, *, has_steps: bool) -> str:
    words = _state(job, has_steps=has_steps) + _whether_it_ends(worst) + _beside(job)
    if job["running"]:
        return words + (", stale" if job["stale"] else "")
    return "ended" if LeakState(job["state"]) is LeakState.OK else f"ended (was {words})"


def _state(job: Mapping[str, Any], *, has_steps: bool) -> str:
    state, severity = LeakState(job["state"]), job["severity"] and Severity(job["severity"])
    word = state_word(state, severity, has_steps=has_steps)
    return f"{word} ({severity.value})" if severity else word


def _whether_it_ends(rank: Mapping[str, Any] | None) -> str:
    """ ", ends at about 3.1 GiB" if the growth is bounded, or what is missing to bound it."""
    bound = None if rank is None or not rank.get("bound") else from_wire(GrowthBound, rank["bound"])
    says = "" if bound is None or bound.state is None else end_words(bound)
    return f", {says}" if says else ""


def _beside(job: Mapping[str, Any]) -> str:
    """ ", 3 of 8 replicas grow" of a growing replica of a server."""
    replicas = from_wire(Replicas, job["replicas"]) if job.get("replicas") else None  # missing in an older answer
    is_told = replicas is not None and job["state"] == LeakState.LEAK.value and replicas.growing
    return f", {replicas.words}" if replicas is not None and is_told else ""


def _array_name(ranks: Sequence[Mapping[str, Any]]) -> str | None:
    places = [from_wire(SlurmPlace, rank["slurm"]) for rank in ranks if rank.get("slurm")]
    return next(filter(None, map(array_name, places)), None)


def _pod(job: Mapping[str, Any]) -> str | None:
    """The pod of the rank to look at first; without such a rank, the job's pod or their number."""
    worst = _worst(job)
    ranks = job["ranks"] if worst is None else [worst]
    pods = {rank["pod"]["pod"] for rank in ranks if rank.get("pod") and rank["pod"]["pod"]}
    if not pods:
        return None
    return str(pods.pop()) if len(pods) == 1 else f"{len(pods)} pods"


def _worst(job: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The rank to look at first."""
    first = job["suspects"][:1]
    return next((rank for rank in job["ranks"] if [rank["identity"]["rank"]] == first), None)
