"""An agent that is restarted knows what the one before it knew: verdicts, counters, budgets, readings."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import GIB, MIB, PID, UUID0, FakeNode, FakeRank, close_agents, gpu_reading
from sample_views import rank_view
from tidegauge.agent import agent_state
from tidegauge.agent.agent_state import FORMAT, SAVE_EVERY_S, TIME_SHARE, UNCLAIMED_S, AgentState
from tidegauge.agent.evidence.budget import PIECES_OF_TENANT, EvidenceBudget
from tidegauge.agent.evidence.profile_budget import CPU_S_OF_TENANT, ProfileBudget
from tidegauge.agent.evidence.readings import RankReadings
from tidegauge.core.detector import RankDetector
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.profile_policy import ProfilePolicy
from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import NodeView

STEPS_PER_POLL = 8
POLLS = 60
SOMEBODY = Tenant(1001)


def state_in(folder: Path, *, boot_id: str = "boot-1") -> AgentState:
    return AgentState(folder / "agent", boot_id=boot_id, cpu_s=lambda: 0.0)


def started(folder: Path, *, after: FakeNode | None = None, boot_id: str = "boot-1") -> FakeNode:
    """An agent with its state in ``folder``; ``after``: on the same machine, with the same ranks."""
    reading = gpu_reading(UUID0, processes={PID.pid: 62 * GIB})
    return FakeNode(
        folder / "run", readings=[reading], detector_factory=RankDetector, state=state_in(folder, boot_id=boot_id),
        machine=after,
    )  # fmt: skip


def leak(rank: FakeRank, poll: int) -> None:
    """The steps of one poll: flat at first, then 4 MiB a step."""
    for each in range(STEPS_PER_POLL):
        step = poll * STEPS_PER_POLL + each
        rank.record(step=step, allocated=8 * GIB + 4 * MIB * max(0, step - 150), reserved=60 * GIB)


def killed(node: FakeNode) -> None:
    """What a SIGKILL leaves: what was written by then. Nothing is saved at the end."""
    state = node.agent._state
    assert state is not None
    assert state.wait_written(10.0)
    node.agent._state = None


def verdicts_with_restart(folder: Path, *, cut: int, away_polls: int, kill: bool) -> list[object]:
    """The verdict after each poll of an agent that is away for some polls."""
    node = started(folder)
    rank = node.start_rank(capacity=512)  # what is between two saves, and while nobody is there
    seen: list[object] = []
    for poll in range(POLLS):
        leak(rank, poll)
        if poll == cut:
            killed(node) if kill else node.agent.close()
        if poll == cut + away_polls:
            node = started(folder, after=node)
        if not cut <= poll < cut + away_polls:
            node.poll(0.0)
            seen.append(node.agent.view().ranks[0].verdict)
        else:
            seen.append(None)
    return seen


def test_a_rank_keeps_verdict_and_onset_over_a_restart_at_any_poll(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = verdicts_with_restart(tmp_path / "whole", cut=POLLS, away_polls=0, kill=False)
    assert whole[-1].state is LeakState.LEAK  # type: ignore[attr-defined]

    @given(cut=st.integers(1, POLLS - 6), away_polls=st.integers(1, 5), kill=st.booleans())
    def same(cut: int, away_polls: int, kill: bool) -> None:
        with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
            seen = verdicts_with_restart(Path(folder), cut=cut, away_polls=away_polls, kill=kill)
            close_agents()
        assert seen == whole[:cut] + [None] * away_polls + whole[cut + away_polls :]

    same()


def test_a_detector_without_its_state_would_say_something_else(tmp_path: Path) -> None:
    """What is read from the ring alone is not the same: else the test above would prove nothing."""
    node = started(tmp_path)
    rank = node.start_rank(capacity=64)
    for poll in range(POLLS):
        leak(rank, poll)
        node.poll(0.0)
    before = node.agent.view().ranks[0].verdict
    node.agent.close()
    again = started(tmp_path, after=node, boot_id="boot-2")
    again.poll(0.0)
    assert again.agent.view().ranks[0].verdict != before
    assert before.onset_step is not None


def counts(view: NodeView) -> dict[str, Any]:
    return {"points": view.detector_points, "lost": view.records_lost, "skipped": dict(view.rings_skipped)}


@pytest.mark.parametrize("kill", [False, True])
def test_counters_never_go_backwards_over_a_restart(tmp_path: Path, kill: bool) -> None:
    node = started(tmp_path)
    rank = node.start_rank(capacity=64)
    node.start_rank(process=ProcessId(99, 9)).write(0, b"NO RING!")
    for poll in range(20):
        leak(rank, poll)
        node.poll(0.5)
    for poll in range(20, 40):  # more than its ring holds
        leak(rank, poll)
    node.poll(0.5)
    before = counts(node.agent.view())
    assert before["lost"] > 0
    assert before["skipped"]
    killed(node) if kill else node.agent.close()
    again = started(tmp_path, after=node)
    again.poll(0.5)
    after = counts(again.agent.view())
    assert after["points"] >= before["points"]
    assert after["lost"] >= before["lost"]
    assert all(after["skipped"][reason] >= number for reason, number in before["skipped"].items())


def test_a_rank_that_made_nothing_since_is_not_counted_twice(tmp_path: Path) -> None:
    node = started(tmp_path)
    rank = node.start_rank()
    leak(rank, 0)
    node.poll()
    node.agent.close()
    again = started(tmp_path, after=node)
    again.poll()
    assert again.agent.view().detector_points == node.agent.view().detector_points == STEPS_PER_POLL


def test_highest_memory_and_counters_of_a_rank_outlive_its_ring(tmp_path: Path) -> None:
    node = started(tmp_path)
    rank = node.start_rank(capacity=64)
    rank.record(step=0, allocated=50 * GIB, reserved=60 * GIB, alloc_retries=5)
    node.poll()
    for step in range(1, 200):
        rank.record(step=step, allocated=4 * GIB, reserved=60 * GIB, alloc_retries=8)
        node.poll(0.1)
    node.agent.close()
    again = started(tmp_path, after=node)
    again.poll()
    (view,) = again.agent.view().ranks
    assert (view.allocated_highest_bytes, view.alloc_retries) == (50 * GIB, 3)


def test_a_process_with_the_pid_of_another_begins_anew(tmp_path: Path) -> None:
    node = started(tmp_path)
    rank = node.start_rank()
    rank.record(allocated=50 * GIB)
    node.poll()
    node.agent.close()
    node.end(rank)
    rank.path.unlink()
    later = node.start_rank(process=ProcessId(PID.pid, PID.start_ticks + 1))
    later.record(allocated=4 * GIB)
    again = started(tmp_path, after=node)
    again.poll()
    (view,) = again.agent.view().ranks
    assert view.allocated_highest_bytes == 4 * GIB


def test_a_process_that_replaced_its_ring_is_judged_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = started(tmp_path)
    rank = node.start_rank()
    rank.record(allocated=50 * GIB)
    node.poll()
    node.agent.close()
    rank.path.unlink()
    FakeRank(node.run_dir, node.clock, created_ns=2).record(allocated=4 * GIB)
    again = started(tmp_path, after=node)
    with caplog.at_level(logging.WARNING, logger="tidegauge"):
        again.poll()
    (view,) = again.agent.view().ranks
    assert view.allocated_highest_bytes == 4 * GIB
    assert "is judged anew" in caplog.text


def test_files_of_another_boot_are_not_used_and_deleted(tmp_path: Path) -> None:
    node = started(tmp_path)
    leak(node.start_rank(), 0)
    node.poll()
    node.agent.close()
    state = state_in(tmp_path, boot_id="boot-2")
    assert state.rank(PID) is None
    assert not state.node()
    state.keep_ranks((), _no_state, 0.0)
    assert state.wait_written(10.0)
    assert not list((tmp_path / "agent" / "ranks").iterdir())


def _no_state(_: ProcessId) -> Mapping[str, Any]:
    return {}


def kept(folder: Path, *processes: ProcessId) -> None:
    state = state_in(folder)
    state.keep_node({"counts": {}, "budgets": None})
    state.close(processes, lambda process: {"pid": process.pid}, 0.0)


def test_what_was_kept_is_read_once(tmp_path: Path) -> None:
    kept(tmp_path, PID)
    state = state_in(tmp_path)
    assert state.rank(PID) == {"pid": PID.pid}
    assert state.rank(PID) is None


@pytest.mark.parametrize("how", ["newer", "damaged", "cut", "empty"])
def test_newer_and_damaged_files_are_put_aside_with_one_line(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    processes = [ProcessId(pid, 1) for pid in range(1, 4)]
    kept(tmp_path, *processes)
    for process in processes:
        path = tmp_path / "agent" / "ranks" / f"{process.pid}-1.json"
        raw = path.read_bytes()
        head, _, body = raw.partition(b"\n")
        newer = json.dumps({**json.loads(head), "format": FORMAT + 1}).encode() + b"\n" + body
        changes = {"newer": newer, "damaged": raw.replace(b'"pid":', b'"piD":'), "cut": raw[:-3], "empty": b""}
        path.write_bytes(changes[how])
    with caplog.at_level(logging.WARNING, logger="tidegauge"):
        state = state_in(tmp_path)
    assert [state.rank(process) for process in processes] == [None] * 3
    assert len(caplog.records) == 1
    assert "put aside" in caplog.text
    assert len(list((tmp_path / "agent" / "aside").iterdir())) == 3


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/passwd", path)])
@pytest.mark.timeout(20)
def test_what_is_no_regular_file_is_put_aside_unread(
    tmp_path: Path, make: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A FIFO held up every agent that started."""
    (tmp_path / "ranks").mkdir()
    make(tmp_path / "ranks/7-7.json")
    state = AgentState(tmp_path, boot_id="b1")
    assert state.rank(ProcessId(7, 7)) is None
    assert "7-7.json" in caplog.text
    assert not os.path.lexists(tmp_path / "ranks/7-7.json")


