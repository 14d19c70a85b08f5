"""Memory profiles on one node: when a rank is asked, what becomes of its recording, and what a restart leaves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fake_node import GIB, PID, FakeNode, gpu_reading, identity
from rank_profiles import STEADY, advised_profile, leave_recording, steady_profile
from rank_windows import MIB, put, recording
from tidegauge.agent.evidence.budget import PIECES_OF_TENANT
from tidegauge.agent.evidence.node_profiles import NodeProfiles
from tidegauge.agent.evidence.profile_budget import MIN_CPU_S, ProfileBudget
from tidegauge.agent.evidence.profiled_ranks import ProfiledRanks
from tidegauge.agent.evidence.waiting import WaitingProfiles
from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.evidence.request import Window, evidence_request
from tidegauge.core.ids import GlobalRank, JobId, JobKey, ProcessId
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_profile import PROFILE_WARMED_UP, RankProfile
from tidegauge.core.profile.rank_recording import OwnedTensor
from tidegauge.core.profile.request import profile_request
from tidegauge.core.profile_policy import DEFAULT_RULES
from tidegauge.core.run_dirs import PROFILE_SNAPSHOT_SUFFIX, snapshot_name
from tidegauge.settings import Settings

DONE_S = 60.0


@dataclass
class FakeSockets:
    """Ranks' answers; remembers what was asked."""

    answer: Mapping[str, Any] = field(default_factory=lambda: {"ok": True})
    unreachable: bool = False
    asked: list[tuple[ProcessSocket, Mapping[str, Any]]] = field(default_factory=list)

    def ask(self, to: ProcessSocket, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        self.asked.append((to, request))
        if self.unreachable:
            raise NotAskedError("pid 4242 did not answer within 2 s")
        return dict(self.answer)


class Stage:
    """One node with a training rank at level auto, and the agents that it had one after the other."""

    def __init__(self, scratch: Path, cleanup: ExitStack, budget: ProfileBudget | None = None) -> None:
        self.scratch = scratch
        self.state = scratch / "state"
        self.sockets = FakeSockets()
        self.budget = budget
        self._cleanup = cleanup
        self._settings = Settings.model_validate({"cluster": "test", "state_dir": self.state})
        self.node = self.new_agent()
        self.rank = self.node.start_rank(who=identity(profile="auto"))
        self.train()

    def new_agent(self) -> FakeNode:
        profiles = NodeProfiles(
            WaitingProfiles(self.state / "profiles"), ProfiledRanks(self.state / "profiles"),
            budget=self.budget, ask_socket=self.sockets.ask, new_id=lambda: "profile-7",
        )  # fmt: skip
        readings = [gpu_reading(processes={4242: 7 << 30, 99: 1 << 30})]
        node = FakeNode(self.scratch / "run", readings=readings, evidence=self._settings, profiles=profiles)
        self._cleanup.enter_context(closing(node.agent))
        return node

    @property
    def beside(self) -> Path:
        return self.rank.path.parent

    def train(self, *, steps: int = 1, peak: int = 4 * GIB) -> None:
        for _ in range(steps):
            self.rank.record(allocated=peak)
        self.poll(0.5)

    def warm_up(self, *, peak: int = 4 * GIB) -> None:
        self.train(steps=DEFAULT_RULES.steady_steps, peak=peak)
        self.poll(DEFAULT_RULES.steady_s)

    def poll(self, after_s: float = 2.0) -> None:
        poll(self.node, after_s)

    @property
    def problem(self) -> str | None:
        """Why the rank has no new profile."""
        [view] = self.node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None).ranks
        return view.profile_problem

    def take(self) -> tuple[RankProfile, ...]:
        self.poll()
        return waiting(self.node)


def poll(node: FakeNode, after_s: float = 2.0) -> None:
    node.poll(after_s)
    assert node.collector is not None
    assert node.collector.wait_idle(DONE_S)


def waiting(node: FakeNode) -> tuple[RankProfile, ...]:
    return node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None).profiles


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def stage(tmp_path: Path, cleanup: ExitStack) -> Stage:
    return Stage(tmp_path, cleanup)


def test_a_rank_past_its_warm_up_is_asked_once(stage: Stage) -> None:
    stage.warm_up()
    [(to, request)] = stage.sockets.asked
    assert (to.process, to.uid) == (PID, os.getuid())
    assert request == {
        "command": "profile", "id": "profile-7", "reason": PROFILE_WARMED_UP, "steps": 2, "most_s": 300.0,
        "max_events": 40_000,
    }  # fmt: skip
    leave_recording(stage.beside, PID)
    stage.poll()
    stage.poll(86_400.0)
    assert len(stage.sockets.asked) == 1


