"""What the screens of ``tidegauge top`` share: they look again every second, and say so when nobody answers."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input, Static

from tidegauge.cli.errors import CommandError
from tidegauge.cli.times import clock
from tidegauge.cli.top.cells import Cell, Tone, cut
from tidegauge.cli.top.columns import incident_columns
from tidegauge.cli.top.model import IncidentRow, Selection, Sort, incident_rows
from tidegauge.cli.top.pages import Line
from tidegauge.cli.top.service import OpenIncidents, ShownIncident
from tidegauge.cli.top.table import RowTable, text_of
from tidegauge.cluster.api.overview import JobPage, Overview
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.ids import JobKey
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.units import format_duration

T = TypeVar("T")
Row = TypeVar("Row")


class Source(Protocol):
    """What the application asks. Every method raises ``CommandError`` that says why there is no answer."""

    def overview(self) -> Overview: ...

    def job(self, job: JobKey, *, rank: int | None = None) -> JobPage: ...

    def memory(self, job: JobKey, rank: int) -> tuple[MemoryPoint, ...]: ...

    def incidents(self) -> OpenIncidents:
        """Never raises."""

    def incident(self, number: int) -> ShownIncident: ...

    def report_url(self, number: int) -> str: ...

    def ask_evidence(self, job: JobKey, rank: int) -> str:
        """Have a rank collect evidence; returns what to say. Blocks for seconds."""


class Top(Protocol):
    """What screens need of the application that shows them: ``TopApp``."""

    source: Source
    cluster: str
    choice: Selection
    user: str

    def choose(self, **changes: Any) -> None: ...

    def say(self, text: str) -> None: ...

    def said(self) -> str | None: ...

    def show_incident(self, number: int) -> None: ...

    def show_help(self) -> None: ...

    def ask_incidents(self) -> OpenIncidents: ...

    def incident_of(self, job: JobKey) -> int | None: ...

    def evidence_of(self, job: JobKey, rank: int) -> EvidenceBrief | None: ...

    async def ask_evidence(self, job: JobKey, rank: int) -> None: ...

    def tell_report(self, number: int) -> None: ...


class LiveScreen(Screen[None], Generic[T]):
    """A headline, what is looked at, and the keys. ``T`` is what one look brings."""

    REFRESH_S: ClassVar[float] = 1.0
    KEYS: ClassVar[str] = ""
    """The last line."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", show=False),
        Binding("question_mark", "help", show=False),
        Binding("r", "report", show=False),
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
        return cast("Top", self.app)

    @abstractmethod
    def ask(self) -> T:
        """One look, in a thread of its own. Raises ``CommandError``."""

    @abstractmethod
    def path(self) -> Sequence[str]:
        """Where we are, below the cluster."""

    @abstractmethod
    def about(self, seen: T) -> Line:
        """The second line."""

    @abstractmethod
    def figures_unix_s(self, seen: T) -> float:
        """When the figures were made."""

    @abstractmethod
    def body(self) -> ComposeResult:
        """What stands between headline and keys."""

    @abstractmethod
    def draw_body(self, seen: T) -> None:
        """Show it there."""

    def report_number(self) -> int | None:
        """The incident whose report is asked for by ``r``."""
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
        """Ask again, unless nobody sees it or the last answer is still awaited."""
        if self.app.screen is self and not self._looking:
            self._looking = True
            self.run_worker(self._look())
        self._draw_lines()

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
        """Show what was seen last, as it is chosen now."""
        self._draw_lines()
        if self.seen is not None:
            self.draw_body(self.seen)

    def _draw_lines(self) -> None:
        width = self.size.width
        when = "" if self.seen is None else clock(self.figures_unix_s(self.seen))
        path = cut(" \u203a ".join((f"tidegauge  {self.top.cluster}", *self.path())), max(width - len(when) - 3, 10))
        gap = " " * max(width - len(path) - len(when) - 2, 1)
        self._line("#path", [Cell(f" {path}", Tone.STRONG), Cell(f"{gap}{when}")])
        self._line("#about", self._standing())
        self._line("#keys", [Cell(f" {self.top.said() or self.KEYS}", Tone.DIM)])

    def _standing(self) -> Line:
        """The second line: what it is about, or why that is not known."""
        if self._problem is None:
            return [Cell(" asking", Tone.DIM)] if self.seen is None else [Cell(" "), *self.about(self.seen)]
        since = format_duration(time.monotonic() - self._seen_s)
        old = f" for {since}, figures are stale" if self.seen is not None else ""
        return [Cell(" "), Cell(f"NO ANSWER{old}", Tone.ALARM), Cell(f" {cut(self._problem, 500)}")]

    def _line(self, name: str, cells: Line) -> None:
        self.query_one(name, Static).update(text_of(cells))

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def action_help(self) -> None:
        self.top.show_help()

    def action_report(self) -> None:
        number = self.report_number()
        if number is None:
            self.top.say("no report: no open incident here")
        else:
            self.top.tell_report(number)
        self._draw_lines()


class TableScreen(LiveScreen[T], Generic[T, Row]):
    """A table of ``Row`` with the open incidents below it, sorted and filtered by keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "sort('time')", show=False),
        Binding("m", "sort('memory')", show=False),
        Binding("g", "sort('growth')", show=False),
        Binding("n", "sort('name')", show=False),
        Binding("slash", "filter", show=False),
        Binding("i", "app.focus_next", show=False),
    ]

    @abstractmethod
    def table(self) -> RowTable[Row]:
        """The table, made once."""

    @abstractmethod
    def rows(self, seen: T) -> Sequence[Row]:
        """What stands in it."""

    @abstractmethod
    def rows_title(self, shown: int) -> str:
        """What stands above it."""

    @abstractmethod
    def incidents(self, seen: T) -> OpenIncidents:
        """Those that belong here."""

    @abstractmethod
    def incidents_title(self, seen: T, shown: int) -> str:
        """What stands above them."""

    def body(self) -> ComposeResult:
        yield Static(id="rows-title", classes="title")
        yield self.table()
        yield Static(id="incidents-title", classes="title")
        yield RowTable(incident_columns(), lambda line: line.incident.number, id="incidents", empty="")
        yield Input(id="filter", placeholder="filter text; Enter applies it, Escape shows all")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#rows", RowTable).focus()

    @property
    def rows_table(self) -> RowTable[Row]:
        return cast("RowTable[Row]", self.query_one("#rows", RowTable))

    @property
    def incidents_table(self) -> RowTable[IncidentRow]:
        return cast("RowTable[IncidentRow]", self.query_one("#incidents", RowTable))

    def draw_body(self, seen: T) -> None:
        rows = self.rows(seen)
        self._line("#rows-title", [Cell(f" {self.rows_title(len(rows))}", Tone.STRONG)])
        self.rows_table.show(rows)
        found = self.incidents(seen)
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

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.value = self.top.choice.text
        field.focus()

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

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.rows_table.focus()
        self.draw()

    def on_row_table_opened(self, event: RowTable.Opened) -> None:
        if isinstance(event.row, IncidentRow):
            self.top.show_incident(event.row.incident.number)
        else:
            self.opened(cast("Row", event.row))

    @abstractmethod
    def opened(self, row: Row) -> None:
        """The reader wants to see more of it."""
