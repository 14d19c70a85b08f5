"""Infers the torch version from a snapshot's keys (allocator notes, 0.1 and 3.1)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.fields import mapping
from tidegauge.core.alloc_conf import CUDA_NAME, format_alloc_conf, parse_alloc_conf

_MIB = 1 << 20


def oldest_torch(
    whole: Container[str], settings: Mapping[str, Any], conf: str, entries: Container[str]
) -> Optional[str]:
    """The oldest version that writes these keys of the snapshot, its settings and its trace entries.

    ``None`` where none of them tells.
    """
    told = (
        ("2.13", "max_round_threshold" in settings or "max_cached_size" in settings),
        ("2.12", "pool_id" in entries),
        ("2.11", "large_segment_size_mb" in conf),
        ("2.10", "user_metadata" in entries or "per_process_memory_fraction" in conf),
        ("2.9", "compile_context" in entries or "graph_capture_record_stream_reuse" in settings),
        ("2.5", "external_annotations" in whole),
    )
    return next((version for version, seen in told if seen), None)


def effective_conf(settings: Mapping[str, Any]) -> str:
    """The settings in force, as text.

    The snapshot has the last text that was given to the allocator. What an earlier call switched on and the last one
    does not mention may still be in force (``expandable_segments`` is): the snapshot's own values show it.
    """
    text = settings.get(CUDA_NAME, "")
    if not isinstance(text, str):
        raise BadTraceError(f"allocator_settings: {CUDA_NAME!r} should be a text, and is {shown(text)}")
    conf = parse_alloc_conf(text)
    for key, value in _reported(settings).items():
        conf.setdefault(key, value)
    return format_alloc_conf(conf)


def _reported(settings: Mapping[str, Any]) -> dict[str, str]:
    """Those of the snapshot's values that are not the default."""
    reported: dict[str, str] = {}
    if settings.get("expandable_segments") is True:
        reported["expandable_segments"] = "True"
    split_bytes = settings.get("max_split_size", -1)
    if isinstance(split_bytes, int) and 0 < split_bytes < 1 << 50:
        reported["max_split_size_mb"] = str(split_bytes // _MIB)
    threshold = settings.get("garbage_collection_threshold", 0.0)
    if isinstance(threshold, float) and 0.0 < threshold < 1.0:
        reported["garbage_collection_threshold"] = repr(threshold)
    divisions = mapping(settings.get("roundup_power2_divisions", {}), "roundup_power2_divisions")
    told = [
        f"{mib}:{count}"
        for mib, count in divisions.items()
        if isinstance(count, int) and 0 < count < 1 << 20 and mib.isdigit()
    ]
    if told:
        reported["roundup_power2_divisions"] = f"[{','.join(told)}]"
    return reported
