"""Who sees to it that an agent is at work: starts a stand-in, ends a holder that is not at work, leaves the rest."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tidegauge.cluster.ray_service.agent_care import LATE_LOOK_S, MAX_RETRY_S, SILENT_S, STOPPED_S, AgentCare
from tidegauge.cluster.ray_service.agent_place import AgentKind, PlaceHolder, PlaceState
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.processes import identity_of

AGENT = ProcessId(4711, 77)
GONE = ProcessId(4712, 78)
FREE = PlaceState(is_held=False, holder=None, beat_ns=0)


class World:
    """A place, its holder as /proc shows it, and what the care did."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.state = FREE
        self.letter = "S"
        self.holder = AGENT
        self.beats = True
        self.started: list[float] = []
        self.killed: list[ProcessId] = []
        self.stand_in = GONE
        self.care = AgentCare(
            Path("agent.lock"), self._start, monotonic_s=lambda: self.now_s, look_at=lambda _: self.state,
            stat=lambda _: ProcStat(self.holder, "ray::AgentActor", self.letter, 1, 1, 8, 100), kill=self._kill,
        )  # fmt: skip

    def _start(self) -> ProcessId:
        self.started.append(self.now_s)
        return self.stand_in

    def _kill(self, process: ProcessId, number: int) -> bool:
        assert number == signal.SIGKILL
        self.killed.append(process)
        return True

    def hold(self, process: ProcessId = AGENT, kind: AgentKind = AgentKind.ENGINE) -> None:
        self.state = PlaceState(is_held=True, holder=PlaceHolder(process, kind, 9401), beat_ns=1)

    def look_for(self, seconds: float, *, every_s: float = 1.0) -> None:
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            if self.beats and self.state.is_held:
                self.state = self.state._replace(beat_ns=self.state.beat_ns + 1)
            self.care.look()


def test_stand_in_is_started_at_once_where_the_place_is_free() -> None:
    world = World()
    world.look_for(1)
    assert world.started == [1001.0]


def test_nothing_is_done_while_an_agent_is_at_work() -> None:
    world = World()
    world.hold()
    world.look_for(600)
    assert (world.started, world.killed) == ([], [])


def test_stand_in_that_lives_is_not_started_a_second_time() -> None:
    world = World()
    me = identity_of(os.getpid())
    assert me is not None
    world.stand_in = me
    world.look_for(100)
    assert len(world.started) == 1


def test_stand_in_that_ends_at_once_is_started_ever_more_rarely() -> None:
    world = World()
    world.look_for(600)
    gaps = [after - before for before, after in zip(world.started, world.started[1:], strict=False)]
    assert gaps[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert max(gaps) == MAX_RETRY_S


def test_waits_begin_anew_once_an_agent_has_worked() -> None:
    world = World()
    world.look_for(100)
    world.hold()
    world.look_for(40)
    world.state, world.started = FREE, []
    world.look_for(1)
    assert len(world.started) == 1
    world.look_for(2)
    assert len(world.started) == 2


def test_agent_that_is_stopped_is_killed_and_followed() -> None:
    world = World()
    world.hold()
    world.look_for(5)
    world.letter, world.beats = "T", False
    world.look_for(STOPPED_S + 1)
    assert world.killed == [AGENT]
    world.state = FREE
    world.look_for(1)
    assert len(world.started) == 1


def test_agent_that_is_traced_by_a_debugger_is_left_alone() -> None:
    world = World()
    world.hold()
    world.letter, world.beats = "t", False
    world.look_for(SILENT_S - 1)
    assert world.killed == []


def test_agent_whose_polls_hang_is_killed_after_a_minute() -> None:
    world = World()
    world.hold()
    world.look_for(5)
    world.letter, world.beats = "D", False
    world.look_for(SILENT_S - 1)
    assert world.killed == []
    world.look_for(1)
    assert world.killed == [AGENT]


def test_agent_that_was_stopped_together_with_everything_is_left_alone() -> None:
    """The machine stood still, or somebody stopped the whole service and lets it go on."""
    world = World()
    world.hold()
    world.look_for(5)
    world.beats = False
    world.letter = "T"
    world.look_for(600, every_s=600)  # the supervisor goes on a moment before the agent
    world.letter, world.beats = "S", True
    world.look_for(10)
    assert world.killed == []


def test_slow_looks_say_nothing_of_the_time_between() -> None:
    world = World()
    world.hold()
    world.beats = False
    world.look_for(10 * SILENT_S, every_s=LATE_LOOK_S + 1)
    assert world.killed == []


def test_holder_that_has_not_said_yet_who_it_is_is_left_alone() -> None:
    world = World()
    world.hold(GONE)  # what the file says is of the one before
    world.letter, world.beats = "T", False
    world.look_for(10 * SILENT_S)
    assert world.killed == []


def test_stopped_stand_in_is_killed_too() -> None:
    world = World()
    world.hold(kind=AgentKind.STAND_IN)
    world.letter, world.beats = "T", False
    world.look_for(STOPPED_S + 2)
    assert world.killed == [AGENT]
