"""``tidegauge top`` as an application: the cluster, one job, one rank, one incident, the keys."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from tidegauge.cli.errors import CommandError
from tidegauge.cli.top.model import Selection, by_job
from tidegauge.cli.top.page_screens import HelpScreen, IncidentScreen
from tidegauge.cli.top.screens import Source
from tidegauge.cli.top.service import OpenIncidents
from tidegauge.cli.top.views import ClusterScreen, JobScreen
from tidegauge.cluster.api.overview import Overview
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.ids import JobKey

SAID_S = 20.0
"""How long what a key brought stays in the place of the keys."""


class TopApp(App[None]):
    """``first`` is what was seen before it began; ``user`` is who looks."""

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

    def __init__(self, source: Source, first: Overview, *, user: str, choice: Selection, job: JobKey | None) -> None:
        super().__init__(ansi_color=True)
        self.source = source
        self.cluster = first.cluster
        self.choice = choice
        self.user = user
        self.addresses: list[str] = []
        """Of the reports that were asked for, for who wants to copy them after the end."""
        self.incidents = OpenIncidents(())
        """As of the last look at them."""
        self._first = first
        self._job = job
        self._said: tuple[float, str] | None = None

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self.push_screen(ClusterScreen(self._first))
        if self._job is not None:
            self.push_screen(JobScreen(self._job))

    def choose(self, **changes: Any) -> None:
        """From now on something else of ``Selection`` is shown."""
        self.choice = replace(self.choice, **changes)

    def say(self, text: str) -> None:
        self._said = time.monotonic(), text

    def said(self) -> str | None:
        """What a key brought a moment ago."""
        if self._said is None or time.monotonic() - self._said[0] > SAID_S:
            return None
        return self._said[1]

    def show_incident(self, number: int) -> None:
        self.push_screen(IncidentScreen(number))

    def show_help(self) -> None:
        self.push_screen(HelpScreen())

    def ask_incidents(self) -> OpenIncidents:
        """The open incidents, kept for screens that do not ask for them."""
        self.incidents = self.source.incidents()
        return self.incidents

    def incident_of(self, job: JobKey) -> int | None:
        """The gravest open incident of a job."""
        lines = by_job(self.incidents.lines).get(job)
        return lines[0].incident.number if lines else None

    def evidence_of(self, job: JobKey, rank: int) -> EvidenceBrief | None:
        """What open incidents say of a rank's evidence, that of the gravest first."""
        briefs = (brief for line in by_job(self.incidents.lines).get(job, ()) for brief in line.incident.evidence)
        return next((brief for brief in briefs if brief.rank == rank), None)

    async def ask_evidence(self, job: JobKey, rank: int) -> None:
        """Have a rank collect evidence, and say what comes of that."""
        self.say(f"asking rank {rank} for evidence …")
        try:
            self.say(await asyncio.to_thread(self.source.ask_evidence, job, rank))
        except CommandError as error:
            self.say(str(error))

    def tell_report(self, number: int) -> None:
        """Say where the report of an incident is."""
        try:
            url = self.source.report_url(number)
        except CommandError as error:
            self.say(str(error))
            return
        self.addresses += [] if url in self.addresses else [url]
        self.say(f"report: {url}")
