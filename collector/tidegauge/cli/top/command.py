"""``tidegauge top`` shows jobs, their ranks and open incidents live."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidegauge.cli.arguments import OUTPUT, SELECTION, add_examples, group
from tidegauge.cli.errors import FINE, CommandError, UsageError, need
from tidegauge.cli.output import print_json
from tidegauge.cli.service_api import add_api_arguments

if TYPE_CHECKING:
    from tidegauge.cli.top.model import Selection
    from tidegauge.cli.top.service import Service
    from tidegauge.cluster.api.overview import NodeLine, Overview
    from tidegauge.core.ids import JobKey

HELP = "watch jobs, ranks and incidents live in the terminal"

SORTS = ("time", "memory", "growth", "name", "state", "user", "host", "ranks", "step", "bytes")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    selection = group(parser, SELECTION)
    selection.add_argument(
        "--job", metavar="JOB", help="start with the ranks of this job (id or name, see `tidegauge jobs`)"
    )
    selection.add_argument("--nodes", action="store_true", help="nodes and their GPUs instead of jobs")
    selection.add_argument("--node", metavar="HOST", help="the GPUs of this node, and the ranks on them")
    selection.add_argument("--user", metavar="NAME", help="only jobs of this user")
    output = group(parser, OUTPUT)
    output.add_argument(
        "--sort", choices=SORTS, default="time",
        help="by time to OOM (default), share of memory used, growth per step, name and so on; bytes: memory used",
    )  # fmt: skip
    output.add_argument("--once", action="store_true", help="print the tables once (default without a terminal)")
    add_api_arguments(parser)
    add_examples(
        parser,
        "tidegauge top --user ada               only ada's jobs",
        "tidegauge top --job 4711 --once        print the ranks of job 4711",
        "tidegauge top --nodes                  nodes: what is used of each GPU, by whom",
        "tidegauge top --api http://head:9495   a service on another host",
    )


def run(args: argparse.Namespace) -> int:
    need("rich", extra="agent", what="`tidegauge top`")
    with _no_collections():
        from tidegauge.cli.top.model import Selection, Sort
        from tidegauge.cli.top.service import Service

        service = Service.of(args)
    if args.job is not None and (args.nodes or args.node is not None):
        raise UsageError("--job cannot be combined with --nodes or --node")
    choice = Selection(Sort(args.sort), user=args.user)
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty() and os.environ.get("TERM") != "dumb"
    prints = args.json or args.once or not is_terminal
    if not prints:
        _watch(service, choice, args)
    elif args.nodes or args.node is not None:
        _print_nodes(service, args.node, as_json=args.json)
    elif args.json:
        _print_json(service, choice, args.job)
    else:
        _print_once(service, choice, args.job)
    return FINE


@contextmanager
def _no_collections() -> Iterator[None]:
    """Import without garbage collections, which find nothing and take a fifth of the time to the first screen."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _print_json(service: Service, choice: Selection, job_id: str | None) -> None:
    """Print the API's answers in one object, also while the database of incidents is unavailable."""
    from tidegauge.cli.service_api import read
    from tidegauge.cli.top.plain import chosen_jobs
    from tidegauge.cluster.api.overview import Overview

    raw = service.overview_raw()
    overview = read(Overview, raw)
    jobs = [] if job_id is None else _find(overview, job_id)
    if jobs:
        answer, *others = map(service.job_raw, jobs)
        answer = {**answer, "other_groups": others}
    else:
        answer = chosen_jobs(raw, overview, choice)
    of_jobs = [job._asdict() for job in jobs]
    try:
        found = service.incidents_raw()["incidents"]
        incidents = [one for one in found if not jobs or one["key"]["job"] in of_jobs]
        answer = {**answer, "incidents": incidents, "incidents_problem": None}
    except CommandError as error:
        answer = {**answer, "incidents": None, "incidents_problem": str(error)}
    print_json(answer)


def _print_once(service: Service, choice: Selection, job_id: str | None) -> None:
    from tidegauge.cli.top.plain import print_cluster, print_job

    overview = service.overview()
    if job_id is None:
        print_cluster(overview, service.incidents(), choice)
    else:
        print_job([service.job(key) for key in _find(overview, job_id)], service.incidents(), choice)


def _print_nodes(service: Service, host: str | None, *, as_json: bool) -> None:
    """Print all nodes, or the one of that name with the ranks on it."""
    from tidegauge.cli.service_api import read
    from tidegauge.cli.top.plain import print_node, print_nodes
    from tidegauge.cluster.api.overview import NodePage

    raw = service.nodes_raw() if host is None else service.node_raw(_node(service, host).node_id)
    if as_json:
        print_json(raw)
    elif host is None:
        print_nodes(raw)
    else:
        print_node(read(NodePage, raw))


def _node(service: Service, host: str) -> NodeLine:
    """The node of that name; of several the one that reports. Raises ``CommandError``."""
    from tidegauge.cli.top.nodes import NodeRow

    found = [row for row in map(NodeRow, service.nodes_raw()["nodes"]) if host in (row.hostname, row.node_id)]
    if not found:
        raise UsageError(f"no node {host!r}; `tidegauge top --nodes --once` lists them")
    return max(found, key=lambda row: row.reports).line


def _watch(service: Service, choice: Selection, args: argparse.Namespace) -> None:
    need("textual", extra="agent", what="`tidegauge top`")
    with _no_collections():
        from tidegauge.agent.processes.procfs import ProcFs
        from tidegauge.cli.top.app import TopApp

    # Before the application takes over the terminal: without a service there is only an error message.
    first = service.overview()
    job = None if args.job is None else _find(first, args.job)[0]
    node = None if args.node is None else _node(service, args.node)
    user = ProcFs().user_name(os.getuid())
    app = TopApp(service, first, user=user, choice=choice, job=job, nodes=args.nodes, node=node)
    app.run()
    for url in app.addresses:
        print(url)


def _find(overview: Overview, job_id: str) -> list[JobKey]:
    """The groups of ranks of a job, the most severe first. Raises ``CommandError``."""
    from tidegauge.cli.top.model import find_job, key_of

    found = find_job(overview.jobs, job_id)
    if not found:
        raise UsageError(f"no watched job {job_id!r}; `tidegauge jobs` lists watched jobs")
    return [key_of(job) for job in found]
