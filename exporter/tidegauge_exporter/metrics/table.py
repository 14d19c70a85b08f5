"""The table of Tidegauge's metrics, which exposition, docs/metrics.md and the dashboards' tests read.

Names and labels are a contract (docs/architecture.md): dashboards and alert rules of other people rely on them. A
``read`` that answers ``None`` becomes an absent sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tidegauge.core.host_memory import NodeMemory
from tidegauge.core.verdicts import Band
from tidegauge.core.views import GpuView, JobView, RankView
from tidegauge_exporter.metrics.coordinator_rows import JOB_LOOP_METRICS, LOOP_METRICS, NODE_COUNTS, USAGE_METRICS
from tidegauge_exporter.metrics.families import BUILD_INFO, JOB_LABELS, Metric, MetricKind, ReadMetric


def _of_agent(
    what: str, text: str, labels: tuple[str, ...] = (), *, kind: MetricKind = MetricKind.COUNTER,
    source: str = "node agent", unit: str | None = None, from_start: tuple[str, ...] = (),
) -> Metric:  # fmt: skip
    return Metric(f"tidegauge_{what}", kind, text, labels, source, unit, from_start=from_start)


COLLECT_SUCCESS = _of_agent(
    "collect_success",
    "1 if the last read of this source succeeded, else 0; `view` is the node's state as a whole.",
    ("source",),
    kind=MetricKind.GAUGE,
)
COLLECT_DURATION = _of_agent(
    "collect_duration_seconds",
    "Duration of the last read of this source.",
    ("source",),
    kind=MetricKind.GAUGE,
    unit="seconds",
)
SERIES_DROPPED = _of_agent(
    "series_dropped_total",
    "Series dropped from scrapes: `duplicate` labels, or beyond the `budget` of a target; and processes that are not "
    "ranks: a helper with its rank's environment (`duplicate_rank`), or beyond the places of a node or a tenant "
    "(`ranks`).",
    ("reason",),
    from_start=("duplicate", "budget", "duplicate_rank", "ranks"),
)
RINGS_SKIPPED = _of_agent(
    "rings_skipped_total",
    "Ring files refused, by reason; reasons of evidence files begin with `evidence_`.",
    ("reason",),
    from_start=(
        "geometry", "hard_link", "identity", "magic", "mount", "name", "not_regular", "not_served", "owner",
        "permission", "process", "replaced", "symlink", "too_many", "truncated", "unreadable", "version",
    ),
)  # fmt: skip
RECORDS_LOST = _of_agent(
    "records_lost_total",
    "Readings that a rank overwrote before the agent had read them.",
    source="node agent, gaps in the rings' sequence numbers",
)
POLL_DEFERRED = _of_agent(
    "poll_deferred_total",
    "Work that a poll deferred to a later one, so that one tenant's rings do not delay the others': new rings "
    "(`opened`), rings with unread records (`records`), rings of processes that are gone (`orphans`), folders of "
    "containers whose tenant used up its time (`containers`).",
    ("reason",),
    from_start=("opened", "records", "orphans", "containers"),
)
RECORDS_REFUSED = _of_agent("records_refused_total", "Readings refused because of impossible values.")
DETECTOR_POINTS = _of_agent(
    "detector_points_total",
    "Readings that the leak detector judged, all ranks; constant while ranks train means that nobody watches them.",
)
CLAIMS_OVERRULED = _of_agent(
    "claims_overruled_total",
    "Claims of ranks about themselves that the kernel, the driver, the scheduler or its prolog contradicts, or with "
    "too many ranks (`rank`) or labels (`labels`), by claim.",
    ("claim",),
    from_start=("attempt", "job_id", "job_user", "labels", "rank", "scheduler", "uuid"),
)
SELF_METRICS = (
    COLLECT_SUCCESS,
    COLLECT_DURATION,
    SERIES_DROPPED,
    RINGS_SKIPPED,
    RECORDS_LOST,
    POLL_DEFERRED,
    RECORDS_REFUSED,
    DETECTOR_POINTS,
    CLAIMS_OVERRULED,
)


RANK_LABELS = ("cluster", "job_id", "attempt", "rank", "local_rank", "hostname", "gpu", "UUID")
"""Labels of every per-rank series. ``gpu`` and ``UUID`` are as dcgm-exporter writes them, so that ``on (UUID)`` joins
need no rewriting. ``attempt`` is there because a slope over a restart would be wrong."""
POD_LABELS = ("namespace", "pod", "container")
"""Further labels of ranks in a pod with a known namespace."""
GROUP_LABELS = ("group",)
"""The further label of ranks and jobs with several groups of ranks; to Prometheus an absent label is an empty one."""
GPU_LABELS = ("cluster", "hostname", "gpu", "UUID")

SAMPLES_PER_TARGET = 50_000
"""Bound of one target's samples: beyond it a real Prometheus 2.42 did not finish a scrape within its default timeout.
Whole ranks beyond it are left out and counted; a node with 8 GPUs needs under 250."""


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _likely(band: Band | None) -> float | None:
    return None if band is None else _finite(band.likely)


def _seconds_to_oom(rank: RankView) -> float | None:
    """The forecast in seconds; infinite, not absent, if the growth ends by itself, so that alerts skip it."""
    if rank.is_bounded:
        return math.inf
    return _likely(rank.verdict.seconds_to_oom)


def _rank_bytes(what: str, text: str, source: str, read: Callable[[RankView], int | None]) -> ReadMetric[RankView]:
    name = f"tidegauge_rank_{what}_bytes"
    return ReadMetric(name, MetricKind.GAUGE, text, RANK_LABELS, source, "bytes", read, lingers=what.endswith("_peak"))


def _rank_total(what: str, text: str, source: str, read: Callable[[RankView], int | None]) -> ReadMetric[RankView]:
    return ReadMetric(
        f"tidegauge_rank_{what}_total", MetricKind.COUNTER, text, RANK_LABELS, source, None, read, lingers=True
    )


def _rank_gauge(
    what: str, text: str, source: str, unit: str | None, read: Callable[[RankView], float | None], lingers: bool = False
) -> ReadMetric[RankView]:
    return ReadMetric(f"tidegauge_rank_{what}", MetricKind.GAUGE, text, RANK_LABELS, source, unit, read, lingers)


RANK_METRICS: tuple[ReadMetric[RankView], ...] = (
    _rank_bytes(
        "allocated",
        "Live tensors of the rank, as PyTorch's allocator counts them.",
        '`memory_stats()["allocated_bytes.all.current"]`',
        lambda rank: rank.allocated_bytes,
    ),
    _rank_bytes(
        "reserved",
        "Device memory that the rank's caching allocator holds, in use or cached.",
        '`memory_stats()["reserved_bytes.all.current"]`',
        lambda rank: rank.reserved_bytes,
    ),
    _rank_bytes(
        "active",
        "Allocated blocks and freed ones that another stream still uses.",
        '`memory_stats()["active_bytes.all.current"]`',
        lambda rank: rank.active_bytes,
    ),
    _rank_bytes(
        "inactive_split",
        "Free pieces of partly used blocks, which the allocator cannot return to the device: fragmentation.",
        '`memory_stats()["inactive_split_bytes.all.current"]`',
        lambda rank: rank.inactive_split_bytes,
    ),
    _rank_bytes(
        "requested",
        "Bytes that the code requested, before the allocator rounded them up.",
        '`memory_stats()["requested_bytes.all.current"]`',
        lambda rank: rank.requested_bytes,
    ),
    _rank_bytes(
        "nontorch",
        "Device memory of the rank's process outside PyTorch's allocator: CUDA context, NCCL, cuBLAS, other libraries.",
        "NVML `usedGpuMemory` of the process minus reserved",
        lambda rank: rank.nontorch_bytes,
    ),
    _rank_bytes(
        "limit",
        "Memory limit of the rank on its GPU: its memory fraction if set, else the GPU's total.",
        "`set_per_process_memory_fraction` or NVML `memory.total`",
        lambda rank: rank.limit_bytes,
    ),
    _rank_bytes(
        "host_rss",
        "Host memory of the rank's process and its descendants (DataLoader workers): anonymous and shared memory, "
        "shared pages counted once; without mapped files, which the kernel can drop.",
        "`Pss_Anon` and `Pss_Shmem` of `/proc/PID/smaps_rollup`, brought up to date by `/proc/PID/statm`",
        lambda rank: rank.host_rss_bytes,
    ),
    _rank_bytes(
        "allocated_peak",
        "Peak of allocated since the start, or since the job reset its peak statistics.",
        '`memory_stats()["allocated_bytes.all.peak"]`',
        lambda rank: rank.allocated_peak_bytes,
    ),
    _rank_bytes(
        "reserved_peak",
        "Peak of reserved since the start, or since the job reset its peak statistics.",
        '`memory_stats()["reserved_bytes.all.peak"]`',
        lambda rank: rank.reserved_peak_bytes,
    ),
    _rank_total(
        "alloc_retries",
        "Device allocations that failed at first and were retried after the cache was emptied: little memory is left.",
        '`memory_stats()["num_alloc_retries"]` since watching started',
        lambda rank: rank.alloc_retries,
    ),
    _rank_total(
        "ooms",
        "Out-of-memory errors raised in the rank, including those that the job caught.",
        '`memory_stats()["num_ooms"]` since watching started',
        lambda rank: rank.ooms,
    ),
    _rank_total(
        "steps",
        "Training steps finished; if it stays constant, the detector judges memory by time.",
        "optimizer step hook or `tidegauge.step()`, since watching started",
        lambda rank: rank.steps,
    ),
    _rank_gauge(
        "last_sample_timestamp_seconds",
        "Unix time of the rank's last reading; its age tells a hung rank from a quiet one.",
        "the rank's own clock",
        "seconds",
        lambda rank: _finite(rank.last_sample_unix_s),
        lingers=True,
    ),
    _rank_gauge(
        "leak_state",
        "Verdict of the leak detector on the rank: 0 ok, 1 suspected, 2 growing, dangerous or not.",
        "leak detector",
        None,
        lambda rank: rank.verdict.state.level,
        lingers=True,
    ),
    _rank_gauge(
        "leak_bytes_per_step",
        "Suspected or established growth, in bytes per training step; absent without growth or steps.",
        "leak detector, likely value of its band",
        "bytes per step",
        lambda rank: _likely(rank.verdict.bytes_per_step),
    ),
    _rank_gauge(
        "leak_seconds_to_oom",
        "Time until the growth reaches the rank's limit at the current rate; +Inf if the growth ends by itself before "
        "that; absent without growth or without a predicted OOM.",
        "leak detector, likely value of its band",
        "seconds",
        _seconds_to_oom,
    ),
    _rank_gauge(
        "leak_headroom_eaten_ratio",
        "Share of the memory that was free when the growth began and that it has taken; dangerous from 0.5.",
        "leak detector",
        "ratio",
        lambda rank: rank.verdict.headroom_eaten,
    ),
)

RANK_PROFILE = Metric(
    "tidegauge_rank_profile_bytes",
    MetricKind.GAUGE,
    "Allocated memory at the peak of the rank's last memory profile, by category: up to 13 series a rank, whose sum is "
    "that peak; absent without a profile.",
    (*RANK_LABELS, "category"),
    "memory profile, as in `tidegauge profile`",
    "bytes",
)

RANK_INFO = Metric(
    "tidegauge_rank_info",
    MetricKind.INFO,
    "Facts about the rank, for joins.",
    (*RANK_LABELS, "pid", "node", "torch_version", "alloc_conf", "profile"),
    "kernel (`pid`), agent (`node`), the rank's probe (the others)",
)


def _gpu_bytes(what: str, text: str, source: str, read: Callable[[GpuView], int | None]) -> ReadMetric[GpuView]:
    return ReadMetric(f"tidegauge_gpu_{what}_bytes", MetricKind.GAUGE, text, GPU_LABELS, source, "bytes", read)


GPU_METRICS: tuple[ReadMetric[GpuView], ...] = (
    _gpu_bytes(
        "total",
        "Memory of the GPU or MIG instance.",
        "`nvidia-smi` `memory.total`",
        lambda gpu: gpu.total_bytes,
    ),
    _gpu_bytes(
        "used",
        "Memory of the GPU in use, by any process.",
        "`nvidia-smi` `memory.used`",
        lambda gpu: gpu.used_bytes,
    ),
    _gpu_bytes(
        "other_processes",
        "Memory of the GPU used by processes that Tidegauge does not watch.",
        "NVML's list of compute processes minus the watched ranks and their child processes, and minus those that have "
        "ended where `tidegauge_gpu_unheld_bytes` is told",
        lambda gpu: gpu.other_processes_bytes,
    ),
    _gpu_bytes(
        "unheld",
        "Memory of the GPU in use that no process holds. Absent while that cannot be told: a process lives there whose "
        "managed memory it may be, or not all processes are listed.",
        "`memory.used` minus NVML's lists of the processes that live",
        lambda gpu: gpu.unheld_bytes,
    ),
)

NODE_LABELS = ("cluster", "hostname")


def _node_bytes(what: str, text: str, source: str, read: Callable[[NodeMemory], int | None]) -> ReadMetric[NodeMemory]:
    return ReadMetric(f"tidegauge_node_{what}_bytes", MetricKind.GAUGE, text, NODE_LABELS, source, "bytes", read)


NODE_METRICS: tuple[ReadMetric[NodeMemory], ...] = (
    _node_bytes(
        "memory_total",
        "Host memory of the node.",
        "`MemTotal` of `/proc/meminfo`",
        lambda node: node.total_bytes,
    ),
    _node_bytes(
        "memory_available",
        "Host memory available to processes; when it runs out, the kernel's OOM killer ends one.",
        "`MemAvailable` of `/proc/meminfo`",
        lambda node: node.available_bytes,
    ),
    _node_bytes(
        "shm_total",
        "Size of the node's `/dev/shm`, through which DataLoader workers pass batches.",
        "`statvfs` of `/dev/shm`, as the agent sees it",
        lambda node: node.shm_total_bytes,
    ),
    _node_bytes(
        "shm_used",
        "Used part of the node's `/dev/shm`; it is host memory, and no longer available.",
        "`statvfs` of `/dev/shm`, as the agent sees it",
        lambda node: node.shm_used_bytes,
    ),
)

JOB_INFO = Metric(
    "tidegauge_job_info",
    MetricKind.INFO,
    "Facts about the job, for joins on `cluster, job_id, attempt, group`.",
    (
        *JOB_LABELS,
        "user_name",
        "job_name",
        "scheduler",
        "world_size",
        "slurm_partition",
        "slurm_account",
        "slurm_array",
    ),
    "coordinator; nowhere else, because an info metric from two targets breaks every join",
)


def _of_job(what: str, text: str, read: Callable[[JobView], float | None]) -> ReadMetric[JobView]:
    return ReadMetric(f"tidegauge_job_{what}", MetricKind.GAUGE, text, JOB_LABELS, "coordinator", None, read)


JOB_METRICS: tuple[ReadMetric[JobView], ...] = (
    _of_job(
        "ranks",
        "Living ranks of the job whose node reports; compare with `tidegauge_job_world_size`.",
        lambda job: sum(rank.alive and rank.identity.rank not in job.stale for rank in job.ranks),
    ),
    _of_job(
        "world_size",
        "World size of the job, as its ranks report it.",
        lambda job: job.world_size,
    ),
    _of_job(
        "suspects",
        "Ranks of the job that the detector suspects or calls growing.",
        lambda job: len(job.suspects),
    ),
    _of_job(
        "leak_state",
        "Worst verdict among the job's ranks: 0 ok, 1 suspected, 2 growing, dangerous or not.",
        lambda job: job.state.level,
    ),
)

NODE_TABLE: tuple[Metric, ...] = (*RANK_METRICS, RANK_PROFILE, RANK_INFO, *GPU_METRICS, *NODE_METRICS, *SELF_METRICS)
"""Rows of every node's ``/metrics`` in the order of exposition."""
COORDINATOR_TABLE: tuple[Metric, ...] = (
    JOB_INFO, *JOB_METRICS, *JOB_LOOP_METRICS, *NODE_COUNTS, *LOOP_METRICS, *USAGE_METRICS, COLLECT_SUCCESS,
)  # fmt: skip
"""Rows of the coordinator's ``/metrics``."""
SERVICE_TABLE: tuple[Metric, ...] = (BUILD_INFO,)
"""Rows of every page of a service of ours."""
