"""Recording rules: figures of jobs, nodes and the cluster, and joins with the series of other exporters.

A question about 10,000 ranks then reads hundreds of series, not hundreds of thousands. Each rule reads what was
scraped, never another recorded series: all of them are of one moment, and ``promtool tsdb create-blocks-from rules``
computes a past in one pass. Where two series of ranks meet, they have the same labels, so that nothing has to be
searched.
"""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.rules.values import RecordingRule, RuleGroup

JOB: Final = "cluster, job_id, attempt, group"
"""Labels that tell attempts of jobs apart."""
_HOLDS: Final = "((tidegauge_rank_reserved_bytes + tidegauge_rank_nontorch_bytes) or tidegauge_rank_reserved_bytes)"
"""Memory that a rank holds on its GPU; without NVML, the memory that its allocator holds."""
_WORDS: Final = {"sum": "All ranks together", "max": "The rank with the most", "min": "The rank with the least"}


def _of_job(what: str, operation: str, text: str) -> RecordingRule:
    """The rule makes one pass over one series of all ranks."""
    return RecordingRule(
        f"cluster_job:tidegauge_{what}_bytes:{operation}",
        f"{operation} by ({JOB}) (tidegauge_rank_{what}_bytes)",
        f"{_WORDS[operation]}: {text}",
    )


def _median_of_job(what: str, text: str) -> RecordingRule:
    return RecordingRule(
        f"cluster_job:tidegauge_{what}_bytes:median",
        f"quantile by ({JOB}) (0.5, tidegauge_rank_{what}_bytes)",
        f"The median rank: {text}",
    )


_ALLOCATED: Final = "live tensors."
_RESERVED: Final = "memory reserved by the caching allocator."
_NONTORCH: Final = "device memory outside the allocator."

JOBS = RuleGroup(
    "tidegauge-jobs",
    (
        *(_of_job("allocated", operation, _ALLOCATED) for operation in ("sum", "max", "min")),
        _median_of_job("allocated", _ALLOCATED),
        *(_of_job("reserved", operation, _RESERVED) for operation in ("sum", "max", "min")),
        _median_of_job("reserved", _RESERVED),
        *(_of_job("nontorch", operation, _NONTORCH) for operation in ("sum", "max")),
        _of_job("limit", "sum", "memory limit of the rank on its GPU."),
        RecordingRule(
            "cluster_job:tidegauge_waste_bytes:sum",
            f"sum by ({JOB}) (tidegauge_rank_reserved_bytes) - sum by ({JOB}) (tidegauge_rank_allocated_bytes)",
            "Reserved and not allocated now. Between steps a healthy job shows its activations here; it is waste only "
            "if it stays.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_used_ratio:max",
            f"max by ({JOB}) ({_HOLDS} / tidegauge_rank_limit_bytes)",
            "The fullest rank: reserved memory plus memory outside the allocator, as a share of its limit.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_skew_ratio",
            f"max by ({JOB}) (tidegauge_rank_allocated_bytes)\n"
            f"/ (quantile by ({JOB}) (0.5, tidegauge_rank_allocated_bytes) > 0)",
            "Allocated memory of the highest rank divided by the median rank's: 1 if all are alike.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_seconds_to_oom:min",
            f"min by ({JOB}) (tidegauge_rank_leak_seconds_to_oom < Inf)",
            "Time until the first rank runs out of memory at the current rate; absent without growth, and if all "
            "growth ends before that.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_leak_bytes_per_step:max",
            f"max by ({JOB}) (tidegauge_rank_leak_bytes_per_step)",
            "Growth of the rank that grows fastest, in bytes per step; absent without growth.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_leak_state:max",
            f"max by ({JOB}) (tidegauge_rank_leak_state)",
            "Worst verdict among the ranks: 0 ok, 1 suspected, 2 growing, dangerous or not.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_ranks:count",
            f"count by ({JOB}) (tidegauge_rank_allocated_bytes)",
            "Ranks that report.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_ooms:increase5m",
            f"sum by ({JOB}) (increase(tidegauge_rank_ooms_total[5m]))",
            "Out-of-memory errors of the last five minutes, caught ones included. Prometheus "
            "extrapolates: 1 may read 1.05.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_alloc_retries:rate5m",
            f"sum by ({JOB}) (rate(tidegauge_rank_alloc_retries_total[5m]))",
            "Allocation retries per second, all ranks together.",
        ),
        RecordingRule(
            "cluster_job:tidegauge_steps:rate5m",
            f"max by ({JOB}) (rate(tidegauge_rank_steps_total[5m]))",
            "Training steps per second of the fastest rank: ranks step together, so a sum would mean nothing.",
        ),
    ),
)


