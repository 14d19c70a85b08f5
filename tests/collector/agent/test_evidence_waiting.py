"""Evidence between its making and the coordinator's word, over restarts and on disks that fail; readings beside it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from evidence_values import evidence
from sample_views import GIB, gpu_view, rank_view
from tidegauge.agent.evidence.readings import MAX_POINTS, RankReadings, growth_since
from tidegauge.agent.evidence.waiting import MAX_PIECES_PER_REPORT, MAX_WAITING_PER_TENANT, WaitingEvidence
from tidegauge.core.evidence.cause_input import MemoryGrowth
from tidegauge.core.jobs.tenants import Tenant


def test_a_piece_outlives_the_agent(tmp_path: Path) -> None:
    WaitingEvidence(tmp_path / "evidence").add(evidence())
    assert WaitingEvidence(tmp_path / "evidence").pieces() == (evidence(),)
    assert stat.S_IMODE((tmp_path / "evidence").stat().st_mode) == 0o700


def test_waiting_evidence_drops_acknowledged_pieces_but_remembers_them_as_taken(tmp_path: Path) -> None:
    waiting = WaitingEvidence(tmp_path)
    waiting.add(evidence())
    waiting.pieces()
    waiting.kept([evidence().evidence_id])
    again = WaitingEvidence(tmp_path)
    assert again.pieces() == ()
    assert again.was_taken(evidence().process, evidence().evidence_id)
    assert not again.was_taken(evidence(2).process, evidence().evidence_id)


def test_waiting_evidence_removes_only_reported_pieces_when_acknowledged(tmp_path: Path) -> None:
    """Another job may have written the same id."""
    waiting = WaitingEvidence(tmp_path)
    for rank in range(MAX_PIECES_PER_REPORT):
        waiting.add(evidence(rank))
    waiting.pieces()
    twin = evidence(77, evidence_id="auto-1")
    waiting.add(twin)
    waiting.kept([f"auto-{rank}" for rank in range(MAX_PIECES_PER_REPORT)])
    assert waiting.pieces() == (twin,)


def test_waiting_evidence_limits_pieces_per_tenant(tmp_path: Path) -> None:
    waiting = WaitingEvidence(tmp_path)
    uid = evidence().job.uid
    for rank in range(MAX_WAITING_PER_TENANT):
        assert waiting.has_room(Tenant(uid))
        waiting.add(evidence(rank))
    assert not waiting.has_room(Tenant(uid))
    assert waiting.has_room(Tenant(uid + 1))


def test_a_damaged_file_costs_its_piece_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    waiting = WaitingEvidence(tmp_path)
    waiting.add(evidence(1))
    waiting.add(evidence(2))
    damaged = sorted(tmp_path.glob("*.evidence"))[0]
    damaged.write_bytes(b'{"evidence_id": 7')
    (tmp_path / "half.evidence.abcd.new").write_bytes(b"{")
    again = WaitingEvidence(tmp_path)
    assert len(again.pieces()) == 1
    assert str(damaged) in caplog.text
    assert len(list(tmp_path.glob("*.evidence*"))) == 1


def test_a_disk_that_cannot_be_written_costs_the_outliving_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in the way").write_text("a file")
    waiting = WaitingEvidence(tmp_path / "in the way" / "evidence")
    waiting.add(evidence(1))
    waiting.add(evidence(2))
    assert waiting.pieces() == (evidence(1), evidence(2))
    assert caplog.text.count("kept in memory only") == 1


def test_keys_of_waiting_snapshots_are_known(tmp_path: Path) -> None:
    waiting = WaitingEvidence(tmp_path)
    waiting.add(evidence())
    assert waiting.snapshot_keys() == {ref.key for ref in evidence().snapshots}


# --- readings


def test_growth_is_counted_from_the_step_that_it_began_at() -> None:
    readings = RankReadings()
    for step in range(0, 100, 10):
        view = rank_view(step=step, allocated_bytes=GIB + step, children_bytes=None)
        readings.take([view], [gpu_view(other_processes_bytes=5 * step)], now_s=step)
    growth = growth_since(readings.of(view.process), 50)
    assert growth == MemoryGrowth(
        allocated_bytes=40, reserved_bytes=0, nontorch_bytes=0, inactive_split_bytes=0, host_bytes=0, alloc_retries=0,
        other_processes_bytes=200, children_bytes=None,
    )  # fmt: skip


def test_before_the_first_reading_growth_is_counted_from_that() -> None:
    readings = RankReadings()
    for step in (40, 50):
        readings.take([rank_view(step=step, allocated_bytes=GIB + step)], [], now_s=step)
    assert growth_since(readings.of(rank_view().process), 3).allocated_bytes == 10
    assert growth_since((), 3) == MemoryGrowth()


@pytest.mark.slow
def test_a_long_life_takes_no_more_memory_and_still_reaches_back_to_its_beginning() -> None:
    readings = RankReadings()
    for step in range(100_000):
        readings.take([rank_view(step=step, allocated_bytes=step)], [], now_s=float(step))
    found = readings.of(rank_view().process)
    assert len(found) <= MAX_POINTS + 2
    assert growth_since(found, 0).allocated_bytes == 99_999


def test_a_rank_that_is_gone_is_forgotten() -> None:
    readings = RankReadings()
    readings.take([rank_view()], [], now_s=0.0)
    readings.take([], [], now_s=1.0)
    assert readings.of(rank_view().process) == ()
