"""Which job a process belongs to, with a slurmd that says what the test wants and processes that come and go."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fake_node import FakeClock, FakeProcs
from tidegauge.agent.ports import NoPlace, NoSteps, ProcessFacts, SourceHealth
from tidegauge.agent.slurm.listpids import TIMEOUT_S, StepList
from tidegauge.agent.slurm.node import (
    NO_NODE_S,
    PATIENCE_S,
    REFRESH_S,
    SOON_S,
    UNDECIDED_S,
    SlurmNode,
    open_slurm,
)
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.settings import Settings
from waiting import PATIENCE_S as TEST_PATIENCE_S

RANK = ProcessId(500, 9000)
PARENT = ProcessId(400, 8000)
SEVEN = SlurmPlace(JobId("7"), "0")
BROKEN = StepList({}, "scontrol listpids: Unable to connect to slurmstepd: Connection refused")


@dataclass
class World:
    """A node with one process and what its slurmd will say next."""

    said: StepList = field(default_factory=lambda: StepList({}))
    clock: FakeClock = field(default_factory=FakeClock)
    procs: FakeProcs = field(default_factory=FakeProcs)
    meanwhile: list[ProcessId] = field(default_factory=list)
    """Those that end while slurmd is being asked."""
    procs_fail_meanwhile: bool = False

    def __post_init__(self) -> None:
        self.begin(RANK)
        self.begin(PARENT)

    def begin(self, process: ProcessId) -> None:
        self.procs.facts[process] = ProcessFacts(process, 1000, None)

    def ask(self) -> StepList:
        self.procs.failing |= self.procs_fail_meanwhile
        for process in self.meanwhile:
            del self.procs.facts[process]
        self.meanwhile.clear()
        return self.said

    def node(self, *, required: bool = True) -> SlurmNode:
        return SlurmNode(self.ask, self.procs, required=required, monotonic_s=self.clock.monotonic_s)


@pytest.fixture
def world() -> World:
    return World()


def asked(node: SlurmNode, process: ProcessId = RANK) -> SlurmPlace | NoPlace:
    """What is said of a process once slurmd was asked."""
    node.place_of(process)
    node.look()
    return node.place_of(process)


def test_a_process_waits_until_slurmd_was_asked(world: World) -> None:
    world.said = StepList({RANK.pid: SEVEN})
    node = world.node()
    assert node.place_of(RANK) is NoPlace.WAITING
    node.look()
    assert node.place_of(RANK) == SEVEN


def test_a_process_that_slurmd_does_not_know_is_outside(world: World) -> None:
    world.said = StepList({77: SEVEN})
    assert asked(world.node()) is NoPlace.OUTSIDE


def test_a_process_that_slurmd_takes_in_later_is_placed(world: World) -> None:
    node = world.node()
    assert asked(node) is NoPlace.OUTSIDE
    world.said = StepList({RANK.pid: SEVEN})
    assert asked(node) == SEVEN


def test_an_answer_that_may_lack_some_makes_nobody_an_outsider(world: World) -> None:
    world.said = BROKEN
    node = world.node()
    assert asked(node) is NoPlace.WAITING
    world.said = StepList({RANK.pid: SEVEN}, BROKEN.problem)
    assert asked(node) == SEVEN


def test_a_slurmd_that_does_not_answer_is_silent_after_a_while(world: World) -> None:
    world.said = BROKEN
    node = world.node()
    assert asked(node) is NoPlace.WAITING
    world.clock.pass_s(PATIENCE_S + 0.1)
    assert node.place_of(RANK) is NoPlace.SILENT
    world.said = StepList({RANK.pid: SEVEN})
    assert asked(node) == SEVEN


def test_the_last_answer_stays_while_slurmd_does_not_answer(world: World) -> None:
    world.said = StepList({RANK.pid: SEVEN})
    node = world.node()
    asked(node)
    world.said = StepList({RANK.pid: SEVEN})
    assert asked(node, PARENT) is NoPlace.OUTSIDE
    world.said = BROKEN
    world.clock.pass_s(100)
    assert asked(node) == SEVEN
    assert asked(node, PARENT) is NoPlace.OUTSIDE
    assert node.pids() == frozenset({RANK.pid})


# --- pids are used again


def test_a_pid_that_was_used_again_does_not_inherit_the_job(world: World) -> None:
    world.said = StepList({RANK.pid: SEVEN})
    node = world.node()
    assert asked(node) == SEVEN
    del world.procs.facts[RANK]
    world.begin(again := ProcessId(RANK.pid, RANK.start_ticks + 500))
    world.said = StepList({})
    assert asked(node, again) is NoPlace.OUTSIDE


def test_a_process_that_ended_during_the_question_has_no_part_in_the_answer(world: World) -> None:
    world.said = StepList({RANK.pid: SEVEN})
    world.meanwhile.append(RANK)
    assert asked(world.node()) is NoPlace.WAITING


def test_a_process_that_began_during_the_question_has_no_part_in_the_answer(world: World) -> None:
    again = ProcessId(RANK.pid, RANK.start_ticks + 1)
    node = world.node()
    node.place_of(again)  # not alive yet when the question is put
    world.said = StepList({RANK.pid: SEVEN})
    world.meanwhile.append(RANK)
    node.look()
    world.begin(again)
    assert node.place_of(again) is NoPlace.WAITING


def test_a_failure_to_look_at_processes_is_no_answer(world: World) -> None:
    world.said = StepList({RANK.pid: SEVEN})
    node = world.node()
    assert asked(node) == SEVEN
    world.procs.failing = True
    assert asked(node) == SEVEN
    other = ProcessId(501, 9100)
    world.begin(other)
    world.said = StepList({other.pid: SEVEN})
    assert asked(node, other) is NoPlace.WAITING
    world.procs.failing = False
    assert asked(node, other) == SEVEN


def test_slurm_node_ignores_an_answer_for_a_process_it_cannot_verify(world: World) -> None:
    world.said = StepList({RANK.pid: SEVEN})
    world.procs_fail_meanwhile = True
    assert asked(world.node()) is NoPlace.WAITING


def test_slurm_node_forgets_ended_processes(world: World) -> None:
    world.said = StepList({RANK.pid: SEVEN})
    node = world.node()
    asked(node)
    del world.procs.facts[RANK]
    node.look()
    assert node.place_of(RANK) is NoPlace.WAITING


# --- ancestors


def test_a_process_that_left_its_session_is_where_its_parent_is(world: World) -> None:
    world.procs.parents[RANK] = (PARENT, ProcessId(1, 1))
    world.said = StepList({PARENT.pid: SEVEN})
    assert asked(world.node()) == SEVEN


def test_the_nearest_ancestor_counts(world: World) -> None:
    nearest = ProcessId(450, 8500)
    world.begin(nearest)
    world.procs.parents[RANK] = (nearest, PARENT)
    world.said = StepList({PARENT.pid: SlurmPlace(JobId("6"), "0"), nearest.pid: SEVEN})
    assert asked(world.node()) == SEVEN


def test_a_parent_that_is_younger_than_its_child_took_a_pid_over(world: World) -> None:
    usurper = ProcessId(PARENT.pid, RANK.start_ticks + 1)
    world.begin(usurper)
    world.procs.parents[RANK] = (usurper,)
    world.said = StepList({usurper.pid: SEVEN})
    assert asked(world.node()) is NoPlace.OUTSIDE


def test_an_ancestor_that_ended_during_the_question_says_nothing_yet(world: World) -> None:
    world.procs.parents[RANK] = (PARENT,)
    world.said = StepList({PARENT.pid: SEVEN})
    world.meanwhile.append(PARENT)
    assert asked(world.node()) is NoPlace.WAITING


def test_an_answer_that_may_lack_the_processs_own_step_does_not_speak_by_its_ancestors(world: World) -> None:
    world.procs.parents[RANK] = (PARENT,)
    world.said = StepList({PARENT.pid: SEVEN}, BROKEN.problem)
    assert asked(world.node()) is NoPlace.WAITING


# --- when it is asked


def test_asked_soon_while_somebody_waits_and_rarely_otherwise(world: World) -> None:
    node = world.node()
    assert node.due_s() == world.clock.now_s
    node.look()
    assert node.due_s() == world.clock.now_s + REFRESH_S
    node.place_of(RANK)
    assert node.due_s() == world.clock.now_s + SOON_S
    world.said = StepList({RANK.pid: SEVEN})
    node.look()
    assert node.due_s() == world.clock.now_s + REFRESH_S


def test_outsiders_and_those_who_waited_in_vain_are_no_hurry(world: World) -> None:
    node = world.node()
    asked(node)
    assert node.due_s() == world.clock.now_s + REFRESH_S
    node.place_of(PARENT)
    world.said = BROKEN
    world.clock.pass_s(PATIENCE_S + 1)
    node.look()
    assert node.due_s() == world.clock.now_s + REFRESH_S


def test_slurm_node_lookup_never_blocks_on_slurmd() -> None:
    answer = threading.Event()
    begun = threading.Event()

    def hang() -> StepList:
        begun.set()
        answer.wait(2 * TEST_PATIENCE_S)
        return StepList({RANK.pid: SEVEN})

    procs = FakeProcs({RANK: ProcessFacts(RANK, 1000, None)})
    node = SlurmNode(hang, procs, required=True, monotonic_s=FakeClock().monotonic_s)
    assert node.place_of(RANK) is NoPlace.WAITING
    node.start()
    assert begun.wait(TEST_PATIENCE_S)
    assert node.place_of(RANK) is NoPlace.WAITING
    answer.set()
    node.close()


# --- whether this is a Slurm node


def test_a_node_that_slurm_does_not_know_is_left_alone(world: World) -> None:
    world.said = StepList({}, "scontrol listpids: stepd_available: Couldn't find nodename")
    node = world.node(required=False)
    assert node.place_of(RANK) is NoPlace.WAITING
    node.look()
    assert node.place_of(RANK) is NoPlace.NOT_ASKED
    assert node.health() is None
    assert node.due_s() == world.clock.now_s + NO_NODE_S


def test_a_node_that_becomes_one_of_slurms_is_noticed(world: World) -> None:
    world.said = BROKEN
    node = world.node(required=False)
    node.look()
    world.said = StepList({RANK.pid: SEVEN})
    node.look()
    assert asked(node) == SEVEN
    world.said = BROKEN
    node.look()
    health = node.health()
    assert health is not None
    assert not health.success


def test_slurm_node_decides_within_seconds_that_slurm_is_absent(world: World) -> None:
    node = world.node(required=False)
    assert node.place_of(RANK) is NoPlace.WAITING
    world.clock.pass_s(UNDECIDED_S + 0.1)
    assert node.place_of(RANK) is NoPlace.NOT_ASKED


def test_a_slurm_node_by_the_admins_word_is_one_before_it_answers(world: World) -> None:
    world.said = BROKEN
    node = world.node()
    node.look()
    health = node.health()
    assert health is not None
    assert not health.success
    assert node.place_of(RANK) is NoPlace.WAITING


# --- what is told


def test_a_failure_is_said_once_and_its_end(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    node = world.node()
    for said in (BROKEN, BROKEN, StepList({}), StepList({})):
        world.said = said
        node.look()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "Connection refused" in caplog.messages[0]


def test_a_question_that_never_returns_is_a_failure(world: World) -> None:
    seen = []

    def hang() -> StepList:
        world.clock.pass_s(2 * TIMEOUT_S + 1)
        seen.append(node.health())
        return StepList({})

    node = SlurmNode(hang, world.procs, required=True, monotonic_s=world.clock.monotonic_s)
    for _ in range(2):
        node.look()
        assert node.health() == SourceHealth(True, 2 * TIMEOUT_S + 1)
    assert [health is not None and health.success for health in seen] == [False, False]


# --- the real command


def test_slurm_is_not_asked_where_it_is_off_or_not_there(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    there, nowhere = {"PATH": str(tmp_path)}, {"PATH": str(tmp_path / "empty")}
    procs = FakeProcs()
    assert isinstance(open_slurm(Settings(slurm="off"), procs, there), NoSteps)
    assert isinstance(open_slurm(Settings(), procs, nowhere), NoSteps)
    for settings, environ in ((Settings(), there), (Settings(slurm="on"), nowhere)):
        node = open_slurm(settings, procs, environ)
        node.close()
        assert isinstance(node, SlurmNode)
