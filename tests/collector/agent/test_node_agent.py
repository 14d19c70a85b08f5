"""The agent as a whole: real ring files, fake GPUs, processes and time."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_node import GIB, MIB, UUID0, UUID1, FakeNode, FakeRank, gpu_reading, identity
from open_files import open_below
from tidegauge.agent.container_run_dirs.discovery import Containers
from tidegauge.agent.kubernetes.pods import PATIENCE_S
from tidegauge.agent.node_agent import STALE_AFTER_S, StaleViewError, open_node_agent
from tidegauge.agent.ports import ProcessFacts
from tidegauge.agent.rings.discovery import RingPlace
from tidegauge.agent.rings.new_rings import MAX_RANKS_PER_TENANT
from tidegauge.agent.rings.reader import MAX_SANE
from tidegauge.core.detector import RankDetector
from tidegauge.core.host_memory import HostMemory, HostProcess
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup
from tidegauge.core.jobs.launches import LaunchRecord, LaunchState, encode_launch_record
from tidegauge.core.jobs.rank_groups import NameOfGroup
from tidegauge.core.ring_layout import HEADER_BYTES, LAYOUT_VERSION, MAGIC
from tidegauge.core.run_dirs import launch_name
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.core.verdicts import OK, Band, LeakState, Signal, Verdict
from tidegauge.core.views import RankView
from tidegauge.rate_limited_log import LINES_PER_MINUTE
from tidegauge.settings import Settings


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "run", readings=[gpu_reading(processes={4242: 7 * GIB, 99: 3 * GIB})])


def only_rank(node: FakeNode) -> RankView:
    [rank] = node.agent.view().ranks
    return rank


def settle(node: FakeNode, rank: FakeRank, polls: int = 3) -> None:
    """Enough polls with a record each for nontorch to be known."""
    for _ in range(polls):
        rank.record()
        node.poll()


def test_before_the_first_poll_the_view_is_empty(node: FakeNode) -> None:
    view = node.agent.view()
    assert (view.hostname, view.cluster, view.ranks, view.gpus) == ("node-a", "test", (), ())


def test_shows_a_rank_as_its_last_record_and_the_kernel_say(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    record = rank.record(step=40, allocated=5 * GIB, reserved=6 * GIB, active_bytes=None, alloc_retries=2)
    node.poll()
    view = only_rank(node)
    assert view.identity == identity(hostname="node-a")
    assert (view.process, view.uid, view.user_name) == (rank.process, os.getuid(), f"user{os.getuid()}")
    assert (view.uuid, view.gpu, view.alive) == (UUID0, 0, True)
    assert (view.step, view.steps, view.allocated_bytes, view.reserved_bytes) == (40, 40, 5 * GIB, 6 * GIB)
    assert (view.active_bytes, view.alloc_retries, view.ooms) == (None, 2, 0)
    assert view.last_sample_unix_s == pytest.approx(record.wall_ns / 1e9)
    assert (view.nontorch_bytes, view.limit_bytes, view.host_rss_bytes) == (GIB, 80 * GIB, 2 * GIB)


def test_shows_gpus_with_what_nobody_watched_uses(node: FakeNode) -> None:
    settle(node, node.start_rank())
    [gpu] = node.agent.view().gpus
    assert (gpu.uuid, gpu.gpu, gpu.total_bytes, gpu.used_bytes) == (UUID0, 0, 80 * GIB, 20 * GIB)
    assert gpu.other_processes_bytes == 3 * GIB


def test_a_rank_that_started_before_the_agent_is_found_with_its_history(tmp_path: Path) -> None:
    early = FakeNode(tmp_path / "run")
    rank = early.start_rank()
    for _ in range(30):
        rank.record()
    late = FakeNode(tmp_path / "run")
    late.procs.facts = early.procs.facts
    late.poll()
    assert only_rank(late).step == 30
    assert len(late.detectors[0].fed) == 30


def test_ranks_come_in_a_fixed_order(node: FakeNode) -> None:
    for pid, job, rank in [(11, "b", 0), (12, "a", 10), (13, "a", 2), (14, "a", 1)]:
        who = identity(job_id=JobId(job), rank=GlobalRank(rank), world_size=16)
        node.start_rank(process=ProcessId(pid, 1), who=who).record()
    node.poll()
    assert [(r.identity.job_id, r.identity.rank) for r in node.agent.view().ranks] == [
        ("a", 1), ("a", 2), ("a", 10), ("b", 0),
    ]  # fmt: skip


def test_a_rank_without_identity_is_shown_when_it_has_one(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.write(512, b"\1\0\0\0")
    rank.record()
    node.poll()
    assert node.agent.view().ranks == ()
    rank.publish(identity())
    node.poll()
    assert only_rank(node).identity.job_id == "job-1"


def test_the_summary_is_the_view_in_short_and_travels(node: FakeNode) -> None:
    settle(node, node.start_rank())
    summary = node.agent.summary(node_id="n1", incarnation="i1", metrics_address="node-a:9494")
    view = only_rank(node)
    assert (summary.node_id, summary.incarnation, summary.metrics_address) == ("n1", "i1", "node-a:9494")
    assert (summary.hostname, summary.agent_pid, summary.gpus) == ("node-a", os.getpid(), node.agent.view().gpus)
    for name in summary.ranks[0].__dataclass_fields__:
        assert getattr(summary.ranks[0], name) == getattr(view, name)
    assert pickle.loads(pickle.dumps(summary)) == summary


def test_the_summary_tells_whether_jobs_of_slurm_can_be_here(node: FakeNode) -> None:
    def told() -> bool | None:
        return node.agent.summary(node_id="n1", incarnation="i1", metrics_address=None).slurm_node

    assert told() is True
    node.steps.is_node = False
    assert told() is False


# --- what the detector is told


def test_the_detector_gets_every_step_with_the_readings_of_the_poll(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    rank.record(step=10, allocated=1 * GIB, reserved=6 * GIB)
    rank.record(step=11, allocated=2 * GIB, reserved=6 * GIB)
    node.poll()
    [detector] = node.detectors
    assert [fed["step"] for fed in detector.fed] == [1, 2, 3, 10, 11]
    assert detector.fed[-1] == {
        "step": 11,
        "time_s": pytest.approx(node.clock.now_s - 0.5),
        "allocated_bytes": 2 * GIB,
        "reserved_bytes": 6 * GIB,
        "nontorch_bytes": GIB,
        "host_bytes": 2 * GIB,
        "allocated_peak_bytes": 2 * GIB,
        "inactive_split_bytes": 0,
        "limit_bytes": 67 * GIB,  # 60 GiB free and the 7 GiB that we have
        "host_free_bytes": None,
    }


def test_host_memory_is_that_of_the_process_tree_once_it_is_known(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    worker = HostProcess(ProcessId(4300, 9), "DataLoader worker", 19 * GIB, 18 * GIB)
    node.host_memory.trees[rank.process] = HostMemory(21 * GIB, 3 * GIB, (worker,))
    rank.record()
    node.poll()
    assert node.detectors[-1].fed[-1]["host_bytes"] == 21 * GIB
    assert node.detectors[-1].fed[-1]["host_free_bytes"] == 3 * GIB
    summary = only_rank(node).summary()
    assert (summary.host_rss_bytes, summary.host_processes) == (21 * GIB, (worker,))


def test_a_worker_with_a_ring_under_its_ranks_name_counts_to_that(node: FakeNode) -> None:
    """It inherits its parent's environment, and the probe with it, but ends no step."""
    node.gpus.readings = (
        gpu_reading(processes={4242: 7 * GIB}),
        gpu_reading(UUID1, 1, processes={4300: GIB}),
    )
    rank = node.start_rank()
    worker = node.start_rank(process=ProcessId(4300, 9), who=identity(device_uuids=(UUID1,)))
    other = node.start_rank(process=ProcessId(4400, 9), who=identity(rank=GlobalRank(1)))
    for _ in range(3):
        rank.record()
        worker.record(kind=RecordKind.TICK, step=0)
        other.record(kind=RecordKind.TICK, step=0)
        node.poll()
    assert node.host_memory.watched == {rank.process, other.process}


