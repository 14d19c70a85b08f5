"""What the next run of a workload could ask for, as an annotation that programs read. Pure."""

from __future__ import annotations

import json

from tidegauge.core.job_records.end_words import usage_of
from tidegauge.core.job_records.record import JobRecord

MIB = 1 << 20


def recommendation(record: JobRecord) -> str | None:
    """The annotation ``RECOMMENDED``, by this run alone; ``None`` where it tells nothing of what the job needs. Memory
    is of one GPU, as a Kubernetes quantity; the last three have room for ``withMargin``, or are left out."""
    usage = usage_of(record)
    if usage is None:
        return None
    said = {
        "gpus": usage.gpus,
        "needed": _quantity(usage.highest_bytes),
        "withMargin": _quantity(usage.safe_bytes),
        "migProfile": usage.mig_profile,
        "share": None if usage.share is None else f"1/{usage.share}",
        "memoryFraction": usage.fraction,
    }
    return json.dumps({name: value for name, value in said.items() if value is not None})


def _quantity(size: int) -> str:
    """Whole MiB, at least as much."""
    return f"{-(-size // MIB)}Mi"
