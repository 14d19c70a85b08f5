"""What a record says of a job that ended, in words: one line for job logs, remarks in schedulers and mails. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from tidegauge.core.ids import known_as
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.jobs.right_size import MIN_RUN_S, GpuUsage, advice
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes, format_duration

HOW: Mapping[JobEnd, str] = {
    JobEnd.UNKNOWN: "not known",
    JobEnd.ENDED: "by itself",
    JobEnd.KILLED: "killed",
    JobEnd.COMPLETED: "completed",
    JobEnd.FAILED: "failed",
    JobEnd.CANCELLED: "cancelled",
    JobEnd.PREEMPTED: "preempted",
    JobEnd.REQUEUED: "requeued",
    JobEnd.OOM: "OOM",
}
MAX_NAME_CHARS = 80


def end_sentence(record: JobRecord, sizes: Sequence[int] = ()) -> str:
    """How a job ended, how full its fullest GPU was, what the next run could ask for, and where to read more.

    ``sizes``: bytes of the GPUs that the cluster has.
    """
    ran = format_duration(ran_s(record))
    ended = f"running for {ran}" if record.end is None else f"ended after {ran} ({HOW[record.end]})"
    parts = [ended, fullest_words(record.fullest)]
    told = size_advice(record, sizes)
    if told is not None:
        parts.append(f"this job {told}")
    name = shlex.quote(one_line(known_as(record.job.job_id, record.job_name), MAX_NAME_CHARS))
    parts.append(f"`tidegauge job {name}` has all of it")
    if record.incidents:
        parts.append(f"`tidegauge report {record.incidents[-1]}` makes a page of its incident")
    return "; ".join(parts)


def fullest_words(peak: RankPeak) -> str:
    """How full the fullest rank was: "rank 3 on node7: 61.7 GiB of 79.1 GiB reserved (78%), 52.1 GiB allocated"."""
    reserved = f"{format_bytes(peak.reserved_bytes)} reserved"
    if peak.limit_bytes:
        of = f"{format_bytes(peak.reserved_bytes)} of {format_bytes(peak.limit_bytes)}"
        reserved = f"{of} reserved ({peak.reserved_bytes / peak.limit_bytes:.0%})"
    outside = f", {format_bytes(peak.nontorch_bytes)} outside PyTorch" if peak.nontorch_bytes else ""
    allocated = f"{format_bytes(peak.allocated_bytes)} allocated"
    return f"rank {peak.rank} on {peak.hostname}: {reserved}, {allocated}{outside}"


def size_advice(record: JobRecord, sizes: Sequence[int] = ()) -> str | None:
    """What the next run could ask for, by this run alone; ``None`` after a short run, an out-of-memory error, or where
    the GPUs were right."""
    usage = usage_of(record)
    return None if usage is None else advice(usage, sizes)


def usage_of(record: JobRecord) -> GpuUsage | None:
    """The run as ``right_size`` sums it up; ``None`` where it tells nothing of what the job needs."""
    peak = record.fullest
    if not peak.limit_bytes or ran_s(record) < MIN_RUN_S or record.ooms:
        return None
    return GpuUsage.of_run(
        gpus=record.gpus or record.world_size, ran_s=ran_s(record), limit_bytes=peak.limit_bytes,
        gpu_bytes=peak.gpu_bytes or 0, reserved_bytes=peak.reserved_bytes, nontorch_bytes=peak.nontorch_bytes,
    )  # fmt: skip


def ran_s(record: JobRecord) -> float:
    """How long it ran, or has run so far."""
    ended_s = record.updated_unix_s if record.ended_unix_s is None else record.ended_unix_s
    return max(ended_s - record.started_unix_s, 0.0)