def _of_cluster(level: str, by: str, metric: str, text: str, operation: str = "sum") -> RecordingRule:
    return RecordingRule(
        f"{level}:{metric.replace('tidegauge_rank_', 'tidegauge_')}:{operation}",
        f"{operation} by ({by}) ({metric})",
        text,
    )


CLUSTER = RuleGroup(
    "tidegauge-cluster",
    (
        _of_cluster("cluster", "cluster", "tidegauge_gpu_total_bytes", "Memory of all watched GPUs."),
        _of_cluster("cluster", "cluster", "tidegauge_gpu_used_bytes", "Memory of watched GPUs in use, by any process."),
        _of_cluster(
            "cluster",
            "cluster",
            "tidegauge_gpu_other_processes_bytes",
            "Memory used by processes that Tidegauge does not watch.",
        ),
        RecordingRule(
            "cluster:tidegauge_gpus:count", "count by (cluster) (tidegauge_gpu_total_bytes)", "Watched GPUs."
        ),
        _of_cluster("cluster", "cluster", "tidegauge_rank_allocated_bytes", "Live tensors of all ranks."),
        _of_cluster("cluster", "cluster", "tidegauge_rank_reserved_bytes", "Held by the allocators of all ranks."),
        _of_cluster(
            "cluster", "cluster", "tidegauge_rank_nontorch_bytes", "Device memory of all ranks outside the allocator."
        ),
        RecordingRule(
            "cluster:tidegauge_waste_bytes:sum",
            "sum by (cluster) (tidegauge_rank_reserved_bytes) - sum by (cluster) (tidegauge_rank_allocated_bytes)",
            "Reserved and not allocated now, all ranks together.",
        ),
        RecordingRule(
            "cluster:tidegauge_ranks:count", "count by (cluster) (tidegauge_rank_allocated_bytes)", "Ranks that report."
        ),
        *(
            RecordingRule(
                f"cluster:tidegauge_node_used_ratio:{name}",
                f"{operation}\n"
                "  sum by (cluster, hostname) (tidegauge_gpu_used_bytes)\n"
                "  / sum by (cluster, hostname) (tidegauge_gpu_total_bytes)\n)",
                f"GPU memory in use by any process, as a share of the total: {text}.",
            )
            for name, operation, text in (
                ("max", "max by (cluster) (", "the fullest node"),
                ("median", "quantile by (cluster) (0.5,", "the median node"),
                ("min", "min by (cluster) (", "the emptiest node"),
            )
        ),
        RecordingRule(
            "cluster:tidegauge_agents_down:count",
            'sum by (cluster) (up{job="tidegauge",component="agent"} == bool 0)',
            "Node agents that Prometheus does not reach.",
        ),
        RecordingRule(
            "cluster:tidegauge_collect_failures:count",
            "sum by (cluster) (tidegauge_collect_success == bool 0)",
            "Data sources whose last read failed, on all nodes and the coordinator.",
        ),
        RecordingRule(
            "cluster:tidegauge_sample_age_seconds:max",
            "time() - min by (cluster) (\n"
            "  tidegauge_rank_last_sample_timestamp_seconds and tidegauge_rank_allocated_bytes\n)",
            "Age of the oldest reading of a living rank.",
        ),
    ),
)

