"""Somebody who reads ``tidegauge top`` before a terminal: textual's own pilot, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot

from tidegauge.cli.top.app import TopApp
from tidegauge.cli.top.model import Selection
from tidegauge.cli.top.table import RowTable
from tidegauge.cluster.api.overview import NodeLine
from tidegauge.core.ids import JobKey
from top_world import World


class Reader:
    """Somebody before a terminal."""

    def __init__(self, app: TopApp, pilot: Pilot[None], world: World) -> None:
        self.app = app
        self.pilot = pilot
        self.world = world

    async def press(self, *keys: str) -> None:
        """One after the other, with the answers that they ask for."""
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def settle(self) -> None:
        await self.pilot.pause()
        await self.app.workers.wait_for_complete()
        await self.pilot.pause()

    async def look_again(self) -> None:
        """As the clock does every second."""
        self.app.screen.look()  # type: ignore[attr-defined]
        await self.settle()

    def screen(self) -> list[str]:
        """What stands on it, line by line."""
        strips = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in strips]

    def text(self) -> str:
        return "\n".join(self.screen())

    def jobs(self) -> list[str]:
        """The jobs in the table, from the top."""
        rows = self.app.screen.query_one("#rows", RowTable)._rows
        return [row.job.job_id for row in rows]

    def chosen(self) -> str:
        """The job of the cursor."""
        row = self.app.screen.query_one("#rows", RowTable).current
        return "" if row is None else str(row.job.job_id)


Story = Callable[[Reader], Awaitable[None]]
EVERYTHING = Selection()


def read(
    story: Story, world: World | None = None, *, size: tuple[int, int] = (80, 24), choice: Selection = EVERYTHING,
    job: JobKey | None = None, node: NodeLine | None = None,
) -> None:  # fmt: skip
    """Run ``story`` before a terminal of this size."""
    told = World().live(reports=20).tell_incidents() if world is None else world

    async def run() -> None:
        service = told.service()
        app = TopApp(service, service.overview(), user="ada", choice=choice, job=job, node=node)
        with pytest.MonkeyPatch.context() as textual:
            # It takes a process that got no CPU for 20 ms for one that has done its work.
            for module in ("app", "pilot"):
                textual.setattr(f"textual.{module}.wait_for_idle", lambda *_: _all_done(app))
            await before_terminal(app)

    async def before_terminal(app: TopApp) -> None:
        async with app.run_test(size=size) as pilot:
            reader = Reader(app, pilot, told)
            await reader.settle()
            await story(reader)

    asyncio.run(run())


async def _all_done(app: TopApp) -> None:
    """Until no task has anything left to do, and what they changed stands on the screen."""
    while True:
        await _all_wait()
        screen = app.screen
        if app._resize_timer is not None:
            app._check_resize()
        elif screen._layout_required or screen._repaint_required or screen._dirty_widgets or screen._callbacks:
            screen._on_timer_update()
        else:
            return


async def _all_wait() -> None:
    """Until each task of the event loop waits for something from outside."""
    loop, rounds_without_work = asyncio.get_running_loop(), 0
    while rounds_without_work < 3:  # in a round there are tasks before us and behind us
        await asyncio.sleep(0)
        rounds_without_work = 0 if loop._ready else rounds_without_work + 1  # type: ignore[attr-defined]
