"""Small views for tests: a rank, a GPU, a node, a job, with what a test wants changed; and figures of a closed loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidegauge.core.host_memory import NodeMemory
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, JobKey, LocalRank, ProcessId, RankIdentity
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.loop_figures import JobFigures, LoopFigures, OpenIncident
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.profile.categories import Category
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import GpuView, JobView, NodeView, RankSummary, RankView

MIB = 1024**2
GIB = 1024**3
NOW_S = 1_800_000_000.25

LEAK = Verdict(
    state=LeakState.LEAK,
    severity=Severity.CRITICAL,
    signal=Signal.ALLOCATED,
    cause="tensors_kept",
    onset_step=40,
    suspect_step=80,
    alarm_step=120,
    bytes_per_step=Band(11.5 * MIB, 12.0 * MIB, 12.5 * MIB),
    bytes_per_second=Band(110.0 * MIB, 120.0 * MIB, 130.0 * MIB),
    grown_bytes=960 * MIB,
    steps_to_oom=Band(8_000.0, 10_000.0, 13_000.0),
    seconds_to_oom=Band(840.0, 1_080.0, 1_320.0),
)


def uuid_of(gpu: int) -> DeviceUuid:
    return DeviceUuid(f"GPU-{gpu:08x}-1111-2222-3333-444444444444")


def identity(rank: int = 0, **changes: Any) -> RankIdentity:
    who = RankIdentity(
        job_id=JobId("4711"),
        attempt=0,
        rank=GlobalRank(rank),
        local_rank=LocalRank(rank),
        world_size=2,
        hostname="inside-a-container",
        job_name="llm-pretrain",
        scheduler="slurm",
        torch_version="2.13.0",
        alloc_conf="expandable_segments:True",
    )
    return who._replace(**changes)


COMPOSITION = {Category.PARAMETERS: 6 * GIB, Category.OPTIMIZER_STATE: 12 * GIB, Category.ACTIVATIONS: 2 * GIB}


def rank_view(rank: int = 0, **changes: Any) -> RankView:
    view = RankView(
        identity=identity(rank),
        process=ProcessId(1000 + rank, 5_000 + rank),
        uid=1001,
        user_name="ada",
        uuid=uuid_of(rank),
        gpu=rank,
        last_sample_unix_s=NOW_S - 0.5,
        step=200,
        allocated_bytes=10 * GIB,
        reserved_bytes=12 * GIB,
        active_bytes=10 * GIB + 1,
        inactive_split_bytes=300 * MIB,
        requested_bytes=9 * GIB,
        allocated_peak_bytes=20 * GIB,
        reserved_peak_bytes=22 * GIB,
        nontorch_bytes=700 * MIB,
        limit_bytes=80 * GIB,
        host_rss_bytes=4 * GIB,
        alloc_retries=0,
        ooms=0,
        steps=200,
        verdict=OK,
        alive=True,
    )
    return replace(view, **changes)


def gpu_view(gpu: int = 0, **changes: Any) -> GpuView:
    view = GpuView(
        uuid=uuid_of(gpu),
        gpu=gpu,
        name="NVIDIA H200",
        total_bytes=80 * GIB,
        used_bytes=13 * GIB,
        other_processes_bytes=0,
    )
    return replace(view, **changes)


def node_view(**changes: Any) -> NodeView:
    view = NodeView(
        hostname="node7",
        cluster="lab",
        now_unix_s=NOW_S,
        ranks=(rank_view(0, profile_bytes=COMPOSITION), rank_view(1, verdict=LEAK)),
        gpus=(gpu_view(0), gpu_view(1)),
        memory=NodeMemory(512 * GIB, 300 * GIB, 256 * GIB, 8 * GIB),
        collect_success={"rings": True, "nvml": True, "proc": False},
        collect_duration_s={"rings": 0.0005, "nvml": 0.002, "proc": 0.001},
        rings_skipped={"truncated": 1},
        records_lost=3,
        records_refused=2,
        claims_overruled={"job_id": 1},
    )
    return replace(view, **changes)


def rank_summary(rank: int = 0, **changes: Any) -> RankSummary:
    view = rank_view(rank)
    summary = RankSummary(
        identity=view.identity,
        process=view.process,
        uid=view.uid,
        user_name=view.user_name,
        gpu=view.gpu,
        uuid=view.uuid,
        step=view.step,
        allocated_bytes=view.allocated_bytes,
        reserved_bytes=view.reserved_bytes,
        nontorch_bytes=view.nontorch_bytes,
        limit_bytes=view.limit_bytes,
        host_rss_bytes=view.host_rss_bytes,
        last_sample_unix_s=view.last_sample_unix_s,
        verdict=view.verdict,
        alive=True,
    )
    return replace(summary, **changes)


def job_view(**changes: Any) -> JobView:
    view = JobView(
        job_id="4711",
        attempt=0,
        job_name="llm-pretrain",
        user_name="ada",
        scheduler="slurm",
        world_size=2,
        hostnames=("node7",),
        ranks=(rank_summary(0), rank_summary(1, verdict=LEAK)),
        state=LeakState.LEAK,
        severity=Severity.CRITICAL,
        signal=Signal.ALLOCATED,
        suspects=(1,),
        running=True,
    )
    return replace(view, **changes)


def job_record(**changes: Any) -> JobRecord:
    """Of a healthy job that ended by itself."""
    record = JobRecord(
        job=JobKey("4711", 0, 1001), job_name="llm-pretrain", user_name="ada", scheduler="slurm", array=None, nodes=1,
        world_size=2, started_unix_s=NOW_S - 7200.0, updated_unix_s=NOW_S, ended_unix_s=NOW_S - 60.0,
        end=JobEnd.ENDED, steps=200, fullest=RankPeak(1, "node7", 20 * GIB, 22 * GIB, 80 * GIB), state=LeakState.OK,
        severity=None, signal=None, ooms=0,
    )  # fmt: skip
    return record._replace(**changes)


LOOP = LoopFigures(
    store_works=True,
    acting=True,
    paused=False,
    breaker_open=True,
    incidents_total={IncidentCause.LEAK: 5, IncidentCause.OUT_OF_MEMORY: 2},
    incidents_open={(IncidentCause.LEAK, Severity.CRITICAL): 1},
    actions_total={("requeue", "done"): 3, ("notify", "would"): 4},
    of_jobs={
        JobKey("4711", 0, 1001): JobFigures(
            (
                OpenIncident(12, IncidentCause.LEAK, Severity.CRITICAL, NOW_S - 600.0),
                OpenIncident(13, IncidentCause.OUT_OF_MEMORY, Severity.CRITICAL, NOW_S - 60.0),
            ),
            {("notify", "done"): NOW_S - 599.0, ("checkpoint", "no_proof"): NOW_S - 30.0},
        ),
        JobKey("4711", 0, 7): JobFigures(
            (OpenIncident(14, IncidentCause.LEAK, Severity.WARNING, NOW_S - 10.0),), {("notify", "done"): NOW_S - 9.0}
        ),
    },
    nodes={"ok": 3, "waiting": 0, "stale": 1, "gone": 0},
)
"""A closed loop in which each number is another; two users have a job 4711."""