def test_state_that_has_another_shape_costs_the_state_and_not_the_rank(tmp_path: Path) -> None:
    kept(tmp_path, PID)
    node = started(tmp_path)
    leak(node.start_rank(), 0)
    node.poll()
    (view,) = node.agent.view().ranks
    assert view.steps == STEPS_PER_POLL - 1


def test_state_of_ranks_that_are_gone_is_deleted(tmp_path: Path) -> None:
    gone, there = ProcessId(1, 1), ProcessId(2, 2)
    kept(tmp_path, gone, there)
    state = state_in(tmp_path)
    state.rank(there)
    files = tmp_path / "agent" / "ranks"
    state.keep_ranks([there], _no_state, 0.0)
    assert state.wait_written(10.0)
    assert {path.name for path in files.iterdir()} == {"1-1.json", "2-2.json"}  # it may be found yet
    state.keep_ranks([there], _no_state, UNCLAIMED_S)
    assert state.wait_written(10.0)
    assert {path.name for path in files.iterdir()} == {"2-2.json"}


def test_ranks_are_saved_no_more_often_than_their_share_of_time_allows(tmp_path: Path) -> None:
    cpu_s = [0.0]
    saved: list[ProcessId] = []

    def state_of(process: ProcessId) -> Mapping[str, Any]:
        cpu_s[0] += 0.002
        saved.append(process)
        return {}

    state = AgentState(tmp_path, boot_id="boot-1", cpu_s=lambda: cpu_s[0])
    processes = [ProcessId(pid, 1) for pid in range(500)]
    polls = 2400
    for poll in range(polls):
        state.keep_ranks(processes, state_of, poll * 0.5)
    assert cpu_s[0] <= 1.1 * TIME_SHARE * polls * 0.5
    assert set(saved) == set(processes)  # each has its turn
    state.close((), state_of, 0.0)


