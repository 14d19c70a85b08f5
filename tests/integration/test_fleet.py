"""The simulated fleet is what the benchmarks say it is: real rings that the real agent watches, leaks that go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from fleet import agent, detector
from fleet.measuring import Bound, bounds_table
from fleet.ranks import Ending, Idlers, SimulatedJob, SimulatedNode
from fleet.series import Replay, choose, replays

from integration.service import eventually
from leakseries.machine import Row, feed
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.core.detector import RankDetector
from tidegauge.core.verdicts import LeakState
from tidegauge.settings import Settings

MIB = 1 << 20


@pytest.fixture
def node_agent(tmp_path: Path) -> Iterator[NodeAgent]:
    (tmp_path / "run").mkdir()
    opened = open_node_agent(Settings(run_dir=tmp_path / "run", state_dir=tmp_path / "state", linger_s=0, slurm="off"))
    yield opened
    opened.close()


def leak(rows: int = 200) -> Replay:
    series = [Row(at, float(at), (100 + at) * MIB, (200 + at) * MIB, (100 + at) * MIB, -1) for at in range(rows)]
    return Replay("leak", series, leak=True)


def test_a_leak_goes_on_at_its_pace() -> None:
    played = leak()
    values = [played.at(at).allocated_bytes for at in range(2000)]
    assert values[1999] / MIB == pytest.approx(100 + 1999, rel=0.05)
    assert max(abs(after - before) for before, after in zip(values, values[1:], strict=False)) < 8 * MIB


def test_fleet_replay_repeats_a_series_without_a_leak() -> None:
    series = [Row(at, float(at), (100 + at % 7) * MIB, 200 * MIB, 120 * MIB, -1) for at in range(200)]
    played = Replay("steady", series, leak=False)
    assert {played.at(at).allocated_bytes for at in range(5000)} == {(100 + at) * MIB for at in range(7)}


def test_recorded_leaks_are_still_leaks_after_many_rounds() -> None:
    found = 0
    leaks = [one for one in replays() if one.leak][::3]
    for played in leaks:
        one = RankDetector()
        for at in range(3000):
            memory = played.at(at)
            feed(one, Row(at, float(at), memory[0], memory[1], memory[2], -1))
        found += one.verdict.state is LeakState.LEAK
    assert found >= 0.8 * len(leaks), f"{found} of {len(leaks)}"


def test_no_replay_frees_more_than_it_reserved() -> None:
    for played in replays():
        for at in (0, 1, 99, 1000, 100_000):
            memory = played.at(at)
            assert 0 <= memory.allocated_bytes <= memory.reserved_bytes, played.name
            assert memory.allocated_bytes <= memory.allocated_peak_bytes


@pytest.mark.parametrize("how", list(Ending))
def test_an_agent_watches_a_simulated_job_from_its_start_to_its_end(
    node_agent: NodeAgent, tmp_path: Path, how: Ending
) -> None:
    idlers = Idlers()
    job = SimulatedJob(
        tmp_path / "run", "job", choose(3, leak_share=1), idlers, steps_per_s=100, now_s=time.monotonic()
    )  # fmt: skip
    for _ in range(20):
        job.write(job.due_s)

    def shown() -> bool:
        node_agent.poll()
        return bool(node_agent.view().ranks)

    # Where Slurm is installed, nobody is shown before slurmd has been asked whose processes they are.
    eventually(shown, "the job is shown")
    view = node_agent.view()
    assert [(rank.identity.rank, rank.identity.world_size, rank.gpu) for rank in view.ranks] == [
        (rank, 3, None) for rank in range(3)
    ]
    assert [rank.step for rank in view.ranks] == [19, 19, 19]
    assert (view.records_lost, view.records_refused, dict(view.rings_skipped)) == (0, 0, {})
    job.end(how)
    for _ in range(4):
        node_agent.poll()
    assert not node_agent.view().ranks
    assert not list((tmp_path / "run").glob("*/*.ring")), "the agent clears what the dead left"
    idlers.close()


def test_churn_replaces_jobs_and_leaves_none_behind(node_agent: NodeAgent, tmp_path: Path) -> None:
    node = SimulatedNode(tmp_path / "run", steps_per_s=50, churn_s=0.2)
    try:
        for _ in range(4):
            node.begin(choose(2))
        deadline_s = time.monotonic() + 90
        while node.jobs_ended < 8 and time.monotonic() < deadline_s:
            due_s = node.write_due()
            node_agent.poll()
            time.sleep(max(0.0, due_s - time.monotonic()))
        node_agent.poll()
        living = [rank for rank in node_agent.view().ranks if rank.alive]
        assert node.jobs_ended >= 8
        assert len(living) == 8
    finally:
        node.close()


def test_the_agents_benchmark_sees_every_rank_and_loses_nothing() -> None:
    # Longer than agent or writer may stand still: of six seconds nothing was left to measure.
    figures = agent.measure(16, steps_per_s=10, seconds=20, warm_up_s=0.5)
    watched = figures.watched
    assert (watched["ranks"], watched["failing"], watched["dropped"], figures.records_lost) == (16, [], {}, 0)
    assert figures.points_per_s > 0
    assert figures.cpu_percent > 0
    assert watched["reports"] > 0


def test_the_agents_benchmark_misses_its_bound_when_a_rank_is_not_seen() -> None:
    figures = agent.measure(2, seconds=1, warm_up_s=0)._replace(cpu_percent=1.0, points_per_s=4.0)
    blind = figures._replace(watched={**figures.watched, "ranks": 1})
    idle = figures._replace(points_per_s=3.5)
    assert [[bound.met for bound in agent.bounds(each)] for each in (figures, blind, idle)] == [
        [True, True, True],
        [True, False, True],
        [True, True, False],
    ]


def test_the_detectors_benchmark_measures_and_finds_leaks() -> None:
    # In a process of its own: memory that was used and freed before would be used again, and not be counted.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        figures = fresh.submit(detector.measure, 200, 700).result()
    assert figures.steady_us > 0
    assert figures.bytes_each > figures.bytes_each_at_half > 1000
    assert 10 < figures.leaks < 190


def test_a_bound_that_is_missed_is_said_in_the_table() -> None:
    said = bounds_table([Bound("one", 30, 29.96, "%"), Bound("two", 30, 30.1, "%")])
    assert [line.rsplit("|", 2)[1].strip() for line in said.splitlines()[2:]] == ["yes", "NO"]