def test_a_recording_becomes_a_profile_with_its_snapshot(stage: Stage) -> None:
    leave_recording(stage.beside, PID)
    [profile] = stage.take()
    assert (profile.profile_id, profile.job, profile.rank) == ("profile-7", JobKey("job-1", 0, os.getuid()), 0)
    assert (profile.hostname, profile.process, profile.ended_step) == ("node-a", PID, 102)
    assert profile.by_category == steady_profile().peak.by_category
    assert replace(profile.profile(), advice=None) == steady_profile()
    [ref] = profile.snapshots
    assert (stage.state / "snapshots" / ref.key).stat().st_size == ref.stored_bytes
    assert (ref.step, profile.longest_stall_s) == (102, 0.02)


def test_a_profile_has_what_nvml_says_beside_pytorch_and_advice_for_what_is_left(stage: Stage) -> None:
    stage.train()
    stage.train()
    leave_recording(stage.beside, PID)
    [profile] = stage.take()
    assert profile.world_size == 2
    assert profile.process_outside_bytes == 7 * GIB - stage.node.agent.view().ranks[0].reserved_bytes
    assert profile.other_processes_bytes == 1 * GIB
    left = 80 * GIB - 1 * GIB - profile.process_outside_bytes
    assert profile.profile() == advised_profile(ranks=2, limit_bytes=left)


def test_a_profile_has_what_other_watched_jobs_hold_on_the_gpu(stage: Stage) -> None:
    held = {4242: 7 * GIB, 99: 1 * GIB, 100: 2 * GIB, 101: 3 * GIB}
    stage.node.gpus.readings = (gpu_reading(processes=held),)
    second = identity(rank=GlobalRank(1))
    for pid, who in ((100, second), (101, identity(job_id=JobId("job-2")))):
        stage.node.start_rank(process=ProcessId(pid, 1), who=who).record()
    stage.train()
    leave_recording(stage.beside, PID)
    [profile] = stage.take()
    assert (profile.other_processes_bytes, profile.other_jobs_bytes) == (6 * GIB, 3 * GIB)


def test_what_other_processes_hold_is_not_known_where_the_driver_does_not_say_it_of_each(stage: Stage) -> None:
    stage.node.gpus.readings = (gpu_reading(processes={4242: 7 << 30, 99: None}),)
    leave_recording(stage.beside, PID)
    [profile] = stage.take()
    assert profile.other_processes_bytes is None


def test_a_peak_that_the_recorded_steps_do_not_reach_is_said(stage: Stage) -> None:
    leave_recording(stage.beside, PID)
    [profile] = stage.take()
    assert profile.problems == (
        "the rank held up to 4.0 GiB before, more than in the recorded steps: that peak is not among them",
    )
    stage.rank.record(allocated=272 * MIB, allocated_peak_bytes=272 * MIB)
    leave_recording(stage.beside, PID, recording(PID, recording_id="profile-8", boundaries_us=(), owned=(), roots=None))
    assert stage.take()[-1].problems == ()


def test_tensors_that_the_rank_names_have_their_category(stage: Stage) -> None:
    end = open_trace(STEADY).end
    assert end is not None
    block = max((block for segment in end for block in segment.blocks), key=lambda one: one.size_bytes)
    owned = (OwnedTensor(block.address, block.size_bytes, Category.BUFFERS, "cache"),)
    leave_recording(stage.beside, PID, recording(PID, boundaries_us=(), owned=owned, roots=None))
    [profile] = stage.take()
    assert profile.by_category[Category.BUFFERS] == block.requested_bytes


def test_events_before_the_first_whole_step_are_left_out(stage: Stage) -> None:
    trace = open_trace(STEADY)
    leave_recording(stage.beside, PID, recording(PID, boundaries_us=(trace.time_us[1000],), owned=(), roots=None))
    [profile] = stage.take()
    assert profile.profile().events == len(trace) - trace.time_us.index(trace.time_us[1000])


def test_the_rank_shows_what_its_memory_is_made_of_until_it_has_ended(stage: Stage) -> None:
    leave_recording(stage.beside, PID)
    stage.poll()
    stage.poll()
    [view] = stage.node.agent.view().ranks
    assert view.profile_bytes == steady_profile().peak.by_category
    after = stage.new_agent()
    after.procs.facts = stage.node.procs.facts
    poll(after)
    poll(after)
    [view] = after.agent.view().ranks
    assert view.profile_bytes == steady_profile().peak.by_category


