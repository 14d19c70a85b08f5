"""What a record tells of a job, as names and values for people. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from tidegauge.core.job_records.end_words import fullest_words
from tidegauge.core.job_records.record import JobRecord, RankPeak
from tidegauge.core.units import format_count
from tidegauge.core.verdicts import state_word


def facts(record: JobRecord, moment: Callable[[float], str]) -> list[tuple[str, str]]:
    """Names and values of what is known: who, what, where, when, and how it went. ``moment`` writes times."""
    command = " ".join(filter(None, (record.script, record.arguments)))
    gpus = f" on {format_count(record.gpus, 'GPU')}" if record.gpus else ""
    where = (
        record.scheduler,
        record.partition and f"partition {record.partition}",
        record.namespace and f"namespace {record.namespace}",
        f"{format_count(record.world_size, 'rank')}{gpus} of {format_count(record.nodes, 'node')}",
    )
    lines = [
        ("owner", f"{record.user_name} (uid {record.job.uid})"),
        ("account", record.account),
        ("command", command),
        ("script", record.script_sha256 and f"sha256 {record.script_sha256[:12]}"),
        ("torch", record.torch_version),
        ("allocator", record.alloc_conf),
        ("where", ", ".join(filter(None, where))),
        ("started", moment(record.started_unix_s)),
        ("steps", f"{record.steps:,}" if record.steps else None),
        ("fullest", fullest_words(record.fullest)),
        ("worst state", worst_state(record) + (f", signal {record.signal.value}" if record.signal else "")),
        ("OOMs", _oom_words(record.ooms)),
        ("changed", record.change),
        ("actions", ", ".join(record.actions)),
    ]
    return [(name, text) for name, text in lines if text]


def _oom_words(ranks: int) -> Optional[str]:
    if not ranks:
        return None
    return f"{format_count(ranks, 'rank')} ran out of memory{' at the same time' if ranks > 1 else ''}"


def used_share(peak: RankPeak) -> Optional[float]:
    """The share of its limit that PyTorch reserved on a rank; ``None`` without a limit."""
    return peak.reserved_bytes / peak.limit_bytes if peak.limit_bytes else None


def worst_state(record: JobRecord) -> str:
    """The worst verdict of the job's whole life: "leak (critical)"."""
    state = state_word(record.state, record.severity, has_steps=record.steps > 0)
    return f"{state} ({record.severity.value})" if record.severity else state


def head_room(peak: RankPeak) -> Optional[int]:
    """What the limit leaves beside the peaks in PyTorch and outside of it: at least, as they need not coincide."""
    if peak.limit_bytes is None:
        return None
    return max(peak.limit_bytes - peak.reserved_bytes - (peak.nontorch_bytes or 0), 0)