def test_an_agent_that_closes_ends_the_reading_of_host_memory(node: FakeNode) -> None:
    node.agent.close()
    assert node.host_memory.closed


def test_the_verdict_is_the_detectors(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    leak = Verdict(LeakState.LEAK, signal=Signal.ALLOCATED, onset_step=3, bytes_per_step=Band(1, 2, 3))
    node.detectors[0].verdict = leak
    node.poll()
    assert only_rank(node).verdict == leak


def test_ticks_and_repeated_steps_are_not_fed_to_a_rank_with_steps(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record(step=1)
    rank.tick(step=1)
    rank.record(step=1)
    rank.record(kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, step=1)
    rank.record(step=2)
    node.poll()
    assert [fed["step"] for fed in node.detectors[0].fed] == [1, 2]


def test_a_rank_without_steps_is_judged_by_ticks_after_a_while_and_without_figures_in_steps(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.tick()
    node.poll(100)
    [detector] = node.detectors
    detector.verdict = Verdict(
        LeakState.LEAK, onset_step=3, bytes_per_step=Band(1, 2, 3), bytes_per_second=Band(4, 5, 6)
    )
    rank.tick()
    node.poll(199)
    assert only_rank(node).verdict == OK, "it may be loading a model"
    rank.tick()
    node.poll(2)
    rank.tick()
    node.poll()
    assert [fed["step"] for fed in detector.fed] == [1, 2, 3, 4], "from the first one on"
    assert only_rank(node).verdict == Verdict(LeakState.LEAK, bytes_per_second=Band(4, 5, 6))


def test_the_first_step_ends_the_judgement_by_ticks(node: FakeNode) -> None:
    rank = node.start_rank()
    for _ in range(100):
        rank.tick()
        node.poll(3.5)
    rank.record(step=1)
    node.poll()
    assert [fed["step"] for fed in node.detectors[1].fed] == [1]


def test_a_detector_that_fails_costs_its_rank_the_judgement_and_nobody_else(node: FakeNode) -> None:
    one = node.start_rank()
    settle(node, one)
    node.detectors[0].fails = True
    settle(node, one)
    other = node.start_rank(process=ProcessId(50, 1), who=identity(rank=GlobalRank(1)))
    settle(node, other)
    assert [rank.step for rank in node.agent.view().ranks] == [6, 3]
    assert len(node.detectors[1].fed) == 3


def test_node_agent_keeps_detector_points_after_a_rank_ends(node: FakeNode) -> None:
    assert node.agent.view().detector_points == 0
    one = node.start_rank()
    settle(node, one)
    settle(node, node.start_rank(process=ProcessId(50, 1), who=identity(rank=GlobalRank(1))))
    one.tick()
    one.record(step=7)
    node.poll()
    given = sum(len(detector.fed) for detector in node.detectors)
    assert node.agent.view().detector_points == given == 7
    node.end(one)
    for _ in range(3):
        node.poll(121)
    assert len(node.agent.view().ranks) == 1
    assert node.agent.view().detector_points == 7


def test_the_real_detector_names_the_rank_that_leaks_and_not_its_neighbour(tmp_path: Path) -> None:
    readings = [gpu_reading(UUID0, 0, processes={10: 20 * GIB}), gpu_reading(UUID1, 1, processes={11: 20 * GIB})]
    node = FakeNode(tmp_path / "run", readings=readings, detector_factory=RankDetector)
    healthy = node.start_rank(process=ProcessId(10, 1), who=identity(device_uuids=(UUID0,)))
    leaking = node.start_rank(process=ProcessId(11, 1), who=identity(rank=GlobalRank(1), device_uuids=(UUID1,)))
    for step in range(1, 801):
        noise = (step * 7919 % 64) * MIB
        healthy.record(step=step, allocated=4 * GIB + noise, reserved=19 * GIB)
        leaking.record(step=step, allocated=4 * GIB + noise + step * 8 * MIB, reserved=19 * GIB)
        if step % 8 == 0:
            node.poll()
    first, second = node.agent.view().ranks
    assert first.verdict.state is LeakState.OK
    assert (second.verdict.state, second.verdict.signal) == (LeakState.LEAK, Signal.ALLOCATED)
    assert second.verdict.bytes_per_step is not None
    assert second.verdict.bytes_per_step.low <= 8 * MIB <= second.verdict.bytes_per_step.high


# --- what bounds a rank


def test_the_cap_at_start_and_its_later_changes_bound_the_rank(node: FakeNode) -> None:
    rank = node.start_rank(who=identity(limit_fraction=0.5))
    settle(node, rank)
    assert only_rank(node).limit_bytes == 40 * GIB
    assert node.detectors[0].fed[-1]["limit_bytes"] == 41 * GIB
    rank.record(kind=RecordKind.EVENT, event=EventCode.FRACTION_SET, event_a=250_000)
    settle(node, rank)
    assert only_rank(node).limit_bytes == 20 * GIB
    rank.record(kind=RecordKind.EVENT, event=EventCode.FRACTION_SET, event_a=1_000_000)
    settle(node, rank)
    assert only_rank(node).limit_bytes == 80 * GIB


def test_counters_are_relative_to_the_attach_record(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record(kind=RecordKind.EVENT, event=EventCode.ATTACHED, alloc_retries=10, ooms=3)
    rank.record(alloc_retries=12, ooms=4)
    node.poll()
    assert (only_rank(node).alloc_retries, only_rank(node).ooms) == (2, 1)
    rank.record(alloc_retries=1, ooms=None)  # the user reset the accumulated statistics
    node.poll()
    assert (only_rank(node).alloc_retries, only_rank(node).ooms) == (1, None)


# --- several devices


def test_a_rank_on_several_devices_is_shown_on_the_one_where_it_holds_most(tmp_path: Path) -> None:
    readings = [gpu_reading(UUID0, 0, processes={4242: GIB}), gpu_reading(UUID1, 1, processes={4242: 9 * GIB})]
    node = FakeNode(tmp_path / "run", readings=readings)
    rank = node.start_rank(devices=2, who=identity(device_uuids=(UUID0, UUID1)))
    for _ in range(3):
        rank.record(device=0, reserved=GIB // 2)
        rank.record(device=1, reserved=8 * GIB)
        node.poll()
    view = only_rank(node)
    assert (view.gpu, view.uuid, view.reserved_bytes, view.nontorch_bytes) == (1, UUID1, 8 * GIB, GIB)


def test_two_equal_devices_do_not_take_turns(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run", readings=[gpu_reading(UUID0, 0), gpu_reading(UUID1, 1)])
    rank = node.start_rank(devices=2, who=identity(device_uuids=(UUID0, UUID1)))
    seen = set()
    for turn in range(8):
        rank.record(device=0, reserved=(8 + turn % 2) * GIB)
        rank.record(device=1, reserved=(9 - turn % 2) * GIB)
        node.poll()
        seen.add(only_rank(node).gpu)
    assert len(seen) == 1


# --- NVML comes and goes


def test_without_a_driver_the_claim_names_the_gpu_and_nvml_is_absent(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run", with_nvml=False)
    settle(node, node.start_rank())
    view = only_rank(node)
    assert (view.uuid, view.gpu, view.nontorch_bytes, view.limit_bytes) == (UUID0, None, None, None)
    assert node.agent.view().collect_success == {"launches": True, "proc": True, "rings": True}


def test_a_failing_nvml_is_an_absent_reading_and_the_labels_stay(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    rank = node.start_rank()
    settle(node, rank)
    node.gpus.failing = True
    settle(node, rank)
    view = only_rank(node)
    assert (view.uuid, view.gpu, view.nontorch_bytes) == (UUID0, 0, None)
    assert node.agent.view().gpus == ()
    assert node.agent.view().collect_success == {"launches": True, "proc": True, "rings": True, "nvml": False}
    assert caplog.text.count("nvml cannot be read") == 1
    node.gpus.failing = False
    settle(node, rank)
    assert only_rank(node).nontorch_bytes == GIB
    assert node.agent.view().collect_success["nvml"]


def test_nontorch_is_unknown_where_nvml_does_not_list_the_process(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run", readings=[gpu_reading(processes={})])
    settle(node, node.start_rank())
    assert only_rank(node).nontorch_bytes is None
    assert only_rank(node).gpu == 0


def test_a_process_in_a_container_is_found_by_its_own_pid_and_asked_for_by_the_hosts(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run", readings=[gpu_reading(processes={31337: 7 * GIB})])
    rank = node.start_rank(process=ProcessId(7, 777))
    outside = ProcessId(31337, 777)
    node.procs.facts[rank.process] = node.procs.facts[rank.process].__class__(outside, rank.uid, None)
    settle(node, rank)
    assert only_rank(node).process == outside
    assert only_rank(node).nontorch_bytes == GIB
    assert node.agent.view().gpus[0].other_processes_bytes == 0


# --- claims


def test_the_kernels_slurm_job_overrules_the_claim_and_is_counted_once(node: FakeNode) -> None:
    settle(node, node.start_rank(slurm_job_id="77", who=identity(job_id=JobId("somebody-elses"))))
    view = only_rank(node)
    assert (view.identity.job_id, view.identity.scheduler) == ("77", "slurm")
    assert node.agent.view().claims_overruled == {"job_id": 1}


@pytest.mark.parametrize("claim", ["77", "70_3"])
def test_a_slurm_job_and_a_task_of_an_array_are_no_lies(node: FakeNode, claim: str) -> None:
    settle(node, node.start_rank(slurm_job_id="77", who=identity(job_id=JobId(claim))))
    assert only_rank(node).identity.job_id == "77"
    assert node.agent.view().claims_overruled == {}


def test_a_gpu_that_the_driver_contradicts_is_overruled(tmp_path: Path) -> None:
    node = FakeNode(
        tmp_path / "run", readings=[gpu_reading(UUID0, 0, processes={4242: 7 * GIB}), gpu_reading(UUID1, 1)]
    )
    settle(node, node.start_rank(who=identity(device_uuids=(UUID1,))))
    assert only_rank(node).uuid == UUID0
    assert node.agent.view().claims_overruled == {"uuid": 1}


def test_two_processes_of_one_name_give_one_rank_the_one_that_trains(node: FakeNode) -> None:
    """A helper inherits the variables of the rank that started it."""
    node.procs.parents[ProcessId(10, 1)] = (ProcessId(11, 2),)
    helper = node.start_rank(process=ProcessId(10, 1))
    trainer = node.start_rank(process=ProcessId(11, 2))
    for _ in range(3):
        helper.tick(reserved=8 * GIB)
        trainer.record(reserved=6 * GIB)
        node.poll()
    assert only_rank(node).process == trainer.process
    assert node.agent.view().series_dropped == {"duplicate_rank": 1}


def test_an_evaluator_on_another_gpu_with_its_trainers_environment_does_not_take_its_name(tmp_path: Path) -> None:
    """The two took turns in being rank 0, and the trainer's leak came back every few seconds."""
    node = FakeNode(tmp_path / "run", readings=[gpu_reading(UUID0, 0), gpu_reading(UUID1, 1)])
    node.procs.parents = {ProcessId(11, 9): (ProcessId(10, 8), ProcessId(5, 5))}
    trainer = node.start_rank(process=ProcessId(10, 8))
    settle(node, trainer)
    evaluator = node.start_rank(process=ProcessId(11, 9), who=identity(device_uuids=(UUID1,)))
    for turn in range(6):
        (trainer if turn % 2 else evaluator).record(reserved=GIB)
        evaluator.record(reserved=70 * GIB)
        node.poll()
        assert [(rank.process.pid, rank.gpu, rank.group) for rank in node.agent.view().ranks] == [(10, 0, "")]


def test_two_launches_in_one_job_are_two_groups_and_both_are_shown(node: FakeNode) -> None:
    """Two ``torchrun`` in one script: each has a rank 0, and neither is a helper of the other."""
    node.procs.parents = {ProcessId(10, 2): (ProcessId(9, 1),), ProcessId(20, 2): (ProcessId(19, 1),)}
    first = node.start_rank(process=ProcessId(10, 2))
    settle(node, first)
    assert only_rank(node).group == "", "the job has one group"
    second = node.start_rank(process=ProcessId(20, 2))
    for _ in range(3):
        first.record(reserved=8 * GIB)
        second.record(reserved=6 * GIB)
        node.poll()
    view = node.agent.view()
    assert {rank.process.pid: rank.group for rank in view.ranks} == {10: "pid 9", 20: "pid 19"}
    assert {rank.process.pid: rank.parent for rank in view.ranks} == {10: ProcessId(9, 1), 20: ProcessId(19, 1)}
    assert view.series_dropped == {}
    node.agent.hear_of_groups([NameOfGroup(ProcessId(20, 2), "step 3")])
    node.poll()
    groups = {rank.process.pid: rank.group for rank in node.agent.view().ranks}
    assert groups == {10: "pid 9", 20: "step 3"}, "the coordinator sees the whole job"
    node.procs.parents[ProcessId(21, 3)] = (ProcessId(19, 1),)
    node.start_rank(process=ProcessId(21, 3), who=identity(rank=GlobalRank(1), local_rank=LocalRank(1))).record()
    node.poll()
    groups = {rank.process.pid: rank.group for rank in node.agent.view().ranks}
    assert groups == {10: "pid 9", 20: "step 3", 21: "step 3"}, "it has not spoken of the new one yet"


def test_the_same_rank_on_another_gpu_is_another_rank(tmp_path: Path) -> None:
    """Eight single-GPU experiments in one Slurm job all say that they are rank 0 of 1."""
    node = FakeNode(tmp_path / "run", readings=[gpu_reading(UUID0, 0), gpu_reading(UUID1, 1)])
    node.start_rank(process=ProcessId(10, 1)).record()
    node.start_rank(process=ProcessId(11, 1), who=identity(device_uuids=(UUID1,))).record()
    node.poll()
    assert [rank.gpu for rank in node.agent.view().ranks] == [0, 1]


@pytest.mark.skipif(os.getuid() != 0, reason="needs files of two users")
def test_no_other_user_can_oust_a_rank_from_its_name(node: FakeNode) -> None:
    victim = node.start_rank(process=ProcessId(10, 100))
    thief = node.start_rank_of(4321, ProcessId(9, 200))
    for _ in range(3):
        victim.record(reserved=GIB)
        thief.record(reserved=70 * GIB)
        node.poll()
    told = node.agent.view().ranks  # one name on a scrape's page is the exporter's to decide
    assert {(rank.uid, rank.process) for rank in told} == {(victim.uid, victim.process), (4321, thief.process)}


def test_the_highest_of_a_rank_is_that_of_all_records_also_where_its_program_resets_pytorchs_peaks(
    node: FakeNode,
) -> None:
    """``reset_peak_memory_stats()`` in each step: all but the last record between two reports were lost."""
    rank = node.start_rank()
    settle(node, rank)
    rank.record(allocated=GIB, reserved=2 * GIB, allocated_peak_bytes=7 * GIB, reserved_peak_bytes=8 * GIB)
    rank.record(allocated=GIB, reserved=2 * GIB, allocated_peak_bytes=None, reserved_peak_bytes=None)
    node.poll()
    rank.record(allocated=GIB, reserved=2 * GIB)
    node.poll()
    view = only_rank(node)
    assert (view.highest_allocated_bytes, view.highest_reserved_bytes) == (7 * GIB, 8 * GIB)
    assert (view.allocated_peak_bytes, view.reserved_peak_bytes) == (GIB, 2 * GIB), "PyTorch's own, for /metrics"
    rank.record(
        kind=RecordKind.EVENT, event=EventCode.FRACTION_SET, event_a=50_000, allocated=GIB, reserved=2 * GIB
    )  # fmt: skip
    node.poll()
    assert only_rank(node).highest_reserved_bytes == 2 * GIB, "under another limit it begins anew"


# --- several processes of one rank, one after the other


def end_by_itself(node: FakeNode, rank: FakeRank, *, step: int) -> None:
    rank.record(kind=RecordKind.EVENT, event=EventCode.DETACHED, step=step)
    node.end(rank)


@pytest.mark.parametrize("last_step", [0, 3])
def test_of_a_rank_that_was_started_again_the_last_process_is_shown_also_when_both_are_over(
    node: FakeNode, last_step: int
) -> None:
    """``python a; python b``: that the first was larger, and made more steps, says nothing of how the second ended."""
    first = node.start_rank(process=ProcessId(10, 100))
    for step in (1, 2, 30):
        first.record(step=step, reserved=60 * GIB)
        node.poll()
    end_by_itself(node, first, step=30)
    node.poll()
    second = node.start_rank(process=ProcessId(11, 300))
    second.tick(reserved=GIB)
    node.poll()
    assert only_rank(node).process == second.process
    second.record(kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, step=last_step, reserved=2 * GIB, event_a=GIB)
    end_by_itself(node, second, step=last_step)
    for _ in range(3):
        node.poll()
        view = only_rank(node)
        assert (view.process, view.alive, view.detached, view.step) == (second.process, False, True, last_step)
        assert view.last_oom is not None
    assert [(one.process, one.step, one.detached) for one in view.hidden] == [(first.process, 30, True)]


@pytest.mark.parametrize("helper_steps", [0, 7])
def test_a_helper_that_outlives_its_trainer_does_not_tell_the_end_of_the_rank(
    node: FakeNode, helper_steps: int
) -> None:
    trainer = node.start_rank(process=ProcessId(10, 100))
    settle(node, trainer)
    node.procs.parents[ProcessId(11, 300)] = (ProcessId(10, 100),)
    helper = node.start_rank(process=ProcessId(11, 300))
    for _ in range(3):
        helper.tick(step=helper_steps, reserved=60 * GIB)
        trainer.record()
        node.poll()
    end_by_itself(node, trainer, step=6)
    node.poll()
    node.poll(30)
    helper.tick(step=helper_steps)
    node.end(helper)
    node.poll()
    assert (only_rank(node).process, only_rank(node).detached) == (trainer.process, True)
    node.poll(95)
    node.poll()
    assert node.agent.view().ranks == (), "the name is not the helper's because the trainer has been forgotten"


def test_a_launcher_that_used_a_gpu_does_not_tell_the_end_of_the_rank(node: FakeNode) -> None:
    launcher = node.start_rank(process=ProcessId(10, 100))
    launcher.tick(reserved=60 * GIB)
    node.procs.parents[ProcessId(11, 300)] = (ProcessId(10, 100),)
    trainer = node.start_rank(process=ProcessId(11, 300))
    settle(node, trainer)
    end_by_itself(node, trainer, step=3)
    launcher.tick(reserved=60 * GIB)
    end_by_itself(node, launcher, step=0)
    node.poll()
    node.poll()
    assert (only_rank(node).process, only_rank(node).step) == (trainer.process, 3)


# --- the end of a rank


def test_a_rank_that_ended_stays_for_a_while_with_its_last_record_then_goes_with_its_ring(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    rank.record(step=9, ooms=1)  # written between the last poll and the end
    node.end(rank)
    node.poll()
    view = only_rank(node)
    assert (view.alive, view.step, view.ooms, view.host_rss_bytes) == (False, 9, 1, None)
    node.poll(119)
    assert not only_rank(node).alive
    assert rank.path.exists()
    node.poll(2)
    node.poll()
    assert node.agent.view().ranks == ()
    assert not rank.path.exists()
    assert list(node.run_dir.glob("*/*")) == []


def test_a_failure_to_look_is_not_the_end_of_a_rank(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    node.procs.failing = True
    settle(node, rank)
    assert (only_rank(node).alive, only_rank(node).host_rss_bytes, only_rank(node).step) == (True, None, 6)
    assert node.agent.view().collect_success == {"launches": True, "proc": False, "rings": True, "nvml": True}
    node.procs.failing = False
    settle(node, rank)
    assert (only_rank(node).alive, only_rank(node).host_rss_bytes) == (True, 2 * GIB)


def test_a_slip_over_containers_costs_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    slipping = True

    def candidates() -> list[int]:
        return [1 // 0] if slipping else []

    run_dir = tmp_path / "run"
    node = FakeNode(run_dir, containers=Containers([run_dir], candidates=candidates))
    rank = node.start_rank()
    settle(node, rank)
    assert only_rank(node).step == 3
    assert node.agent.view().collect_success == {
        "containers": False, "launches": True, "proc": True, "rings": True, "nvml": True
    }  # fmt: skip
    slipping = False
    node.poll()
    assert node.agent.view().collect_success["containers"] is True
    said = [record.message for record in caplog.records if "containers cannot be read" in record.message]
    assert len(said) == 1, "it fails at every poll until it works again, and is said once"


def test_a_slip_over_the_keeper_of_a_launch_costs_nothing_else(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = ProcessId(700, 7000)
    rank = node.start_rank()
    record = LaunchRecord(
        keeper, "job-1", None, 0, LaunchState.RUNNING, requeueable=True, exempt=False, gpu_share=None,
        started_unix_s=1.7e9,
    )  # fmt: skip
    (rank.path.parent / launch_name(keeper)).write_bytes(encode_launch_record(record))
    node.procs.facts[keeper] = ProcessFacts(keeper, rank.uid, None)
    node.procs.slips_on.add(keeper)
    settle(node, rank)
    assert only_rank(node).step == 3
    assert node.agent.view().collect_success == {"launches": False, "proc": True, "rings": True, "nvml": True}
    node.procs.slips_on.clear()
    node.poll()
    assert node.agent.view().collect_success["launches"] is True
    assert [launch.process for launch in node.agent.view().launches] == [keeper]
    said = [record.message for record in caplog.records if "launches cannot be read" in record.message]
    assert len(said) == 1, "it fails at every poll until it works again, and is said once"


def test_a_failure_to_look_at_a_new_rank_is_said_once_and_made_good(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record()
    node.procs.failing = True
    for _ in range(40):
        node.poll()
    assert node.agent.view().ranks == ()
    assert node.agent.view().rings_skipped == {"unreadable": 1}
    node.procs.failing = False
    node.poll(6)
    assert only_rank(node).alive


def test_an_ended_rank_is_no_longer_a_watched_process_of_its_gpu(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    node.end(rank)
    node.poll()
    assert node.agent.view().gpus[0].other_processes_bytes == 10 * GIB


def test_a_pid_used_again_is_another_rank(node: FakeNode) -> None:
    first = node.start_rank(process=ProcessId(10, 100), who=identity(attempt=0))
    settle(node, first)
    node.end(first)
    second = node.start_rank(process=ProcessId(10, 200), who=identity(attempt=1))
    settle(node, second)
    assert [(r.identity.attempt, r.alive) for r in node.agent.view().ranks] == [(0, False), (1, True)]


def test_a_rank_that_detached_goes_but_its_ring_stays_with_its_process(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    rank.record(kind=RecordKind.EVENT, event=EventCode.DETACHED)
    node.poll()
    assert not only_rank(node).alive
    node.poll(121)
    assert node.agent.view().ranks == ()
    assert rank.path.exists()
    rank.record()
    node.poll()
    assert only_rank(node).alive


def test_a_leftover_ring_is_not_shown_and_goes_after_a_while(node: FakeNode) -> None:
    rank = FakeRank(node.run_dir, node.clock)
    rank.record()
    node.poll()
    assert rank.path.exists()
    for _ in range(30):
        node.poll(5)
    assert node.agent.view().ranks == ()
    assert not rank.path.exists()
    assert node.agent.view().rings_skipped == {}
    assert node.procs.searches < 6


def test_node_agent_forgets_leftover_rings_deleted_by_others(node: FakeNode) -> None:
    def remembered() -> int:
        gc.collect()
        places = [one for one in gc.get_objects() if isinstance(one, RingPlace)]
        return sum(str(one).startswith(str(node.run_dir)) and one.name.endswith(".ring") for one in places)

    leftover = [FakeRank(node.run_dir, node.clock, process=ProcessId(pid, 1)) for pid in range(1, 30)]
    node.poll()
    assert remembered() >= len(leftover)
    for rank in leftover:
        rank.path.unlink()
    node.poll(6)
    assert remembered() == 0


def test_a_ring_that_is_still_written_to_is_never_deleted_though_its_process_is_unseen(node: FakeNode) -> None:
    rank = FakeRank(node.run_dir, node.clock)
    for _ in range(60):
        rank.record()
        node.poll(5)
    assert rank.path.exists()


def test_a_process_that_comes_into_sight_later_is_watched(node: FakeNode) -> None:
    rank = node.start_rank()
    facts = node.procs.facts.pop(rank.process)
    rank.record()
    node.poll()
    assert node.agent.view().ranks == ()
    node.procs.facts[rank.process] = facts
    node.poll(6)
    assert only_rank(node).alive


def test_a_restarted_program_in_the_same_process_begins_anew(node: FakeNode) -> None:
    """execve keeps pid and start time: the probe makes a new file of the same name."""
    old = node.start_rank()
    settle(node, old)
    old.path.unlink()
    new = node.start_rank(process=old.process)
    new.record(step=1, allocated=GIB)
    node.poll()
    assert (only_rank(node).step, only_rank(node).allocated_bytes) == (1, GIB)
    assert len(node.detectors) == 2


# --- bad input


def break_magic(rank: FakeRank) -> None:
    rank.write(0, b"NOTARING")


def break_version(rank: FakeRank) -> None:
    rank.write(len(MAGIC), (LAYOUT_VERSION + 1).to_bytes(4, "little"))


def break_size(rank: FakeRank) -> None:
    os.truncate(rank.path, HEADER_BYTES + 100)


def break_geometry(rank: FakeRank) -> None:
    rank.write(20, b"\xff\xff\xff\xff")


def break_process(rank: FakeRank) -> None:
    rank.write(32, (1).to_bytes(8, "little"))


def break_identity(rank: FakeRank) -> None:
    rank.publish(identity(world_size=0))


def make_symlink(rank: FakeRank) -> None:
    target = rank.path.rename(rank.path.with_suffix(".moved"))
    rank.path.symlink_to(target)


BREAKS = {
    "magic": break_magic,
    "version": break_version,
    "truncated": break_size,
    "geometry": break_geometry,
    "process": break_process,
    "identity": break_identity,
    "symlink": make_symlink,
}


@pytest.mark.parametrize("reason", BREAKS)
def test_a_bad_ring_is_reported_once_and_the_others_go_on(
    node: FakeNode, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = node.start_rank()
    bad = node.start_rank(process=ProcessId(50, 1), who=identity(rank=GlobalRank(1)))
    bad.record()
    BREAKS[reason](bad)
    for _ in range(40):
        good.record()
        node.poll()
    assert only_rank(node).process == good.process
    assert only_rank(node).step == 40
    assert node.agent.view().rings_skipped == {reason: 1}
    assert caplog.text.count(str(bad.path)) == 1


@pytest.mark.parametrize("reason", ["truncated", "identity"])
def test_a_ring_that_goes_bad_is_dropped_and_reported_once(node: FakeNode, reason: str) -> None:
    rank = node.start_rank()
    settle(node, rank)
    BREAKS[reason](rank)
    for _ in range(40):
        node.poll()
    assert node.agent.view().ranks == ()
    assert node.agent.view().rings_skipped == {reason: 1}
    assert rank.path.exists()


def test_a_bad_ring_that_was_mended_is_taken_up(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record()
    BREAKS["version"](rank)
    node.poll()
    rank.write(len(MAGIC), LAYOUT_VERSION.to_bytes(4, "little"))
    node.poll(6)
    assert only_rank(node).alive


def test_a_ring_of_a_process_of_another_user_is_refused(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record()
    node.procs.facts[rank.process] = node.procs.facts[rank.process].__class__(rank.process, rank.uid + 1, None)
    node.poll()
    assert node.agent.view().ranks == ()
    assert node.agent.view().rings_skipped == {"owner": 1}


def test_impossible_figures_are_dropped_and_counted(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record(allocated=GIB)
    rank.record(allocated=MAX_SANE + 1, reserved=MAX_SANE + 1)
    node.poll()
    assert only_rank(node).allocated_bytes == GIB
    assert node.agent.view().records_refused == 1


def test_records_that_were_overwritten_are_counted(node: FakeNode) -> None:
    rank = node.start_rank(capacity=16)
    node.poll()
    for _ in range(50):
        rank.record()
    node.poll()
    assert node.agent.view().records_lost == 34
    assert only_rank(node).step == 50


def test_a_clock_in_the_future_is_not_believed(node: FakeNode) -> None:
    rank = node.start_rank()
    rank.record(wall_ns=(1 << 63))
    node.poll()
    assert only_rank(node).last_sample_unix_s == node.clock.unix_s()


def test_node_agent_limits_ranks_per_user(node: FakeNode) -> None:
    for pid in range(1, MAX_RANKS_PER_TENANT + 6):
        who = identity(rank=GlobalRank(pid), local_rank=LocalRank(pid), world_size=1 << 12)
        node.start_rank(process=ProcessId(pid, 1), who=who, capacity=1).record()
    for _ in range(4):
        node.poll()
    assert len(node.agent.view().ranks) == MAX_RANKS_PER_TENANT
    assert node.agent.view().series_dropped == {"ranks": 5}


def test_node_agent_limits_ranks_per_pod_with_the_same_uid(node: FakeNode) -> None:
    for pid in range(1, MAX_RANKS_PER_TENANT + 6):
        who = identity(rank=GlobalRank(pid), local_rank=LocalRank(pid), world_size=1 << 12)
        pod = "crowd" if pid <= MAX_RANKS_PER_TENANT + 2 else "other"
        node.start_rank(process=ProcessId(pid, 1), pod=PodCgroup(pod, None), who=who, capacity=1).record()
    for _ in range(4):
        node.poll(PATIENCE_S)
    assert len(node.agent.view().ranks) == MAX_RANKS_PER_TENANT + 3
    assert node.agent.view().series_dropped == {"ranks": 2}


@given(
    writes=st.lists(
        st.tuples(st.integers(0, HEADER_BYTES + 2 * 16 * 256), st.binary(min_size=1, max_size=64)), max_size=6
    ),
    size=st.none() | st.integers(0, HEADER_BYTES + 2 * 16 * 256),
)
def test_random_damage_neither_stops_the_agent_nor_shows_nonsense(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, bytes]], size: int | None
) -> None:
    node = FakeNode(tmp_path_factory.mktemp("node") / "run", readings=[gpu_reading(processes={4242: 7 * GIB})])
    good = node.start_rank(process=ProcessId(50, 1), who=identity(job_id=JobId("good"), device_uuids=(UUID1,)))
    rank = node.start_rank(capacity=16, devices=2)
    for _ in range(10):
        rank.record()
    node.poll()
    for offset, content in writes:
        rank.write(offset, content)
    if size is not None:
        os.truncate(rank.path, size)
    for _ in range(3):
        good.record()
        node.poll()
    view = node.agent.view()
    assert view.collect_success == {"launches": True, "proc": True, "rings": True, "nvml": True}
    assert [r.step for r in view.ranks if r.identity.job_id == "good"] == [3]
    assert view.now_unix_s == node.clock.unix_s()
    for seen in view.ranks:
        assert (seen.allocated_bytes, seen.reserved_bytes) == (4 * GIB, 6 * GIB)
        assert seen.identity.world_size == 2


# --- the agent itself


@pytest.mark.slow
def test_a_flood_of_processes_does_not_push_other_lines_out_of_the_log(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for pid in range(1, 301):
            rank = node.start_rank(process=ProcessId(pid, 1))
            rank.record()
            node.poll(0.1)
            node.end(rank)
        assert len(caplog.records) <= LINES_PER_MINUTE + 1
        node.start_rank(process=ProcessId(301, 1))
        node.poll(60)
    assert "280 more lines of this kind were left out in the minute before" in caplog.text
    assert "watching pid 301" in caplog.text


def test_a_poll_that_fails_keeps_the_last_view_and_does_not_raise(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    settle(node, node.start_rank())
    before = node.agent.view()

    def broken() -> float:
        raise RuntimeError("no clock")

    node.clock.unix_s = broken  # type: ignore[method-assign] # SAFETY: the fake breaks on purpose
    node.poll()
    node.poll()
    assert node.agent.view() is before
    assert caplog.text.count("a poll failed") == 1


def test_figures_of_a_while_ago_are_not_those_of_now(node: FakeNode) -> None:
    """As after SIGCONT, or while a poll hangs in the driver."""
    settle(node, node.start_rank())
    assert node.agent.fresh_view() is node.agent.view()
    node.clock.pass_s(STALE_AFTER_S)
    assert node.agent.fresh_view().ranks
    node.clock.pass_s(0.1)
    with pytest.raises(StaleViewError, match="no poll has finished for 7 s"):
        node.agent.fresh_view()
    assert node.agent.view().ranks
    node.poll()
    assert node.agent.fresh_view().ranks


def test_an_agent_that_is_to_poll_rarely_is_given_more_time(tmp_path: Path) -> None:
    agent = open_node_agent(Settings(run_dir=tmp_path, poll_period_s=10.0))
    later_ns = agent._clock.monotonic_ns() + 45_000_000_000
    agent._clock.monotonic_ns = lambda: later_ns  # type: ignore[method-assign] # SAFETY: a clock that runs ahead
    assert agent.fresh_view().ranks == ()
    agent.close()


def test_close_lets_files_and_driver_go_and_leaves_the_rings(node: FakeNode) -> None:
    rank = node.start_rank()
    settle(node, rank)
    assert open_below(rank.path.parents[1])
    node.agent.close()
    node.agent.close()
    assert open_below(rank.path.parents[1]) == []
    assert node.gpus.closed
    assert rank.path.exists()
    before = node.agent.view()
    node.poll()
    assert node.agent.view() is before


def test_files_do_not_stay_open_when_ranks_come_and_go(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run", linger_s=0)
    for pid in range(1, 30):
        rank = node.start_rank(process=ProcessId(pid, 1))
        settle(node, rank, polls=2)
        node.end(rank)
        if pid % 3 == 0:
            BREAKS["truncated"](rank)
    for _ in range(30):
        node.poll(5)
    assert open_below(tmp_path) == []
    assert node.agent.view().ranks == ()


def test_the_real_agent_opens_on_any_machine(tmp_path: Path) -> None:
    agent = open_node_agent(Settings(), {"TIDEGAUGE_RUN_DIR": str(tmp_path / "run")})
    agent.poll()
    view = agent.view()
    agent.close()
    assert view.ranks == ()
    assert view.collect_success["rings"]
    assert json.dumps(view.rings_skipped) == "{}"
    assert DeviceUuid("x") not in [gpu.uuid for gpu in view.gpus]