def test_a_rank_is_saved_every_twenty_seconds(tmp_path: Path) -> None:
    now_s, saved_s = 0.0, []
    state = state_in(tmp_path)

    def state_of(_: ProcessId) -> Mapping[str, Any]:
        saved_s.append(now_s)
        return {}

    while now_s < 5 * SAVE_EVERY_S:
        state.keep_ranks([PID], state_of, now_s)
        now_s += 0.5
    assert saved_s == [SAVE_EVERY_S * index for index in range(5)]
    state.close((), _no_state, now_s)


def test_what_is_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_state, "MAX_BYTES", 1000)
    state = state_in(tmp_path)
    processes = [ProcessId(pid, 1) for pid in range(10)]
    state.close(processes, lambda _: {"much": "x" * 100}, 0.0)
    files = list((tmp_path / "agent" / "ranks").iterdir())
    assert 0 < sum(path.stat().st_size for path in files) <= 1000


def test_a_folder_that_cannot_be_written_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "agent").write_text("in the way")
    node = started(tmp_path)
    leak(node.start_rank(), 0)
    with caplog.at_level(logging.WARNING, logger="tidegauge"):
        for _ in range(50):
            node.poll()
        node.agent.close()
    assert len([line for line in caplog.messages if "cannot be written" in line]) == 1
    assert node.agent.view().ranks


