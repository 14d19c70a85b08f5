"""``tidegauge top --once`` prints the tables as plain text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tidegauge.cli.policy.status import in_one_line
from tidegauge.cli.top.columns import (
    MAX_NAME_CHARS,
    Cell,
    Column,
    fit,
    header,
    incident_columns,
    job_columns,
    line,
    name_job_shortly,
    rank_columns,
)
from tidegauge.cli.top.model import JobRow, Selection, by_job, incident_rows, job_rows, key_of, rank_rows
from tidegauge.cli.top.nodes import (
    NodeSort,
    gpu_columns,
    gpu_rows,
    node_columns,
    node_headline,
    node_rows,
    nodes_headline,
)
from tidegauge.cli.top.pages import headline, job_headline
from tidegauge.cli.top.service import OpenIncidents
from tidegauge.cluster.api.overview import JobPage, NodePage, Overview

T = TypeVar("T")


def print_cluster(overview: Overview, incidents: OpenIncidents, choice: Selection) -> None:
    jobs = job_rows(overview.jobs, incidents.lines, choice)
    _print_line([Cell(f"{overview.cluster}   "), *headline(overview)])
    _print_line([Cell(in_one_line(overview.actions))])
    longest = _longest(name_job_shortly(row.called, row.job.array) for row in jobs)
    _print_table(job_columns(longest), jobs, empty="no jobs watched" if not overview.jobs else "no matching job")
    _print_incidents(incidents, choice)


def print_job(pages: Sequence[JobPage], incidents: OpenIncidents, choice: Selection) -> None:
    """Print the ranks of a job by group, and its open incidents."""
    for number, page in enumerate(pages):
        row = JobRow(page.job, ())
        print("\n" * bool(number), end="")
        _print_line(
            [Cell(f"job {name_job_shortly(row.called, page.job.array)}   "), *job_headline(page.job, row.other_name)]
        )
        _print_table(rank_columns(), rank_rows(page.ranks, choice), empty="no ranks known")
        if page.left_out:
            print(f"and {page.left_out:,} more ranks")
    of_job = by_job(incidents.lines)
    lines = [line for page in pages for line in of_job.get(key_of(page.job), ())]
    _print_incidents(incidents._replace(lines=tuple(lines)), Selection())


def print_nodes(raw: Mapping[str, Any]) -> None:
    """Print the nodes of the API's answer, the fullest first."""
    rows = node_rows(raw, NodeSort.FULLEST, "")
    _print_line([Cell(f"{raw['cluster']}   "), *nodes_headline(rows)])
    _print_table(node_columns(), rows, empty="no nodes known")
    if raw["left_out"]:
        print(f"and {raw['left_out']:,} more nodes")


def print_node(page: NodePage) -> None:
    """Print the GPUs of one node and the ranks on them."""
    _print_line([Cell(f"node {page.node.hostname}   "), *node_headline(page.node)])
    _print_table(gpu_columns(), gpu_rows(page, ""), empty="no GPU reported")
    if page.left_out:
        print(f"and {page.left_out:,} more ranks")


def chosen_jobs(raw: dict[str, Any], overview: Overview, choice: Selection) -> dict[str, Any]:
    told = {key_of(job): each for job, each in zip(overview.jobs, raw["jobs"])}
    return {**raw, "jobs": [told[row.key] for row in job_rows(overview.jobs, (), choice)]}


def _print_incidents(incidents: OpenIncidents, choice: Selection) -> None:
    if incidents.problem is not None:
        print(f"\nincidents unavailable: {incidents.problem}")
        return
    print()
    rows = incident_rows(incidents.lines, choice)
    longest = _longest(name_job_shortly(line.incident.called) for line in rows)
    _print_table(incident_columns(longest), rows, empty="no open incidents")


def _longest(names: Iterable[str]) -> int:
    """The width of the names of jobs, characters; in a pipe no name is cut, so that scripts can use it."""
    return MAX_NAME_CHARS if sys.stdout.isatty() else max([MAX_NAME_CHARS, *map(len, names)])


def _print_table(columns: Sequence[Column[T]], rows: Sequence[T], *, empty: str) -> None:
    if not rows:
        print(empty)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sum(one.wanted + 1 for one in columns)
    fitted = fit(columns, width)
    print(header(fitted).rstrip())
    for row in rows:
        _print_line(line(fitted, row))


def _print_line(cells: Sequence[Cell]) -> None:
    print("".join(cell.text for cell in cells).rstrip())
