"""Recording rules that need another exporter beside Tidegauge's: an optional file.

They join job-level or node-level figures, or ranks by ``UUID``; the other exporter's labels are reduced first, so that
a second target of it (a replica, a restarted pod) does not break the join.
"""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.rules.recording import JOB
from tidegauge_exporter.rules.values import JoinRule, RecordingRule, RuleGroup

DCGM: Final = "dcgm-exporter, same UUIDs"
KUBE: Final = "kube-state-metrics; Tidegauge's `hostname` is the name of the Kubernetes node"
SLURM: Final = "prometheus-slurm-exporter (its `slurm_gpus_*` carry no node), one Slurm cluster in this Prometheus"
HPC: Final = "dcgm-exporter with `--hpc-job-mapping-dir` (label `hpc_job`), filled by a Slurm prolog"

_RANKS_OF_GPU: Final = f"max by ({JOB}, rank, UUID) (tidegauge_rank_reserved_bytes)"
_UTIL: Final = "max by (UUID) (avg_over_time(DCGM_FI_DEV_GPU_UTIL[15m]))"

JOINS: tuple[JoinRule, ...] = (
    JoinRule(
        RecordingRule(
            "cluster_job:tidegauge_gpu_utilization_percent:avg15m",
            f"avg by ({JOB}) (\n  {_UTIL}\n  * on (UUID) group_right () ({_RANKS_OF_GPU} > bool -1)\n)",
            "Average utilization of the GPUs of the job's ranks over 15 minutes, in percent.",
        ),
        DCGM,
    ),
    JoinRule(
        RecordingRule(
            "cluster_job:tidegauge_idle_reserved_bytes:sum",
            f"sum by ({JOB}) ({_RANKS_OF_GPU} and on (UUID) {_UTIL} < 5)",
            "Memory that ranks hold on GPUs that were idle (below 5 %) for 15 minutes.",
        ),
        DCGM,
    ),
    JoinRule(
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
        ),
        KUBE,
    ),
    JoinRule(
        RecordingRule(
            "cluster:tidegauge_watched_share_of_slurm_gpus",
            "count by (cluster) (count by (cluster, UUID) (tidegauge_rank_reserved_bytes))\n"
            "/ on () group_left () (max(slurm_gpus_alloc) > 0)",
            "Share of the GPUs that Slurm allocated to jobs on which a rank is watched.",
        ),
        SLURM,
    ),
    JoinRule(
        RecordingRule(
            "hpc_job:tidegauge_unwatched_gpus:count",
            "count by (hpc_job) (\n"
            '  max by (hpc_job, UUID) (DCGM_FI_DEV_FB_USED{hpc_job!=""})\n'
            "  unless on (UUID) tidegauge_rank_reserved_bytes\n"
            ")",
            "GPUs of a Slurm job on which no rank is watched.",
        ),
        HPC,
    ),
)

JOIN_GROUP: RuleGroup[RecordingRule] = RuleGroup("tidegauge-joins", tuple(join.rule for join in JOINS), interval_s=60)
