"""``tidegauge top --once``: the same tables as plain text, and ``--json``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from tidegauge.cli.policy_status import in_one_line
from tidegauge.cli.top_cells import Cell, Column, fit, header, line
from tidegauge.cli.top_columns import incident_columns, job_columns, name_job_shortly, rank_columns
from tidegauge.cli.top_model import Choice, by_job, incident_rows, job_rows, key_of, rank_rows
from tidegauge.cli.top_pages import headline, job_headline
from tidegauge.cli.top_service import Incidents
from tidegauge.cluster.overview import JobPage, Overview

T = TypeVar("T")

PIPE_WIDTH = 240
"""A pipe has no width: all columns stand in its lines."""


def print_cluster(overview: Overview, incidents: Incidents, choice: Choice) -> None:
    """All jobs that are chosen, and the open incidents."""
    jobs = job_rows(overview.jobs, incidents.lines, choice)
    _print_line([Cell(f"{overview.cluster}   "), *headline(overview)])
    _print_line([Cell(in_one_line(overview.actions))])
    _print_table(job_columns(), jobs, empty="no job is watched" if not overview.jobs else "no such job")
    _print_incidents(incidents, choice)


def print_job(page: JobPage, incidents: Incidents, choice: Choice) -> None:
    """The ranks of one job, and its open incidents."""
    key = key_of(page.job)
    _print_line([Cell(f"job {name_job_shortly(key, page.job.array)}   "), *job_headline(page.job)])
    _print_table(rank_columns(), rank_rows(page.ranks, choice), empty="no rank is known")
    if page.left_out:
        print(f"and {page.left_out:,} more ranks")
    _print_incidents(incidents._replace(lines=by_job(incidents.lines).get(key, ())), Choice())


def chosen_jobs(raw: dict[str, Any], overview: Overview, choice: Choice) -> dict[str, Any]:
    """The API's answer with the jobs that are chosen, in order."""
    told = {key_of(job): each for job, each in zip(overview.jobs, raw["jobs"])}
    return {**raw, "jobs": [told[row.key] for row in job_rows(overview.jobs, (), choice)]}


def _print_incidents(incidents: Incidents, choice: Choice) -> None:
    if incidents.problem is not None:
        print(f"\nincidents are not known: {incidents.problem}")
        return
    print()
    _print_table(incident_columns(), incident_rows(incidents.lines, choice), empty="no incident is open")


def _print_table(columns: Sequence[Column[T]], rows: Sequence[T], *, empty: str) -> None:
    if not rows:
        print(empty)
        return
    fitted = fit(columns, shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH)
    print(header(fitted).rstrip())
    for row in rows:
        _print_line(line(fitted, row))


def _print_line(cells: Sequence[Cell]) -> None:
    print("".join(cell.text for cell in cells).rstrip())