def test_a_restarted_agent_does_not_ask_again(stage: Stage) -> None:
    leave_recording(stage.beside, PID)
    stage.poll()
    before, stage.node = stage.node, stage.new_agent()
    stage.node.procs.facts = before.procs.facts
    stage.rank.clock = stage.node.clock
    stage.train()
    stage.warm_up()
    assert stage.sockets.asked == []


def test_a_rank_whose_peak_rose_is_asked_again(stage: Stage) -> None:
    leave_recording(stage.beside, PID)
    stage.poll()
    stage.poll()
    stage.poll(DEFAULT_RULES.again_s)
    stage.train(peak=5 * GIB)
    stage.warm_up(peak=5 * GIB)
    assert [request["reason"] for _, request in stage.sockets.asked] == ["peak rose"]


def test_a_recording_that_failed_says_why_and_is_tried_later(stage: Stage) -> None:
    stage.warm_up()
    said = recording(PID, snapshot_file=None, boundaries_us=(), owned=(), problem="the job records a history itself")
    leave_recording(stage.beside, PID, said)
    [profile] = stage.take()
    assert (profile.has_profile, profile.problems) == (False, ("the job records a history itself",))
    stage.poll()
    assert stage.problem == "failed: the job records a history itself"
    stage.poll(DEFAULT_RULES.refused_again_s)
    assert len(stage.sockets.asked) == 2
    assert stage.problem is None
    leave_recording(stage.beside, PID, recording(PID, recording_id="profile-8", boundaries_us=(), owned=(), roots=None))
    assert stage.take()[-1].has_profile
    stage.poll()
    assert stage.problem is None


@pytest.mark.parametrize("answer", [{"error": "busy", "kind": "busy"}, None])
def test_a_rank_that_does_not_record_now_is_asked_later(stage: Stage, answer: Mapping[str, Any] | None) -> None:
    stage.sockets.answer, stage.sockets.unreachable = answer or {}, answer is None
    stage.warm_up()
    assert stage.problem is None
    stage.poll()
    stage.poll(DEFAULT_RULES.refused_again_s / 2)
    assert len(stage.sockets.asked) == 1
    assert stage.problem == f"refused: {'pid 4242 did not answer within 2 s' if answer is None else 'busy'}"
    stage.poll(DEFAULT_RULES.refused_again_s / 2)
    assert len(stage.sockets.asked) == 2


@pytest.mark.parametrize("answer", [{"error": "no CUDA", "kind": "unable"}, {"error": "no such command: profile"}])
def test_a_rank_that_cannot_record_is_not_asked_again(stage: Stage, answer: Mapping[str, Any]) -> None:
    stage.sockets.answer = answer
    stage.warm_up()
    stage.poll(86_400.0)
    assert len(stage.sockets.asked) == 1
    assert stage.problem == f"given up: {answer['error']}"


def test_a_rank_that_the_coordinator_asks_for_evidence_is_left_alone_meanwhile(stage: Stage) -> None:
    request = evidence_request("auto-1", EvidenceReason.SUSPECTED, Window())
    order = Order("o1", OrderTo.RANK, PID, os.getuid(), request, 1.0)
    stage.node.agent.carry_out(order)
    stage.warm_up()
    assert stage.sockets.asked == []
    stage.poll(Window().most_s + 90.0)
    assert len(stage.sockets.asked) == 1


@pytest.mark.parametrize(
    ("said", "snapshot", "reason"),
    [
        (b"{}", None, "evidence_content"),
        (b"[" * 1000, None, "evidence_content"),
        (b"x" * (5 << 20), None, "evidence_too_large"),
        (None, b"nonsense", "evidence_content"),
    ],
)
def test_files_that_are_no_recording_are_refused(
    stage: Stage, said: bytes | None, snapshot: bytes | None, reason: str
) -> None:
    leave_recording(stage.beside, PID, said, snapshot)
    pieces = stage.take()
    assert not any(one.has_profile for one in pieces)
    stage.poll()
    assert stage.node.agent.view().rings_skipped[reason] == 1
    assert (stage.problem or "").startswith("failed: ")


def test_a_recording_names_no_file_of_another_process(stage: Stage) -> None:
    other = snapshot_name(ProcessId(1, 2), PROFILE_SNAPSHOT_SUFFIX)
    leave_recording(stage.beside, PID, recording(PID, snapshot_file=other))
    assert stage.take() == ()


