"""The screens of ``tidegauge top`` about what happened: the log of changes, jobs that ended, and one of those."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from tidegauge.cli.errors import CommandError
from tidegauge.cli.times import moment
from tidegauge.cli.top.acts import Question
from tidegauge.cli.top.columns import Cell, Tone
from tidegauge.cli.top.happened import (
    ChangeLine,
    change_columns,
    changes,
    ended_columns,
    ended_page,
    ended_rows,
    job_command,
)
from tidegauge.cli.top.page_screens import PageScreen
from tidegauge.cli.top.pages import Line, wrapped
from tidegauge.cli.top.screens import RowsScreen
from tidegauge.cli.top.service import EndedList
from tidegauge.cli.top.table import RowTable
from tidegauge.cluster.views import Event
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.units import format_count


class ChangesSeen(NamedTuple):
    """The data of one refresh of the log."""

    at_unix_s: float
    events: tuple[Event, ...]
    incidents: tuple[Incident, ...] = ()
    decisions: tuple[DecisionRecord, ...] = ()
    ended: tuple[JobRecord, ...] = ()
    problem: str | None = None
    """Why only events of nodes, jobs and verdicts are known."""


class ChangesScreen(RowsScreen[ChangesSeen, ChangeLine]):
    """The log: what changed, the newest first."""

    REFRESH_S: ClassVar[float] = 5.0
    KEYS = "Esc back  Enter open the incident, or read the line  / filter  ? help  q quit"

    def ask(self) -> ChangesSeen:
        source, events = self.top.source, () if self.seen is None else self.seen.events
        news = source.events(events[-1].seq if events else 0)
        if not news and events and source.events(0)[-1:] != events[-1:]:
            events, news = (), source.events(0)  # another coordinator counts anew
        seen = ChangesSeen(time.time(), (*events, *news))
        try:
            return seen._replace(
                incidents=source.latest_incidents(), decisions=source.decisions(), ended=source.ended_jobs().records
            )
        except CommandError as error:
            return seen._replace(problem=str(error))

    def path(self) -> Sequence[str]:
        return ("log",)

    def about(self, seen: ChangesSeen) -> Line:
        if seen.problem is None:
            return [Cell("nodes, jobs, verdicts, incidents, actions; times are the service's")]
        return [Cell("incidents, actions and ends of jobs are unavailable: ", Tone.WARNING), Cell(seen.problem)]

    def figures_unix_s(self, seen: ChangesSeen) -> float:
        return seen.at_unix_s

    def table(self) -> RowTable[ChangeLine]:
        return RowTable(change_columns(), lambda row: row, id="rows", empty="nothing has changed; / changes the filter")

    def rows(self, seen: ChangesSeen) -> Sequence[ChangeLine]:
        return changes(seen.events, seen.incidents, seen.decisions, seen.ended, self.top.choice.text)

    def rows_title(self, seen: ChangesSeen, rows: Sequence[ChangeLine]) -> str:  # noqa: ARG002 - they are counted as shown
        text = f" with {self.top.choice.text!r}" if self.top.choice.text else ""
        return f"{format_count(len(rows), 'change')}{text}, the newest first"

    def opened(self, row: ChangeLine) -> None:
        if row.incident is not None:
            self.top.show_incident(row.incident)
        else:
            self.top.confirm(Question(f"{row.what.text}, {moment(row.at_unix_s)}", (row.text,)))


class EndedScreen(RowsScreen[EndedList, JobRecord]):
    """The jobs that ended, the latest first."""

    REFRESH_S: ClassVar[float] = 10.0
    KEYS = "Esc back  Enter open  / filter  c nodes  l log  ? help  q quit"

    def ask(self) -> EndedList:
        return self.top.source.ended_jobs()

    def path(self) -> Sequence[str]:
        return ("ended jobs",)

    def about(self, seen: EndedList) -> Line:  # noqa: ARG002 - it points elsewhere
        return [Cell("peak: reserved on the fullest rank, of its limit; `tidegauge history` has all")]

    def figures_unix_s(self, seen: EndedList) -> float:  # noqa: ARG002 - the answer has no time
        return time.time()

    def table(self) -> RowTable[JobRecord]:
        return RowTable(ended_columns(), lambda row: row.job, id="rows", empty="no job ended; / changes the filter")

    def rows(self, seen: EndedList) -> Sequence[JobRecord]:
        return ended_rows(seen.records, self.top.choice.text, self.top.choice.user)

    def rows_title(self, seen: EndedList, rows: Sequence[JobRecord]) -> str:
        text = f" with {self.top.choice.text!r}" if self.top.choice.text else ""
        more = f", {seen.left_out:,} older ones not shown" if seen.left_out else ""
        return f"{format_count(len(rows), 'job')}{text}, the latest end first{more}"

    def opened(self, row: JobRecord) -> None:
        self.app.push_screen(EndedJobScreen(row))


class EndedJobScreen(PageScreen[JobRecord]):
    """The screen of one job that ended: its record does not change any more."""

    REFRESH_S: ClassVar[float] = 3600.0
    KEYS = "Esc back  up, down scroll  ? help  q quit"

    def __init__(self, record: JobRecord) -> None:
        super().__init__()
        self._record = record

    def ask(self) -> JobRecord:
        return self._record

    def path(self) -> Sequence[str]:
        return "ended jobs", f"job {self._record.job.job_id}"

    def about(self, seen: JobRecord) -> Line:
        return [Cell(f"`{job_command(seen.job)}` shows the rest")]

    def figures_unix_s(self, seen: JobRecord) -> float:
        return seen.updated_unix_s

    def lines(self, seen: JobRecord, *, width: int, height: int) -> list[Line]:  # noqa: ARG002 - it scrolls
        parts = [wrapped(f"{name:<12}" if name else "", text, width) for name, text in ended_page(seen)]
        return [[Cell(text)] for part in parts for text in part]

    def rank_meant(self) -> tuple[JobKey, int] | None:
        return None
