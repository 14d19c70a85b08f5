"""`Ending`: who is asked when, and when force is used. Fake processes, fake time."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.launch.keeper import MAX_LOOK_S, Ending

LAUNCHER, RANK, LOADER = (ProcessId(pid, pid * 10) for pid in (1, 2, 3))
TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)


@dataclass
class Family:
    """Processes that end when they are told to, or when they are killed."""

    alive: set[ProcessId] = field(default_factory=lambda: {LAUNCHER, RANK, LOADER})
    obey: set[ProcessId] = field(default_factory=set)
    sent: list[tuple[ProcessId, int]] = field(default_factory=list)
    grace_s: float = 10.0

    def __post_init__(self) -> None:
        self.ending = Ending(LAUNCHER, self.stats, grace_s=self.grace_s, now_s=0.0, send=self.send)

    def stats(self) -> list[ProcStat]:
        return [ProcStat(process, "python", "S", 0, 0, 1, 1) for process in sorted(self.alive)]

    def send(self, process: ProcessId, number: int) -> bool:
        if number != signal.SIGCONT:
            self.sent.append((process, number))
        if number == KILL or process in self.obey:
            self.alive.discard(process)
        return True

    def look(self, now_s: float) -> list[tuple[ProcessId, int]]:
        """Who was signalled by this look."""
        before = len(self.sent)
        self.ending.look(now_s)
        return self.sent[before:]


def test_the_command_is_asked_alone_at_first() -> None:
    family = Family()
    assert family.sent == [(LAUNCHER, TERM)]
    assert family.look(0.1) == family.look(4.9) == []


def test_ending_signals_processes_left_by_the_command() -> None:
    family = Family(obey={LAUNCHER, LOADER})
    assert family.look(0.1) == [(RANK, TERM), (LOADER, TERM)]
    assert family.alive == {RANK}
    assert family.look(9.9) == []
    assert family.look(10.0) == [(RANK, KILL)]
    assert family.ending.look(10.1) == []


def test_at_half_of_the_grace_everybody_is_asked_and_nobody_twice() -> None:
    family = Family()
    assert family.look(5.0) == [(RANK, TERM), (LOADER, TERM)]
    assert family.look(9.0) == []


def test_force_comes_when_the_grace_is_over_again_and_again() -> None:
    family = Family()
    family.look(5.0)
    assert [number for _, number in family.look(10.0)] == [KILL] * 3
    family.alive.add(ProcessId(9, 90))  # started a moment before its parent was killed
    assert family.look(10.1) == [(ProcessId(9, 90), KILL)]


def test_no_grace_is_force_at_once() -> None:
    family = Family(grace_s=0.0)
    assert [number for _, number in family.look(0.0)] == [KILL] * 3


def test_a_person_in_a_hurry_is_obeyed() -> None:
    family = Family()
    family.ending.hurry(1.0)
    assert family.ending.next_look_s == 1.0
    assert [number for _, number in family.look(1.0)] == [KILL] * 3


def test_looks_become_rarer_and_no_turning_point_is_missed() -> None:
    family = Family()
    now_s, times_s = 0.0, []
    while now_s < 12.0:
        family.look(now_s)
        times_s.append(now_s)
        assert now_s < family.ending.next_look_s <= now_s + MAX_LOOK_S
        now_s = family.ending.next_look_s
    assert {5.0, 10.0} <= set(times_s)
    assert len(times_s) < 40
