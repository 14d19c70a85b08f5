"""A bound that evidence found, on its node: held against each poll's readings, kept over the agent's next life."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fake_node import PID, FakeNode, gpu_reading
from rank_windows import HOLDER, LATE_STEP, MIB, leave_window, window
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound
from tidegauge.core.evidence.rank_evidence import ContainerBound, HolderSearch
from tidegauge.core.peer_bounds import PeerBound
from tidegauge.core.verdicts import Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import RankView
from tidegauge.settings import Settings

LEVEL_BYTES = 104 * MIB
"""Live at the late snapshot."""
BOUND = ContainerBound(0, "deque", 40, 140, 30, 30 * MIB, MIB, MIB)
BOUNDED = HolderSearch((HOLDER._replace(bound=BOUND, container="deque"),), 30 * MIB, 30 * MIB)
DANGER = Verdict(
    LeakState.LEAK, Severity.CRITICAL, Signal.ALLOCATED, onset_step=90, grown_bytes=100 * MIB, headroom_eaten=0.25,
    seconds_to_oom=Band(60, 90, 120),
)  # fmt: skip
"""300 MiB are free."""


class Stage:
    def __init__(self, scratch: Path, cleanup: ExitStack) -> None:
        self.scratch = scratch
        self._cleanup = cleanup
        self.node = self.start_agent()
        self.rank = self.node.start_rank()
        self.read(LATE_STEP)

    def start_agent(self) -> FakeNode:
        settings = Settings.model_validate({"cluster": "test", "state_dir": self.scratch / "state"})
        node = FakeNode(self.scratch / "run", readings=[gpu_reading(processes={4242: 7 << 30})], evidence=settings)
        self._cleanup.enter_context(closing(node.agent))
        return node

    def restart_agent(self) -> None:
        self.node.agent.close()
        processes, self.node = self.node.procs.facts, self.start_agent()
        self.node.poll()  # before it has found the rank
        self.node.procs.facts = processes

    def find(self, search: HolderSearch = BOUNDED, evidence_id: str = "auto-7") -> None:
        """A window is over, and its evidence made."""
        leave_window(self.rank.path.parent, PID, window(PID, search=search, evidence_id=evidence_id))
        self.node.poll(2.0)
        assert self.node.collector is not None
        assert self.node.collector.wait_idle(60.0)

    def read(self, step: int, allocated_bytes: int = LEVEL_BYTES, verdict: Verdict = DANGER) -> RankView:
        """The rank as it is shown after a step."""
        self.rank.record(step=step, allocated=allocated_bytes)
        self.node.poll()
        for detector in self.node.detectors:
            detector.verdict = verdict
        self.rank.record(step=step, allocated=allocated_bytes)
        self.node.poll()
        [view] = self.node.agent.view().ranks
        return view


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as cleanup:
        yield Stage(tmp_path, cleanup)


def test_growth_into_a_deque_that_fits_is_shown_without_danger(stage: Stage) -> None:
    assert stage.read(135).verdict.severity is Severity.CRITICAL
    stage.find()
    view = stage.read(136)
    assert view.bound is not None
    assert (view.bound.state, view.bound.end_bytes.likely) == (BoundState.HOLDS, LEVEL_BYTES + 100 * MIB)
    assert (view.verdict.state, view.verdict.severity, view.verdict.seconds_to_oom) == (
        LeakState.LEAK, Severity.WARNING, None,
    )  # fmt: skip
    assert view.summary().bound == view.bound


def test_a_deque_that_does_not_fit_is_as_dangerous_as_before(stage: Stage) -> None:
    stage.find()
    for step in range(136, 146):
        view = stage.read(step, verdict=DANGER._replace(headroom_eaten=0.8))
    assert view.bound is not None
    assert view.bound.state is BoundState.TOO_LARGE
    assert view.verdict.severity is Severity.CRITICAL


def test_memory_that_grows_beyond_the_end_is_dangerous_again_and_stays_so(stage: Stage) -> None:
    stage.find()
    for step in range(136, 150):
        view = stage.read(step, LEVEL_BYTES + 200 * MIB)
    assert view.bound is not None
    assert view.bound.state is BoundState.REFUTED
    assert view.verdict == DANGER
    assert stage.read(150).verdict == DANGER


@pytest.mark.parametrize("refuted", [False, True])
def test_an_agent_that_starts_anew_knows_it_still(stage: Stage, refuted: bool) -> None:
    stage.find()
    for step in range(136, 150):
        stage.read(step, LEVEL_BYTES + (200 * MIB if refuted else 0))
    stage.restart_agent()
    view = stage.read(150)
    assert view.bound is not None
    assert view.bound.state is (BoundState.REFUTED if refuted else BoundState.HOLDS)


def test_the_newest_window_counts(stage: Stage) -> None:
    stage.find()
    stage.find(HolderSearch((HOLDER,), 30 * MIB, 30 * MIB), "auto-8")
    view = stage.read(136)
    assert (view.bound, view.verdict) == (None, DANGER)


def test_a_file_that_was_spoilt_costs_the_bounds_only(stage: Stage) -> None:
    stage.find()
    (stage.scratch / "state" / "evidence" / "bounds.json").write_bytes(b"[{")
    stage.restart_agent()
    assert stage.read(150).bound is None


def test_a_peers_bound_takes_the_danger_away_for_as_long_as_the_coordinator_lends_it(stage: Stage) -> None:
    lent = GrowthBound(
        "`window` (deque, train.py)", "deque", 40, 140, LATE_STEP, LEVEL_BYTES, Band(*[100.0 * MIB] * 3),
        BoundState.HOLDS, total_bytes=300.0 * MIB, of_rank=7,
    )  # fmt: skip
    stage.node.agent.hear_of_bounds([PeerBound(stage.read(135).process, lent)])
    view = stage.read(136)
    assert (view.bound, view.verdict.severity, view.verdict.seconds_to_oom) == (lent, Severity.WARNING, None)
    outgrown = DANGER._replace(grown_bytes=400 * MIB)
    assert stage.read(137, verdict=outgrown).verdict == outgrown
    stage.node.agent.hear_of_bounds([])
    assert stage.read(138).verdict == DANGER
