"""The screens of ``tidegauge top`` that show text: a rank, an incident, the keys."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from tidegauge.cli.errors import CommandError
from tidegauge.cli.top.acts import rank_question
from tidegauge.cli.top.columns import name_job_shortly
from tidegauge.cli.top.model import JobMeant, job_of_line
from tidegauge.cli.top.pages import Line, help_lines, incident_headline, incident_lines, job_headline, rank_page
from tidegauge.cli.top.screens import LiveScreen
from tidegauge.cli.top.service import ShownIncident
from tidegauge.cli.top.table import text_of
from tidegauge.cluster.api.overview import JobLine, RankLine
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.wording import name_job
from tidegauge.core.memory_history import MemoryPoint

T = TypeVar("T")


class RankSeen(NamedTuple):
    """The data of one refresh of a rank's screen."""

    at_unix_s: float
    job: JobLine
    rank: RankLine
    points: tuple[MemoryPoint, ...]


class IncidentSeen(NamedTuple):
    """The data of one refresh of an incident's screen."""

    at_unix_s: float
    story: ShownIncident


class PageScreen(LiveScreen[T], Generic[T]):
    """A screen of text that can be scrolled."""

    KEYS = "Esc back  up, down scroll  s ask  a x P act  r report  ? help  q quit"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("s", "ask", show=False)]

    @abstractmethod
    def lines(self, seen: T, *, width: int, height: int) -> list[Line]:
        """The text for a size in characters and lines."""

    @abstractmethod
    def rank_meant(self) -> tuple[JobKey, int] | None:
        """The rank that ``s`` asks for something."""

    def action_ask(self) -> None:
        meant = self.rank_meant()
        if meant is None:
            self.top.say("no rank to ask here")
            self.draw_lines()
            return
        job, rank = meant
        found = self.job_meant()
        self.top.confirm(rank_question(self.top.source, job, name_job(job) if found is None else found.words, rank))

    def body(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(id="text")

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#page").focus()

    def draw_body(self, seen: T) -> None:
        room = self.query_one("#page").scrollable_content_region.size
        lines = self.lines(seen, width=max(room.width, 20), height=room.height)
        self.query_one("#text", Static).update(_joined(lines))


class RankScreen(PageScreen[RankSeen]):
    """The screen of one rank."""

    KEYS = f"Esc back  z scale  {PageScreen.KEYS.removeprefix('Esc back  ')}"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("z", "zoom", show=False)]

    def __init__(self, job: JobKey, rank: int) -> None:
        super().__init__()
        self._job = job
        self._rank = rank
        self._is_whole = False
        """Charts go from 0 to the limit."""

    def action_zoom(self) -> None:
        self._is_whole = not self._is_whole
        self.draw()

    def ask(self) -> RankSeen:
        page = self.top.source.job(self._job, rank=self._rank)
        if not page.ranks:
            raise CommandError(f"rank {self._rank} of job {self._job.job_id} is no longer watched")
        points = self.top.source.memory(self._job, self._rank)
        return RankSeen(page.now_unix_s, page.job, page.ranks[0], points)

    def path(self) -> Sequence[str]:
        return f"job {name_job_shortly(self._job)}", f"rank {self._rank}"

    def about(self, seen: RankSeen) -> Line:
        return job_headline(seen.job, seen.job.job_name)

    def figures_unix_s(self, seen: RankSeen) -> float:
        return seen.at_unix_s

    def lines(self, seen: RankSeen, *, width: int, height: int) -> list[Line]:
        brief = self.top.evidence_of(self._job, self._rank)
        return rank_page(seen.rank, seen.points, width=width, height=height, evidence=brief, is_whole=self._is_whole)

    def rank_meant(self) -> tuple[JobKey, int]:
        return self._job, self._rank

    def report_number(self) -> int | None:
        return self.top.incident_of(self._job)

    def job_meant(self) -> JobMeant | None:
        return None if self.seen is None else job_of_line(self.seen.job)


class IncidentScreen(PageScreen[IncidentSeen]):
    """The screen of one incident."""

    REFRESH_S = 5.0
    """Longer than for other screens: the history is read from the database, and grows by a few lines an hour."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def ask(self) -> IncidentSeen:
        return IncidentSeen(time.time(), self.top.source.incident(self._number))

    def path(self) -> Sequence[str]:
        return (f"incident {self._number}",)

    def about(self, seen: IncidentSeen) -> Line:
        return incident_headline(seen.story.incident)

    def figures_unix_s(self, seen: IncidentSeen) -> float:
        return seen.at_unix_s

    def lines(self, seen: IncidentSeen, *, width: int, height: int) -> list[Line]:  # noqa: ARG002 - it scrolls
        return incident_lines(seen.story, width=width, now_s=seen.at_unix_s)

    def rank_meant(self) -> tuple[JobKey, int] | None:
        incident = None if self.seen is None else self.seen.story.incident
        return None if incident is None or not incident.ranks else (incident.key.job, incident.ranks[0])

    def report_number(self) -> int | None:
        return self._number

    def job_meant(self) -> JobMeant | None:
        if self.seen is None:
            return None
        incident = self.seen.story.incident
        return JobMeant(incident.key.job, incident.called, incident.user_name, incident.scheduler)


class HelpScreen(Screen[None]):
    """The screen of keys and signs."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,enter", "app.pop_screen", show=False),
        Binding("q", "app.quit", show=False),
    ]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="page"):
            yield Static(id="text")

    def on_resize(self) -> None:
        self.query_one("#text", Static).update(_joined(help_lines(width=max(self.size.width - 3, 20))))


def _joined(lines: Sequence[Line]) -> Text:
    return Text("\n").join(text_of(line) for line in lines)
