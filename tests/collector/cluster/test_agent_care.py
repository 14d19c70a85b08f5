"""Who sees to it that an agent is at work: keeps one that waits, ends a holder that is not at work, leaves the rest."""

from __future__ import annotations

import signal
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.cluster.ray_service.agent_care import (
    LATE_LOOK_S,
    MAX_RETRY_S,
    NEXT_SPARE_S,
    SILENT_S,
    STOPPED_S,
    AgentCare,
)
from tidegauge.cluster.ray_service.agent_place import AgentKind, PlaceHolder, PlaceState
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat

AGENT = ProcessId(4711, 77)
NEXT = ProcessId(4712, 78)


class World:
    """The processes of a node as /proc shows them, and its place, which the kernel gives to who waits and is not
    stopped."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.letters: dict[ProcessId, str] = {}
        """State of each process that lives."""
        self.ready_after_s = 0.0
        """Of a new one: its imports."""
        self.ready_s: dict[ProcessId, float] = {}
        self.holder: PlaceHolder | None = None
        self.said: PlaceHolder | None = None
        """What the place's file says: of the holder, or of the one before."""
        self.beat_ns = 0
        self.beats = True
        self.lives = True
        """Whether a new one does; else it ends at once."""
        self.can_start = True
        self.started: list[float] = []
        self.killed: list[ProcessId] = []
        self.care = AgentCare(
            Path("agent.lock"), self._start, monotonic_s=lambda: self.now_s, look_at=lambda _: self._state(),
            stat=self._stat, kill=self._kill,
        )  # fmt: skip

    def _state(self) -> PlaceState:
        return PlaceState(is_held=self.holder is not None, holder=self.said, beat_ns=self.beat_ns)

    def _stat(self, pid: int) -> ProcStat | None:
        for process, letter in self.letters.items():
            if process.pid == pid:
                return ProcStat(process, "python", letter, 1, 1, 8, 100)
        return None

    def _start(self) -> ProcessId:
        self.started.append(self.now_s)
        if not self.can_start:
            raise BlockingIOError("no processes left")
        process = ProcessId(5000 + len(self.started), 1)
        if self.lives:
            self.letters[process], self.ready_s[process] = "S", self.now_s + self.ready_after_s
        self._kernel()
        return process

    def _kill(self, process: ProcessId, number: int) -> bool:
        assert number == signal.SIGKILL
        self.killed.append(process)
        self.end(process)
        return True

    def end(self, process: ProcessId) -> None:
        self.letters.pop(process, None)
        self.ready_s.pop(process, None)
        if self.holder is not None and self.holder.process == process:
            self.holder = None
        self._kernel()

    def hold(self, process: ProcessId = AGENT, kind: AgentKind = AgentKind.ENGINE) -> None:
        """The process is there, and at work; whoever was has ended, as it was asked to."""
        if self.holder is not None and self.holder.process != process:
            before, self.holder = self.holder.process, PlaceHolder(process, kind, 9401)
            self.end(before)
        self.letters[process] = "S"
        self.holder = self.said = PlaceHolder(process, kind, 9401)

    def _kernel(self) -> None:
        for process, ready_s in self.ready_s.items():
            if self.holder is None and self.letters[process] == "S" and self.now_s >= ready_s:
                self.holder = self.said = PlaceHolder(process, AgentKind.STAND_IN, 9401)
                del self.ready_s[process]
                break

    def look_for(self, seconds: float, *, every_s: float = 1.0) -> None:
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            self._kernel()
            if self.beats and self.holder is not None and self.letters.get(self.holder.process) == "S":
                self.beat_ns += 1
            try:
                self.care.look()
            except OSError:
                assert not self.can_start

    @property
    def waiting(self) -> list[ProcessId]:
        return [process for process in self.ready_s if process in self.letters]


def test_stand_in_is_at_work_at_once_where_the_place_is_free_and_another_one_waits_later() -> None:
    world = World()
    world.look_for(2)
    assert world.started == [1001.0]
    assert world.holder is not None
    assert world.care.stand_in == world.holder.process
    world.look_for(NEXT_SPARE_S)
    assert len(world.started) == 2
    assert world.waiting == [world.care.spare]


def test_one_waits_while_an_agent_is_at_work_and_nothing_else_is_done() -> None:
    world = World()
    world.hold()
    world.look_for(600)
    assert (len(world.started), world.killed) == (1, [])
    assert world.waiting == [world.care.spare]


def test_agent_that_ends_is_followed_without_a_look() -> None:
    world = World()
    world.hold()
    world.look_for(60)
    spare = world.care.spare
    world.end(AGENT)
    assert world.holder is not None
    assert world.holder.process == spare