NODES = RuleGroup(
    "tidegauge-nodes",
    (
        _of_cluster("cluster_node", "cluster, hostname", "tidegauge_gpu_used_bytes", "Memory in use on a node's GPUs."),
        _of_cluster("cluster_node", "cluster, hostname", "tidegauge_gpu_total_bytes", "Memory of a node's GPUs."),
        RecordingRule(
            "cluster_node:tidegauge_unwatched_bytes:sum",
            "clamp_min(\n"
            "  sum by (cluster, hostname) (tidegauge_gpu_used_bytes)\n"
            "  - (sum by (cluster, hostname) (tidegauge_rank_reserved_bytes)\n"
            "    or 0 * sum by (cluster, hostname) (tidegauge_gpu_used_bytes))\n"
            "  - (sum by (cluster, hostname) (tidegauge_rank_nontorch_bytes)\n"
            "    or 0 * sum by (cluster, hostname) (tidegauge_gpu_used_bytes)),\n"
            "  0\n)",
            "Memory in use on a node's GPUs that no watched rank accounts for: other processes, memory of ranks on "
            "other GPUs than their own, and the driver's own memory (a few hundred MiB per GPU).",
        ),
    ),
)

RECORDING: tuple[RuleGroup[RecordingRule], ...] = (JOBS, CLUSTER, NODES)


def recorded_names() -> frozenset[str]:
    """Names of all series that need no other exporter."""
    return frozenset(rule.record for group in RECORDING for rule in group.rules)


DCGM: Final = "dcgm-exporter, same UUIDs"
KUBE: Final = "kube-state-metrics; Tidegauge's `hostname` is the name of the Kubernetes node"
SLURM: Final = "prometheus-slurm-exporter (its `slurm_gpus_*` carry no node), one Slurm cluster in this Prometheus"
HPC: Final = "dcgm-exporter with `--hpc-job-mapping-dir` (label `hpc_job`), filled by a Slurm prolog"

_RANKS_OF_GPU: Final = f"max by ({JOB}, rank, UUID) (tidegauge_rank_reserved_bytes)"
_UTIL: Final = "max by (UUID) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[15m]))"

# The other exporter's labels are reduced first, so that a second target of it (a replica, a restarted pod) does not
# break the join.
JOINS: tuple[RecordingRule, ...] = (
    RecordingRule(
        "cluster_job:tidegauge_gpu_utilization_percent:avg15m",
        f"avg by ({JOB}) (\n  {_UTIL}\n  * on (UUID) group_right () ({_RANKS_OF_GPU} > bool -1)\n)",
        "Average utilization of the GPUs of the job's ranks over 15 minutes, in percent.",
        DCGM,
    ),
    RecordingRule(
        "cluster_job:tidegauge_idle_reserved_bytes:sum",
        f"sum by ({JOB}) ({_RANKS_OF_GPU} and on (UUID) {_UTIL} < 5)",
        "Memory that ranks hold on GPUs that were idle (below 5 %) for 15 minutes.",
        DCGM,
    ),
    RecordingRule(
        "cluster_node:tidegauge_unwatched_gpu_requests:sum",
        "sum by (hostname) (label_replace(\n"
        "  max by (namespace, pod, container, node) (\n"
        '    kube_pod_container_resource_requests{resource="nvidia_com_gpu"}\n'
        "  ),\n"
        '  "hostname", "$1", "node", "(.+)"\n'
        "))\n"
        "- on (hostname) group_right () (\n"
        "  count by (cluster, hostname) (count by (cluster, hostname, UUID) (tidegauge_rank_reserved_bytes))\n"
        "  or 0 * count by (cluster, hostname) (tidegauge_gpu_total_bytes)\n"
        ")",
        "GPUs that pods on the node requested and on which no rank is watched.",
        KUBE,
    ),
    RecordingRule(
        "cluster:tidegauge_watched_share_of_slurm_gpus",
        "count by (cluster) (count by (cluster, UUID) (tidegauge_rank_reserved_bytes))\n"
        "/ on () group_left () (max(slurm_gpus_alloc) > 0)",
        "Share of the GPUs that Slurm allocated to jobs on which a rank is watched.",
        SLURM,
    ),
    RecordingRule(
        "hpc_job:tidegauge_unwatched_gpus:count",
        "count by (hpc_job) (\n"
        '  max by (hpc_job, UUID) (DCGM_FI_DEV_FB_USED{hpc_job!=""})\n'
        "  unless on (UUID) tidegauge_rank_reserved_bytes\n"
        ")",
        "GPUs of a Slurm job on which no rank is watched.",
        HPC,
    ),
)

JOIN_GROUP: RuleGroup[RecordingRule] = RuleGroup("tidegauge-joins", JOINS, interval_s=60)
