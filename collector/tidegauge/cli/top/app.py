"""The application of ``tidegauge top``, and its two screens with tables: the cluster's jobs, and a job's ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from tidegauge.cli.policy.status import in_one_line
from tidegauge.cli.top.columns import job_columns, name_job_shortly, rank_columns
from tidegauge.cli.top.happened_screens import ChangesScreen, EndedScreen
from tidegauge.cli.top.model import JobMeant, JobRow, Selection, by_job, count_words, job_of_line, job_rows, rank_rows
from tidegauge.cli.top.node_screens import NodeScreen, NodesScreen
from tidegauge.cli.top.page_screens import HelpScreen, IncidentScreen, RankScreen
from tidegauge.cli.top.pages import Line, headline, job_headline
from tidegauge.cli.top.screens import SeenTable, TableScreen, Top
from tidegauge.cli.top.service import OpenIncidents, Service
from tidegauge.cli.top.table import RowTable
from tidegauge.cluster.api.overview import JobPage, NodeLine, Overview, RankLine
from tidegauge.core.ids import JobKey
from tidegauge.core.units import format_count

TABLE_KEYS = "Enter open  o sort  / filter  c nodes  e ended  l log  r report  ? help  q quit"


class TopApp(Top):
    """The application; ``first`` is the overview that was requested before it took over the terminal."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    Static { height: 1; }
    RowTable { height: 1fr; scrollbar-size-vertical: 1; background: ansi_default; }
    #filter-line { display: none; height: 1; }
    #filter-prompt { width: 8; padding: 0 0 0 1; text-style: bold; }
    #filter { display: none; border: none; width: 1fr; height: 1; padding: 0 1; background: ansi_default; }
    QuestionScreen { align: center middle; }
    #question { width: 76; max-width: 100%; height: auto; border: round ansi_bright_blue; padding: 0 1;
                background: ansi_default; }
    #question Static { height: auto; }
    #reason { border: none; height: 1; padding: 0; background: ansi_default; text-style: underline; }
    VerticalScroll { scrollbar-size-vertical: 1; padding: 0 1; }
    VerticalScroll Static { height: auto; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", show=False, priority=True)]

    def __init__(
        self, source: Service, first: Overview, *, user: str, choice: Selection, job: JobKey | None,
        nodes: bool = False, node: NodeLine | None = None,
    ) -> None:  # fmt: skip
        """It begins with the ranks of ``job``, with all ``nodes`` or with one ``node``, else with all jobs."""
        super().__init__(source, cluster=first.cluster, user=user, choice=choice)
        self.paused = first.actions.paused
        self._first = first
        self._job = job
        self._starts_with_nodes = nodes
        self._first_node = node

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self.push_screen(ClusterScreen(self._first))
        if self._job is not None:
            self.push_screen(JobScreen(self._job))
        if self._starts_with_nodes or self._first_node is not None:
            self.show_nodes()
        if self._first_node is not None:
            self.push_screen(NodeScreen(self._first_node.node_id, self._first_node.hostname))

    def show_incident(self, number: int) -> None:
        self.push_screen(IncidentScreen(number))

    def show_help(self) -> None:
        self.push_screen(HelpScreen())

    def show_nodes(self) -> None:
        self._show(NodesScreen)

    def show_ended(self) -> None:
        self._show(EndedScreen)

    def show_changes(self) -> None:
        self._show(ChangesScreen)

    def _show(self, screen: Callable[[], Screen[None]]) -> None:
        """Open a screen above all jobs: Escape leads back there, however many were seen one after the other."""
        while len(self.screen_stack) > 2:
            self.pop_screen()
        self.push_screen(screen())


class ClusterScreen(TableScreen[Overview, JobRow]):
    """The screen of all jobs."""

    KEYS = TABLE_KEYS
    BINDINGS: ClassVar[list[BindingType]] = [Binding("u", "mine", show=False)]

    def __init__(self, first: Overview) -> None:
        super().__init__()
        self.seen = SeenTable(first, OpenIncidents(()))

    def ask(self) -> SeenTable[Overview]:
        seen = SeenTable(self.top.source.overview(), self.top.ask_incidents())
        self.top.paused = seen.answer.actions.paused
        return seen

    def job_meant(self) -> JobMeant | None:
        row = self.rows_table.current
        return None if row is None else job_of_line(row.job)

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

    def rows_title(self, seen: SeenTable[Overview], rows: Sequence[JobRow]) -> str:  # noqa: ARG002 - of what is shown
        return f"{count_words(rows)}, {self.top.choice.words(whose=True)}"

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

    def job_meant(self) -> JobMeant | None:
        return None if self.seen is None else job_of_line(self.seen.answer.job)

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

    def rows_title(self, seen: SeenTable[JobPage], rows: Sequence[RankLine]) -> str:
        left_out = seen.answer.left_out
        more = f", {left_out:,} more not shown" if left_out else ""
        return f"{format_count(len(rows), 'rank')} {self.top.choice.words(whose=False)}{more}"

    def incidents_title(self, seen: SeenTable[JobPage], shown: int) -> str:  # noqa: ARG002 - the page does not count them
        return "open incidents of this job" if shown else "no open incidents of this job"

    def report_number(self) -> int | None:
        line = self.incidents_table.current if self.incidents_table.has_focus else None
        return self.top.incident_of(self._job) if line is None else line.incident.number

    def opened(self, row: RankLine) -> None:
        self.app.push_screen(RankScreen(self._job, row.rank))