def test_one_that_waits_and_ends_at_once_is_started_ever_more_rarely() -> None:
    world = World()
    world.hold()
    world.lives = False
    world.look_for(600)
    gaps = [after - before for before, after in zip(world.started, world.started[1:], strict=False)]
    assert gaps[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert max(gaps) == MAX_RETRY_S


def test_waits_begin_anew_once_one_has_waited_long_enough() -> None:
    world = World()
    world.hold()
    world.lives = False
    world.look_for(100)
    world.lives = True
    world.look_for(2 * MAX_RETRY_S + 1)
    (spare,) = world.waiting
    world.started, world.lives = [], False
    world.end(spare)
    world.look_for(4)
    assert len(world.started) == 3


def test_node_that_could_start_none_tries_at_once_when_its_agent_is_missed() -> None:
    world = World()
    world.hold()
    world.can_start = False
    world.look_for(600)
    world.started, world.can_start = [], True
    world.end(AGENT)
    world.look_for(1)
    assert len(world.started) == 1
    assert world.holder is not None


def test_one_that_waits_and_is_stopped_is_killed_and_followed() -> None:
    world = World()
    world.hold()
    world.look_for(5)
    (spare,) = world.waiting
    world.letters[spare] = "T"
    world.look_for(STOPPED_S + 2)
    assert world.killed == [spare]
    world.look_for(2)
    assert world.waiting == [world.care.spare]
    assert world.care.spare != spare


def test_one_that_imports_slowly_is_waited_for() -> None:
    world = World()
    world.ready_after_s = 300.0
    world.look_for(400)
    assert world.killed == []
    assert world.holder is not None
    assert world.started[:1] == [1001.0]
    assert len(world.started) == 2


def test_agent_that_is_stopped_is_killed_and_followed() -> None:
    world = World()
    world.hold()
    world.look_for(5)
    world.letters[AGENT] = "T"
    world.look_for(STOPPED_S + 1)
    assert world.killed == [AGENT]
    assert world.holder is not None
    assert world.holder.kind is AgentKind.STAND_IN


def test_agent_that_is_traced_by_a_debugger_is_left_alone() -> None:
    world = World()
    world.hold()
    world.letters[AGENT] = "t"
    world.look_for(SILENT_S - 1)
    assert world.killed == []


def test_agent_whose_polls_hang_is_killed_after_a_minute() -> None:
    world = World()
    world.hold()
    world.look_for(5)
    world.letters[AGENT] = "D"
    world.look_for(SILENT_S - 1)
    assert world.killed == []
    world.look_for(1)
    assert world.killed == [AGENT]


def test_agent_that_was_stopped_together_with_everything_is_left_alone() -> None:
    """The machine stood still, or somebody stopped the whole service and lets it go on."""
    world = World()
    world.hold()
    world.look_for(5)
    (spare,) = world.waiting
    world.letters[AGENT] = world.letters[spare] = "T"
    world.look_for(600, every_s=600)  # the supervisor goes on a moment before the agent
    world.letters[AGENT] = world.letters[spare] = "S"
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
    world.hold()
    world.said = PlaceHolder(NEXT, AgentKind.ENGINE, 9401)  # what the file says is of the one before
    world.letters[AGENT] = "T"
    world.look_for(10 * SILENT_S)
    assert world.killed == []


def test_stopped_stand_in_is_killed_too() -> None:
    world = World()
    world.look_for(30)
    stand_in, spare = world.care.stand_in, world.care.spare
    assert stand_in is not None
    world.letters[stand_in] = "T"
    world.look_for(STOPPED_S + 2)
    assert world.killed == [stand_in]
    assert world.holder is not None
    assert world.holder.process == spare


EVENTS = ("kill the holder", "stop the holder", "kill the spare", "stop the spare", "engine's agent comes", "nothing")


@given(
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 30)), max_size=30),
    ready_after_s=st.sampled_from([0.0, 3.0, 20.0]),
)
def test_one_is_at_work_after_any_order_of_kills_and_stops_and_nobody_who_works_is_killed(
    events: list[tuple[str, int]], ready_after_s: float
) -> None:
    world = World()
    world.ready_after_s = ready_after_s
    hurt: set[ProcessId] = set()
    for number, (event, then_s) in enumerate(events):
        holder = None if world.holder is None else world.holder.process
        victim = world.care.spare if "spare" in event else holder
        if event == "engine's agent comes":
            world.hold(ProcessId(9000 + number, 1))
        elif victim is not None and victim in world.letters and event != "nothing":
            hurt.add(victim)
            if event.startswith("kill"):
                world.end(victim)
            else:
                world.letters[victim] = "T"
        world.look_for(then_s)
        assert len(world.waiting) <= 1
    world.look_for(2 * (MAX_RETRY_S + NEXT_SPARE_S + STOPPED_S))
    assert world.holder is not None
    assert world.letters[world.holder.process] == "S"
    assert world.waiting == [world.care.spare]
    assert len(world.letters) == 2
    assert set(world.killed) <= hurt
