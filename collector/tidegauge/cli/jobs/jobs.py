"""``tidegauge jobs`` lists the watched jobs and the ranks whose memory grows."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from tidegauge.cli.arguments import OUTPUT, group
from tidegauge.cli.errors import BAD_NEWS, FINE
from tidegauge.cli.jobs.names import job_name
from tidegauge.cli.output import print_json, print_table
from tidegauge.cli.service_api import add_api_arguments, ask, whose
from tidegauge.core.evidence.growth_bound import GrowthBound
from tidegauge.core.evidence.words import end_words
from tidegauge.core.incidents.wording import list_ranks
from tidegauge.core.jobs.kubernetes import PROFILE_LABEL
from tidegauge.core.jobs.slurm import SlurmPlace, array_name
from tidegauge.core.units import format_band, format_bytes
from tidegauge.core.verdicts import OK, LeakState, Severity, Verdict, state_word
from tidegauge.core.wire import from_wire

HELP = "list watched jobs and the ranks whose memory grows"

HEADER = ("job", "name", "user", "ranks", "step", "allocated", "reserved", "state", "suspects", "signal", "per step",
          "OOM in")  # fmt: skip
GIVES_WAY = ("reserved", "signal", "step", "name", "allocated", "user", "ranks")
"""Columns that are dropped on a narrow terminal, in this order."""
POD_HEADER, POD_GIVES_WAY = (*HEADER, "pod"), (*GIVES_WAY, "pod")
"""Header and optional columns if a job runs in pods."""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    group(parser, OUTPUT).add_argument(
        "--fail-on-leak", action="store_true",
        help="exit with 1 if the memory of a running job grows without bound (state leak or growing)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    answer = ask(args, "/api/v1/jobs")
    jobs = answer["jobs"]
    if args.json:
        print_json(answer)
    elif jobs:
        pods = [_pod(job) for job in jobs]
        rows = [_row(job) for job in jobs]
        if any(pods):
            print_table(POD_HEADER, [(*row, pod or "-") for row, pod in zip(rows, pods)], gives_way=POD_GIVES_WAY)
        else:
            print_table(HEADER, rows, gives_way=GIVES_WAY)
    else:
        print(nothing_watched(os.environ, whose(answer)))
    leaks = any(job["running"] and job["state"] == "leak" for job in jobs)
    return BAD_NEWS if leaks and args.fail_on_leak else FINE


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
    steps = max(rank["step"] for rank in ranks)
    return (
        job_name(job["job_id"], job["attempt"], _array_name(ranks), group=job.get("group_name", "")),
        job["job_name"] or "-",
        job["user_name"],
        f"{sum(rank['alive'] for rank in ranks)}/{job['world_size']}",
        str(steps),
        format_bytes(max(rank["allocated_bytes"] for rank in ranks)),
        format_bytes(max(rank["reserved_bytes"] for rank in ranks)),
        _verdict(job, worst, has_steps=steps > 0),
        list_ranks(job["suspects"], common=job["common"]),
        job["signal"] or "-",
        "-" if verdict.bytes_per_step is None else format_bytes(verdict.bytes_per_step.likely),
        "-" if verdict.seconds_to_oom is None else format_band(verdict.seconds_to_oom),
    )


def _verdict(job: Mapping[str, Any], worst: Mapping[str, Any] | None, *, has_steps: bool) -> str:
    words = _state(job, has_steps=has_steps) + _whether_it_ends(worst)
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
