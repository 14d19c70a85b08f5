"""``tidegauge snapshot JOB`` for ranks on other hosts, through the service on its head."""

from __future__ import annotations

import argparse
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional
from urllib.parse import urlencode

from tidegauge.cli.errors import FINE, CommandError, UsageError
from tidegauge.cli.jobs.names import Named, SeveralJobsError, meant
from tidegauge.cli.output import print_json, progress
from tidegauge.cli.service_api import LOOK_EVERY_S, ask, ask_remote_rank, asks_here, read, until
from tidegauge.core.evidence import Evidence, EvidenceReason
from tidegauge.core.evidence.rank_evidence import ids_so_far
from tidegauge.core.evidence.request import evidence_request, window_for
from tidegauge.core.incidents.escalation import SEARCH_AND_TRIP_S
from tidegauge.core.text import one_line
from tidegauge.core.views import JobView, RankSummary, job_array_name
from tidegauge.core.wire import to_wire

if TYPE_CHECKING:
    from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks

MAX_NAMED = 8
"""Maximum number of owners in a message."""


class _Chosen(NamedTuple):
    """The rank that gets the request."""

    view: JobView
    rank: RankSummary
    hostname: str

    @property
    def number(self) -> int:
        return int(self.rank.identity.rank)


def ask_elsewhere(args: argparse.Namespace, *, not_here: str) -> int:
    """Request a snapshot or evidence from one rank of a job that the service knows. Raises ``CommandError``.

    ``not_here`` says why this host has no such rank.
    """
    try:
        views = [read(JobView, raw) for raw in ask(args, "/api/v1/jobs")["jobs"]]
    except CommandError as error:
        raise CommandError(f"{not_here}. The service could not be asked: {error}") from error
    living = [view for view in views if view.running and view.ranks]
    of_job = meant(living, args.what, _named)
    if len(ids := {view.job_id for view in of_job}) > 1:
        raise SeveralJobsError(args.what, ids)
    chosen = _choose(of_job, args, not_here)
    asks = _asks(args, chosen)
    evidence_id = f"asked-{secrets.token_hex(8)}"
    with progress("snapshot") as say:
        say(f"asking rank {chosen.number} on {one_line(chosen.hostname)}")
        answer = ask_remote_rank(asks, chosen.view.key, chosen.number, _request(args, chosen, evidence_id))
        if not args.evidence:
            return _tell_snapshot(args, chosen, answer)
        say("recording; the node then compares the snapshots and sends the result")
        found = _wait_for(args, chosen, evidence_id)
    if args.json:
        print_json(to_wire(found))
    else:
        from tidegauge.cli.snapshot.evidence import print_evidence

        print_evidence(found)
    return FINE


def _named(view: JobView) -> Named:
    return Named(view.job_id, view.attempt, job_array_name(view), view.job_name, view.group_name)


def _choose(views: Sequence[JobView], args: argparse.Namespace, not_here: str) -> _Chosen:
    """The rank of ``--rank``, else the one to look at first. Raises ``CommandError``."""
    what = one_line(str(args.what))
    if not views:
        raise CommandError(f"{not_here}. The service knows no running job {what} either; `tidegauge jobs` lists them")
    if len({view.key.whole for view in views}) == 1 or _are_groups(views):
        views = _of_group(views, args, what)
    if len(views) > 1:
        owners = ", ".join(f"{one_line(view.user_name)} (attempt {view.attempt})" for view in views[:MAX_NAMED])
        raise CommandError(
            f"several users or attempts have a job {what}: {owners}. Run this on the hosts of the job you mean"
        )
    (view,) = views
    living = {
        int(rank.identity.rank): _Chosen(view, rank, hostname)
        for rank, hostname in zip(view.ranks, view.rank_hostnames)
        if rank.alive
    }
    wanted = [args.rank] if args.rank is not None else [*view.suspects, *sorted(living)]
    found = next((living[rank] for rank in wanted if rank in living), None)
    if found is None:
        which = "" if args.rank is None else f" {args.rank}"
        raise UsageError(f"job {what} has no running rank{which}")
    return found


