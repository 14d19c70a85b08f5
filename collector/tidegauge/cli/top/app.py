"""The application of ``tidegauge top``, and its two screens with tables: the cluster's jobs, and a job's ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from tidegauge.cli.policy.status import in_one_line
from tidegauge.cli.top.columns import job_columns, name_job_shortly, rank_columns
from tidegauge.cli.top.model import JobRow, Selection, by_job, job_rows, rank_rows
from tidegauge.cli.top.page_screens import HelpScreen, IncidentScreen, RankScreen
from tidegauge.cli.top.pages import Line, headline, job_headline
from tidegauge.cli.top.screens import SeenTable, TableScreen, Top
from tidegauge.cli.top.service import OpenIncidents, Service
from tidegauge.cli.top.table import RowTable
from tidegauge.cluster.api.overview import JobPage, Overview, RankLine
from tidegauge.core.ids import JobKey
from tidegauge.core.units import format_count

TABLE_KEYS = "Enter open  tmgn sort  / filter  i incidents  r report  ? help"


class TopApp(Top):
    """The application; ``first`` is the overview that was requested before it took over the terminal."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Static { height: 1; }
    RowTable { height: 1fr; scrollbar-size-vertical: 1; background: ansi_default; }
    #filter { display: none; border: none; height: 1; padding: 0 1; background: ansi_default; }
    VerticalScroll { scrollbar-size-vertical: 1; padding: 0 1; }
    VerticalScroll Static { height: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(self, source: Service, first: Overview, *, user: str, choice: Selection, job: JobKey | None) -> None:
        super().__init__(source, cluster=first.cluster, user=user, choice=choice)
        self._first = first
        self._job = job

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self.push_screen(ClusterScreen(self._first))
        if self._job is not None:
            self.push_screen(JobScreen(self._job))

    def show_incident(self, number: int) -> None:
        self.push_screen(IncidentScreen(number))

    def show_help(self) -> None:
        self.push_screen(HelpScreen())


class ClusterScreen(TableScreen[Overview, JobRow]):
    """The screen of all jobs."""

    KEYS = f"{TABLE_KEYS}  u mine  q quit"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("u", "mine", show=False)]

    def __init__(self, first: Overview) -> None:
        super().__init__()
        self.seen = SeenTable(first, OpenIncidents(()))

    def ask(self) -> SeenTable[Overview]:
        return SeenTable(self.top.source.overview(), self.top.ask_incidents())

    def path(self) -> Sequence[str]:
        return ()

    def about(self, seen: SeenTable[Overview]) -> Line:
        return headline(seen.answer)

    def table(self) -> RowTable[JobRow]:
        return RowTable(job_columns(), lambda row: row.key, id="rows", empty="")

    def rows(self, seen: SeenTable[Overview]) -> Sequence[JobRow]:
        rows = job_rows(seen.answer.jobs, seen.incidents.lines, self.top.choice)
        hidden = len(seen.answer.jobs) - len(rows)
        none = "no jobs watched; start one with `tidegauge run -- CMD`"
        self.rows_table.empty = f"{hidden} jobs hidden; u and / change the filter" if hidden else none
        return rows

    def rows_title(self, seen: SeenTable[Overview], shown: int) -> str:  # noqa: ARG002 - the headline counts jobs left out
        return f"{format_count(shown, 'job')} {self.top.choice.words(whose=True)}"

    def incidents_title(self, seen: SeenTable[Overview], shown: int) -> str:  # noqa: ARG002 - the policy's line counts them
        return in_one_line(seen.answer.actions)

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


class JobScreen(TableScreen[JobPage, RankLine]):
    """The screen of one job's ranks."""

    KEYS = f"Esc back  {TABLE_KEYS}"

    def __init__(self, job: JobKey) -> None:
        super().__init__()
        self._job = job

    def ask(self) -> SeenTable[JobPage]:
        page, found = self.top.source.job(self._job), self.top.ask_incidents()
        return SeenTable(page, found._replace(lines=by_job(found.lines).get(self._job, ())))

    def path(self) -> Sequence[str]:
        return (f"job {name_job_shortly(self._job)}",)

    def about(self, seen: SeenTable[JobPage]) -> Line:
        return job_headline(seen.answer.job, seen.answer.job.job_name)

    def table(self) -> RowTable[RankLine]:
        return RowTable(
            rank_columns(), lambda rank: rank.rank, id="rows", empty="no matching rank; / changes the filter"
        )

    def rows(self, seen: SeenTable[JobPage]) -> Sequence[RankLine]:
        return rank_rows(seen.answer.ranks, self.top.choice)

    def rows_title(self, seen: SeenTable[JobPage], shown: int) -> str:
        left_out = seen.answer.left_out
        more = f", {left_out:,} more not shown" if left_out else ""
        return f"{format_count(shown, 'rank')} {self.top.choice.words(whose=False)}{more}"

    def incidents_title(self, seen: SeenTable[JobPage], shown: int) -> str:  # noqa: ARG002 - the page does not count them
        return "open incidents of this job" if shown else "no open incidents of this job"

    def report_number(self) -> int | None:
        line = self.incidents_table.current if self.incidents_table.has_focus else None
        return self.top.incident_of(self._job) if line is None else line.incident.number

    def opened(self, row: RankLine) -> None:
        self.app.push_screen(RankScreen(self._job, row.rank))
