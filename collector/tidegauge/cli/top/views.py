"""The two tables of ``tidegauge top``: the cluster's jobs, a job's ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from tidegauge.cli.policy.status import in_one_line
from tidegauge.cli.top.columns import job_columns, name_job_shortly, rank_columns
from tidegauge.cli.top.model import JobRow, by_job, job_rows, rank_rows
from tidegauge.cli.top.page_screens import RankScreen
from tidegauge.cli.top.pages import Line, headline, job_headline
from tidegauge.cli.top.screens import TableScreen
from tidegauge.cli.top.service import OpenIncidents
from tidegauge.cli.top.table import RowTable
from tidegauge.cluster.api.overview import JobPage, Overview, RankLine
from tidegauge.core.ids import JobKey
from tidegauge.core.units import format_count

TABLE_KEYS = "Enter open  tmgn sort  / filter  i incidents  r report  ? help"


class ClusterSeen(NamedTuple):
    overview: Overview
    incidents: OpenIncidents


class JobSeen(NamedTuple):
    page: JobPage
    incidents: OpenIncidents
    """Of this job."""


class ClusterScreen(TableScreen[ClusterSeen, JobRow]):
    """All jobs."""

    KEYS = f"{TABLE_KEYS}  u mine  q quit"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("u", "mine", show=False)]

    def __init__(self, first: Overview) -> None:
        super().__init__()
        self.seen = ClusterSeen(first, OpenIncidents(()))

    def ask(self) -> ClusterSeen:
        return ClusterSeen(self.top.source.overview(), self.top.ask_incidents())

    def path(self) -> Sequence[str]:
        return ()

    def about(self, seen: ClusterSeen) -> Line:
        return headline(seen.overview)

    def figures_unix_s(self, seen: ClusterSeen) -> float:
        return seen.overview.now_unix_s

    def table(self) -> RowTable[JobRow]:
        return RowTable(job_columns(), lambda row: row.key, id="rows", empty="")

    def rows(self, seen: ClusterSeen) -> Sequence[JobRow]:
        rows = job_rows(seen.overview.jobs, seen.incidents.lines, self.top.choice)
        hidden = len(seen.overview.jobs) - len(rows)
        none = "no jobs watched; start one with `tidegauge run -- CMD`"
        self.rows_table.empty = f"{hidden} jobs hidden; u and / change the filter" if hidden else none
        return rows

    def rows_title(self, shown: int) -> str:
        return f"{format_count(shown, 'job')} {self.top.choice.words(whose=True)}"

    def incidents(self, seen: ClusterSeen) -> OpenIncidents:
        return seen.incidents

    def incidents_title(self, seen: ClusterSeen, shown: int) -> str:  # noqa: ARG002 - the policy's line counts them
        return in_one_line(seen.overview.actions)

    def report_number(self) -> int | None:
        line = self.incidents_table.current if self.incidents_table.has_focus else None
        row = self.rows_table.current
        if line is None and row is not None and row.incidents:
            line = row.incidents[0]
        return None if line is None else line.incident.number

    def opened(self, row: JobRow) -> None:
        self.app.push_screen(JobScreen(row.key))

    def action_mine(self) -> None:
        self.top.choose(user=None if self.top.choice.user is not None else self.top.user)
        self.draw()


class JobScreen(TableScreen[JobSeen, RankLine]):
    """The ranks of one job."""

    KEYS = f"Esc back  {TABLE_KEYS}"

    def __init__(self, job: JobKey) -> None:
        super().__init__()
        self._job = job

    def ask(self) -> JobSeen:
        page, found = self.top.source.job(self._job), self.top.ask_incidents()
        return JobSeen(page, found._replace(lines=by_job(found.lines).get(self._job, ())))

    def path(self) -> Sequence[str]:
        return (f"job {name_job_shortly(self._job)}",)

    def about(self, seen: JobSeen) -> Line:
        return job_headline(seen.page.job)

    def figures_unix_s(self, seen: JobSeen) -> float:
        return seen.page.now_unix_s

    def table(self) -> RowTable[RankLine]:
        return RowTable(
            rank_columns(), lambda rank: rank.rank, id="rows", empty="no matching rank; / changes the filter"
        )

    def rows(self, seen: JobSeen) -> Sequence[RankLine]:
        return rank_rows(seen.page.ranks, self.top.choice)

    def rows_title(self, shown: int) -> str:
        left_out = 0 if self.seen is None else self.seen.page.left_out
        more = f", {left_out:,} more not shown" if left_out else ""
        return f"{format_count(shown, 'rank')} {self.top.choice.words(whose=False)}{more}"

    def incidents(self, seen: JobSeen) -> OpenIncidents:
        return seen.incidents

    def incidents_title(self, seen: JobSeen, shown: int) -> str:  # noqa: ARG002 - nothing of it is told
        return "open incidents of this job" if shown else "no open incidents of this job"

    def report_number(self) -> int | None:
        line = self.incidents_table.current if self.incidents_table.has_focus else None
        return self.top.incident_of(self._job) if line is None else line.incident.number

    def opened(self, row: RankLine) -> None:
        self.app.push_screen(RankScreen(self._job, row.rank))