def _are_groups(views: Sequence[JobView]) -> bool:
    """True for groups of one user's job, whose attempts may differ if a launcher restarted some."""
    return len({view.key.owned for view in views}) == 1 and all(view.group_name for view in views)


def _of_group(views: Sequence[JobView], args: argparse.Namespace, what: str) -> Sequence[JobView]:
    """The group of ranks by name, or the only one with the rank, or the most severe. Raises ``CommandError``."""
    if args.group is not None:
        named = [view for view in views if args.group == view.group_name]
        if not named:
            groups = ", ".join(sorted(one_line(view.group_name) for view in views if view.group_name))
            has = f"has {groups}" if groups else "has one group of ranks"
            raise UsageError(f"job {what} has no group {one_line(args.group)}: it {has}")
        return named
    if args.rank is None:
        return views[:1]
    having = [view for view in views if args.rank in view.living_numbers]
    if len(having) > 1:
        groups = " or ".join(f"--group '{one_line(view.group_name)}'" for view in having)
        raise UsageError(f"{len(having)} groups of job {what} have a rank {args.rank}: use {groups}")
    return having or views[:1]


def _asks(args: argparse.Namespace, chosen: _Chosen) -> EvidenceAsks:
    """The requests of the coordinator on this node. Raises ``CommandError`` with what to do elsewhere."""
    rank, pid = chosen.number, chosen.rank.process.pid
    what = f"tidegauge snapshot {pid}{' --evidence' if args.evidence else ''}"
    there = f"Rank {rank} runs on {one_line(chosen.hostname)}: run `{what}` there, as its user or root"
    if args.output and chosen.hostname == socket.gethostname():
        raise UsageError(f"-o needs the pid of a rank: `{what} -o {args.output}`")
    if args.output:
        raise CommandError(
            f"-o works only for ranks on this host: the snapshot stays in the store of its node. {there}"
        )
    try:
        return asks_here(args)
    except CommandError as error:
        raise CommandError(f"{error}. {there}") from error


def _request(args: argparse.Namespace, chosen: _Chosen, evidence_id: str) -> dict[str, Any]:
    if args.evidence:
        window = window_for(chosen.rank.verdict)
        return evidence_request(evidence_id, EvidenceReason.ASKED, window, max_events=args.events)
    return {"command": "snapshot", "reason": EvidenceReason.ASKED.value, "max_events": args.events, "now": args.now}


def _tell_snapshot(args: argparse.Namespace, chosen: _Chosen, answer: Mapping[str, Any]) -> int:
    rank = chosen.number
    if args.json:
        print_json({"rank": rank, "hostname": chosen.hostname, "answer": dict(answer)})
        return FINE
    step = answer.get("step")
    print(
        f"rank {rank} wrote a snapshot at step {step} on {one_line(chosen.hostname)}; its node stores it within "
        f"seconds. If rank {rank} gets an incident, its report shows the snapshot"
    )
    return FINE


def _wait_for(args: argparse.Namespace, chosen: _Chosen, evidence_id: str) -> Evidence:
    path = "/api/v1/evidence?" + urlencode(chosen.view.key._asdict())
    longest_s = window_for(chosen.rank.verdict).most_s + SEARCH_AND_TRIP_S

    def look(*ids: str) -> Optional[Evidence]:
        pieces = {piece.evidence_id: piece for piece in (read(Evidence, raw) for raw in ask(args, path)["evidence"])}
        return next((pieces[one] for one in ids if one in pieces), None)

    found = until(lambda: look(evidence_id), within_s=longest_s, every_s=4 * LOOK_EVERY_S)
    if found is None:  # its search for holders may go on
        found = look(evidence_id, *reversed(ids_so_far(evidence_id)))
    if found is None:
        raise CommandError(f"no evidence within {longest_s:.0f} s; it may still arrive: see `tidegauge report` later")
    return found