def test_hourly_limits_on_evidence_hold_over_a_restart() -> None:
    budget, again = EvidenceBudget(), EvidenceBudget()
    for _ in range(PIECES_OF_TENANT):
        assert budget.take(SOMEBODY, 10.0)
    again.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    assert not again.take(SOMEBODY, 20.0)
    assert again.take(SOMEBODY, 3611.0)


def test_hourly_limits_on_profiles_hold_over_a_restart() -> None:
    budget, again = ProfileBudget(), ProfileBudget()
    budget.spend(SOMEBODY, CPU_S_OF_TENANT, 10.0)
    again.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    assert again.why_not(SOMEBODY, 20.0) == budget.why_not(SOMEBODY, 20.0) is not None


def test_readings_for_evidence_go_on_after_a_restart() -> None:
    view = rank_view()
    readings, again = RankReadings(), RankReadings()
    for at_s in range(0, 600, 5):
        readings.take([view], (), float(at_s))
    again.load_state_dict(view.process, json.loads(json.dumps(readings.state_dict(view.process))))
    again.take((), (), 600.0)  # it is found a poll later
    for each in (readings, again):
        each.take([view], (), 605.0)
    assert again.of(view.process) == readings.of(view.process)


def test_a_rank_that_cannot_be_profiled_is_not_asked_again_after_a_restart() -> None:
    view = rank_view()
    policy, again = ProfilePolicy(), ProfilePolicy()
    policy.wanted([view], {}, 0.0)
    policy.refused(view.process, 0.0, for_good=True)
    again.load_state_dict(view.process, json.loads(json.dumps(policy.state_dict(view.process))))
    again.wanted([view], {}, 10.0)
    assert again.state_dict(view.process) == policy.state_dict(view.process)


def test_node_file_that_gets_shorter_is_read_as_it_was_written_last(tmp_path: Path) -> None:
    state = state_in(tmp_path)
    for reasons in range(20, 0, -1):
        state.keep_node({"counts": {"skipped": dict.fromkeys(map(str, range(reasons)), reasons)}})
        assert state.wait_written(10.0)
    assert state_in(tmp_path).node() == {"counts": {"skipped": {"0": 1}}}