def test_a_link_in_place_of_the_snapshot_is_not_followed(stage: Stage, tmp_path: Path) -> None:
    leave_recording(stage.beside, PID)
    name = snapshot_name(PID, PROFILE_SNAPSHOT_SUFFIX)
    content = (stage.beside / name).read_bytes()
    (stage.beside / name).unlink()
    (stage.beside / name).symlink_to(put(tmp_path, "elsewhere", content))
    assert stage.take() == ()


def test_where_nothing_was_recorded_only_the_reason_is_told(stage: Stage) -> None:
    why = "no training step ended within 300 s"
    said = recording(PID, snapshot_file=None, boundaries_us=(), owned=(), is_complete=False, problem=why)
    leave_recording(stage.beside, PID, said)
    [profile] = stage.take()
    assert (profile.has_profile, profile.problems) == (False, (why,))


def leave_recordings(stage: Stage, numbers: range) -> int:
    """Recordings without a snapshot, one after the other; how many were taken."""
    taken = 0
    for number in numbers:
        said = recording(PID, recording_id=f"p{number}", snapshot_file=None, boundaries_us=(), owned=())
        leave_recording(stage.beside, PID, said)
        for profile in stage.take():
            taken += 1
            stage.node.agent.hear_of_evidence((), None, [profile.profile_id])
    return taken


def test_recordings_count_by_processor_time_apart_from_evidence(stage: Stage) -> None:
    assert leave_recordings(stage, range(PIECES_OF_TENANT + 3)) == PIECES_OF_TENANT + 3


def test_a_rank_is_not_asked_when_the_hour_of_its_tenant_is_used_up(tmp_path: Path, cleanup: ExitStack) -> None:
    stage = Stage(tmp_path, cleanup, ProfileBudget(of_tenant_s=4 * MIN_CPU_S))
    order = Order("order-1", OrderTo.RANK, PID, os.getuid(), profile_request("profile-1", "asked"), 15.0)
    assert leave_recordings(stage, range(3)) == 3
    assert "memory profiles of" not in (stage.node.agent.carry_out(order).error or "")
    assert leave_recordings(stage, range(3, 11)) == 3, (
        "what was asked for before is still read, up to half as much again"
    )
    stage.warm_up()
    assert stage.sockets.asked == []
    refused = stage.node.agent.carry_out(order).error or ""
    assert refused.startswith(f"memory profiles of the ranks of uid {os.getuid()} have had 1 s of processor time")
    assert re.search("again in 5[0-9] min", refused)
    assert stage.problem == f"failed: the ranks of uid {os.getuid()} have written more than is read within an hour"
    stage.poll()
    assert stage.node.agent.view().rings_skipped["evidence_too_many"] == 5 + 1
    stage.poll(3600.0)
    assert "memory profiles of" not in (stage.node.agent.carry_out(order).error or "")


def test_a_rank_that_is_put_off_says_so_until_it_is_asked(tmp_path: Path, cleanup: ExitStack) -> None:
    stage = Stage(tmp_path, cleanup, ProfileBudget(of_tenant_s=1.0))
    assert stage.budget is not None
    stage.budget.spend(Tenant(os.getuid()), 2.0, stage.node.clock.monotonic_ns() / 1e9)
    stage.warm_up()
    assert (stage.problem or "").startswith(f"put off: memory profiles of the ranks of uid {os.getuid()} have had 1 s")
    stage.poll(3600.0)
    assert (len(stage.sockets.asked), stage.problem) == (1, None)


def test_a_profile_costs_its_processor_time_and_a_refused_file_the_least() -> None:
    budget, one, other = ProfileBudget(of_tenant_s=10.0, of_node_s=15.0), Tenant(1), Tenant(2)
    for at_s in range(4):
        budget.spend(one, 2.4, float(at_s))
    assert budget.why_not(one, 10.0) is None
    budget.spend(one, 0.0, 4.0)
    budget.spend(one, 0.2, 5.0)
    assert (budget.why_not(one, 10.0) or "").endswith("again in 60 min"), "the first 2.4 s end then"
    assert budget.why_not(other, 10.0) is None
    budget.spend(other, 6.0, 20.0)
    assert "of all ranks have had 15 s" in (budget.why_not(other, 20.0) or "")
    assert budget.why_not(other, 3600.0) is None


def test_a_profile_is_reported_until_it_is_kept(stage: Stage) -> None:
    leave_recording(stage.beside, PID)
    [profile] = stage.take()
    stage.node.agent.hear_of_evidence([profile.profile_id], None, ["another"])
    assert waiting(stage.node) == (profile,)
    assert waiting(stage.new_agent()) == (profile,)
    stage.node.agent.hear_of_evidence((), None, [profile.profile_id])
    assert waiting(stage.node) == ()
    assert stage.take() == ()
