"""Base classes of the application and the screens of ``tidegauge top``: a screen refreshes itself every second."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar, cast

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Input, Static

from tidegauge.cli.errors import CommandError
from tidegauge.cli.times import clock
from tidegauge.cli.top.acts import Question, exempt_question, grade_question, pause_question
from tidegauge.cli.top.columns import Cell, Tone, cut, incident_columns
from tidegauge.cli.top.dialog import Answered, QuestionScreen
from tidegauge.cli.top.model import IncidentRow, JobMeant, Selection, Sort, by_job, incident_rows
from tidegauge.cli.top.pages import Line
from tidegauge.cli.top.service import OpenIncidents, Service
from tidegauge.cli.top.table import RowTable, text_of
from tidegauge.cluster.api.overview import JobPage, Overview
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.wording import name_job
from tidegauge.core.units import format_duration
from tidegauge_exporter.links import incident_address, job_address

T = TypeVar("T")
Row = TypeVar("Row")
Answer = TypeVar("Answer", Overview, JobPage)

SAID_S = 20.0
"""Time for which a message replaces the line of keys, seconds."""


class Top(App[None]):
    """The application as its screens know it: the service, the selection, and messages in the line of keys."""

    def __init__(self, source: Service, *, cluster: str, user: str, choice: Selection) -> None:
        super().__init__(ansi_color=True)
        self.source = source
        self.cluster = cluster
        self.choice = choice
        self.user = user
        """The user who runs the command."""
        self.addresses: list[str] = []
        """URLs of the web pages that were requested; they are printed again on exit."""
        self.incidents = OpenIncidents(())
        """The open incidents when they were last requested."""
        self.paused: str | None = None
        """Who paused all actions, when the cluster was last requested."""
        self._said: tuple[float, str] | None = None

    @abstractmethod
    def show_incident(self, number: int) -> None:
        """Open the screen of an incident."""

    @abstractmethod
    def show_help(self) -> None:
        """Open the screen of keys and signs."""

    @abstractmethod
    def show_nodes(self) -> None:
        """Open the screen of all nodes."""

    @abstractmethod
    def show_ended(self) -> None:
        """Open the screen of jobs that ended."""

    @abstractmethod
    def show_changes(self) -> None:
        """Open the log of changes."""

    def confirm(self, question: Question) -> None:
        """Ask ``question``, do what is chosen, and show how it went as a message."""

        def answered(answer: Answered | None) -> None:
            if answer is not None:
                self.run_worker(self._do(answer))
            elif question.choices:
                self.say("cancelled: nothing was done")
                self._draw_message()

        self.push_screen(QuestionScreen(question), answered)

    async def _do(self, answer: Answered) -> None:
        self.say(f"{answer.choice.label} \u2026")
        self._draw_message()
        try:
            self.say(await asyncio.to_thread(answer.choice.do, answer.reason))
        except CommandError as error:
            self.say(str(error))
        self._draw_message()

    def _draw_message(self) -> None:
        if isinstance(self.screen, LiveScreen):
            self.screen.draw_lines()

    def choose(self, **changes: Any) -> None:
        self.choice = replace(self.choice, **changes)

    def say(self, text: str) -> None:
        """Show ``text`` in place of the keys for ``SAID_S`` seconds."""
        self._said = time.monotonic(), text

    def said(self) -> str | None:
        """The message that is still to be shown."""
        if self._said is None or time.monotonic() - self._said[0] > SAID_S:
            return None
        return self._said[1]

    def ask_incidents(self) -> OpenIncidents:
        """Request the open incidents, and keep them for screens that do not request them."""
        self.incidents = self.source.incidents()
        return self.incidents

    def incident_of(self, job: JobKey) -> int | None:
        """The most severe open incident of a job."""
        lines = by_job(self.incidents.lines).get(job)
        return lines[0].incident.number if lines else None

    def incident_words(self, number: int) -> str:
        """Which incident it is, in a sentence."""
        known = (line.incident for line in self.incidents.lines)
        found = next((one for one in known if one.number == number), None)
        if found is None:
            return f"It is incident {number}."
        return f"It is {found.key.cause.value} in {name_job(found.called)} of {found.user_name}."

    def evidence_of(self, job: JobKey, rank: int) -> EvidenceBrief | None:
        """The evidence on a rank in the most severe open incident that has any."""
        briefs = (brief for line in by_job(self.incidents.lines).get(job, ()) for brief in line.incident.evidence)
        return next((brief for brief in briefs if brief.rank == rank), None)

    def tell_page(self, what: str, address: str) -> None:
        """Show the URL of a web page."""
        try:
            url = self.source.page_url(address)
        except CommandError as error:
            self.say(str(error))
            return
        self.addresses += [] if url in self.addresses else [url]
        self.say(f"{what}: {url}")


def keys_that_fit(keys: str, width: int) -> str:
    """The text of the last line within ``width``. What is left out stands before the last two keys: help, and the
    end."""
    parts = keys.split("  ")
    while len(parts) > 3 and len("  ".join(parts)) > width:
        del parts[-3]
    return "  ".join(parts)


class LiveScreen(Screen[None], Generic[T]):
    """A screen with headlines, a body and a line of keys; ``T`` is the data of one refresh."""

    REFRESH_S: ClassVar[float] = 1.0
    KEYS: ClassVar[str] = ""
    """The text of the last line."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", show=False),
        Binding("question_mark", "help", show=False),
        Binding("r", "report", show=False),
        Binding("c", "nodes", show=False),
        Binding("e", "ended", show=False),
        Binding("l", "changes", show=False),
        Binding("a", "grade", show=False),
        Binding("x", "exempt", show=False),
        Binding("P", "pause", show=False),
        Binding("q", "app.quit", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.seen: T | None = None
        self._seen_s = 0.0
        self._problem: str | None = None
        self._looking = False

    @property
    def top(self) -> Top:
        return cast(Top, self.app)

    @abstractmethod
    def ask(self) -> T:
        """Request the data; runs in a thread of its own. Raises ``CommandError``."""

    @abstractmethod
    def path(self) -> Sequence[str]:
        """The names behind the cluster in the first line."""

    @abstractmethod
    def about(self, seen: T) -> Line:
        """The text of the second line."""

    @abstractmethod
    def figures_unix_s(self, seen: T) -> float:
        """The time of the figures, Unix seconds."""

    @abstractmethod
    def body(self) -> ComposeResult:
        """The widgets between headlines and keys."""

    @abstractmethod
    def draw_body(self, seen: T) -> None:
        """Show the data in them."""

    def report_number(self) -> int | None:
        """The incident whose report ``r`` shows, and which ``a`` grades."""
        return None

    def job_meant(self) -> JobMeant | None:
        """The job that ``x`` exempts, and whose page ``r`` shows."""
        return None

    def compose(self) -> ComposeResult:
        yield Static(id="path")
        yield Static(id="about")
        yield from self.body()
        yield Static(id="keys")

    def on_mount(self) -> None:
        self.set_interval(self.REFRESH_S, self.look)
        self.draw()

    def on_screen_resume(self) -> None:
        self.look()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    def look(self) -> None:
        """Refresh, unless the screen is hidden or the last request is still running."""
        if self.app.screen is self and not self._looking:
            self._looking = True
            self.run_worker(self._look())
        self.draw_lines()

    async def _look(self) -> None:
        try:
            self.seen = await asyncio.to_thread(self.ask)
            self._seen_s, self._problem = time.monotonic(), None
        except CommandError as error:
            self._problem = str(error)
        finally:
            self._looking = False
        self.draw()

    def draw(self) -> None:
        """Show the last data with the current selection."""
        self.draw_lines()
        if self.seen is not None:
            self.draw_body(self.seen)

    def draw_lines(self) -> None:
        """Draw the headlines, and the line of keys or the message in its place."""
        width = self.size.width
        when = "" if self.seen is None else clock(self.figures_unix_s(self.seen))
        path = cut(" \u203a ".join((f"tidegauge  {self.top.cluster}", *self.path())), max(width - len(when) - 3, 10))
        gap = " " * max(width - len(path) - len(when) - 2, 1)
        self._line("#path", [Cell(f" {path}", Tone.STRONG), Cell(f"{gap}{when}")])
        self._line("#about", self._standing())
        self._line("#keys", [Cell(f" {self.top.said() or keys_that_fit(self.KEYS, width - 1)}", Tone.DIM)])

    def _standing(self) -> Line:
        """The second line: the headline, or why there is no data."""
        if self._problem is None:
            return [Cell(" asking", Tone.DIM)] if self.seen is None else [Cell(" "), *self.about(self.seen)]
        since = format_duration(time.monotonic() - self._seen_s)
        old = f" for {since}, figures are stale" if self.seen is not None else ""
        alarm = f"NO ANSWER{old}"
        why = cut(self._problem, max(self.size.width - len(alarm) - 2, 0))
        return [Cell(" "), Cell(alarm, Tone.ALARM), Cell(f" {why}")]

    def _line(self, name: str, cells: Line) -> None:
        self.query_one(name, Static).update(text_of(cells))

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def action_help(self) -> None:
        self.top.show_help()

    def action_nodes(self) -> None:
        self.top.show_nodes()

    def action_ended(self) -> None:
        self.top.show_ended()

    def action_changes(self) -> None:
        self.top.show_changes()

    def action_grade(self) -> None:
        number = self.report_number()
        if number is None:
            self.top.say("no open incident here to acknowledge")
            self.draw_lines()
        else:
            self.top.confirm(grade_question(self.top.source, number, self.top.incident_words(number)))

    def action_exempt(self) -> None:
        job = self.job_meant()
        if job is None:
            self.top.say("no job here to exempt from actions")
            self.draw_lines()
        else:
            self.top.confirm(exempt_question(job))

    def action_pause(self) -> None:
        self.top.confirm(pause_question(self.top.source, self.top.cluster, self.top.paused))

    def action_report(self) -> None:
        number, job = self.report_number(), self.job_meant()
        if number is not None:
            self.top.tell_page("report", incident_address(number))
        elif job is not None:
            self.top.tell_page("web page", job_address(job.key))
        else:
            self.top.say("no web page: no job and no open incident here")
        self.draw_lines()


@dataclass(frozen=True)
class SeenTable(Generic[Answer]):
    """An answer of the API, and the open incidents that belong to it."""

    answer: Answer
    incidents: OpenIncidents


class RowsScreen(LiveScreen[T], Generic[T, Row]):
    """A screen with a table of ``Row`` that a text filters."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "filter", show=False)]

    @abstractmethod
    def table(self) -> RowTable[Row]:
        """Create the table."""

    @abstractmethod
    def rows(self, seen: T) -> Sequence[Row]:
        """The rows of the table, sorted and filtered."""

    @abstractmethod
    def rows_title(self, seen: T, rows: Sequence[Row]) -> str:
        """The title above the table of ``rows``."""

    @abstractmethod
    def opened(self, row: Row) -> None:
        """Open the screen of a row."""

    def below(self) -> ComposeResult:
        """The widgets between the table and the filter."""
        yield from ()

    def body(self) -> ComposeResult:
        yield Static(id="rows-title", classes="title")
        yield self.table()
        yield from self.below()
        with Horizontal(id="filter-line"):
            yield Static("filter:", id="filter-prompt")
            yield Input(id="filter", placeholder="text; Enter applies it, Escape shows all")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#rows", RowTable).focus()

    @property
    def rows_table(self) -> RowTable[Row]:
        return cast("RowTable[Row]", self.query_one("#rows", RowTable))

    def draw_body(self, seen: T) -> None:
        rows = self.rows(seen)
        self._line("#rows-title", [Cell(f" {self.rows_title(seen, rows)}", Tone.STRONG)])
        self.rows_table.show(rows)
        self.draw_below(seen)

    def draw_below(self, seen: T) -> None:
        """Show the data in the widgets of ``below``."""

    def action_filter(self) -> None:
        self._show_filter(True)
        field = self.query_one("#filter", Input)
        field.value = self.top.choice.text
        self.set_focus(field)

    def action_back(self) -> None:
        if self.query_one("#filter", Input).has_focus:
            self.top.choose(text="")
            self._leave_filter()
        else:
            super().action_back()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.has_focus:
            self.top.choose(text=event.value.strip())
            self.draw()

    def on_input_submitted(self) -> None:
        self._leave_filter()

    def _show_filter(self, is_shown: bool) -> None:
        for name in ("#filter-line", "#filter"):
            self.query_one(name).display = is_shown

    def _leave_filter(self) -> None:
        self._show_filter(False)
        self.rows_table.focus()
        self.draw()

    def on_row_table_opened(self, event: RowTable.Opened) -> None:
        if isinstance(event.row, IncidentRow):
            self.top.show_incident(event.row.incident.number)
        else:
            self.opened(cast("Row", event.row))


class TableScreen(RowsScreen[SeenTable[Answer], Row], Generic[Answer, Row]):
    """A screen with a table of ``Row`` and the open incidents below it, sorted and filtered by keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "sort('time')", show=False),
        Binding("m", "sort('memory')", show=False),
        Binding("g", "sort('growth')", show=False),
        Binding("n", "sort('name')", show=False),
        Binding("o", "next_order", show=False),
        Binding("i", "app.focus_next", show=False),
    ]

    @abstractmethod
    def incidents_title(self, seen: SeenTable[Answer], shown: int) -> str:
        """The title above ``shown`` incidents."""

    def figures_unix_s(self, seen: SeenTable[Answer]) -> float:
        return seen.answer.now_unix_s

    def below(self) -> ComposeResult:
        yield Static(id="incidents-title", classes="title")
        yield RowTable(incident_columns(), lambda line: line.incident.number, id="incidents", empty="")

    @property
    def incidents_table(self) -> RowTable[IncidentRow]:
        return cast("RowTable[IncidentRow]", self.query_one("#incidents", RowTable))

    def draw_below(self, seen: SeenTable[Answer]) -> None:
        found = seen.incidents
        lines = incident_rows(found.lines, self.top.choice)
        title = [Cell(f" {self.incidents_title(seen, len(lines))}", Tone.STRONG)]
        title += [Cell(f"  unavailable: {cut(found.problem, 300)}", Tone.WARNING)] if found.problem else []
        self._line("#incidents-title", title)
        pane = self.incidents_table
        if not lines and pane.has_focus:
            self.rows_table.focus()
        pane.display = bool(lines)
        pane.styles.height = min(len(lines) + 1, max(self.size.height // 4, 3))
        pane.show(lines)

    def action_sort(self, by: str) -> None:
        self.top.choose(sort=Sort(by))
        self.draw()

    def action_next_order(self) -> None:
        self.top.choose(sort=self.top.choice.sort.next)
        self.draw()
