"""Settings of PyTorch's allocator, where it reserves far more than is allocated: replayed with them."""

from __future__ import annotations

from collections.abc import Iterator

from tidegauge.analysis.profile.recording import NamedRecording
from tidegauge.analysis.whatif.search import whatif
from tidegauge.analysis.whatif.words import calls, export_line
from tidegauge.core.profile.advice import AdvisedMeasure, Measure

MIN_SLACK_SHARE = 0.1
"""Of the reserved peak that is never allocated, below which settings are not tried."""
MIN_SLACK_BYTES = 256 << 20


def allocator_settings(recording: NamedRecording, allocated_peak_bytes: int) -> Iterator[AdvisedMeasure]:
    """What ``tidegauge whatif`` recommends, where that is not today's settings."""
    slack_bytes = recording.reserved_bytes - allocated_peak_bytes
    if slack_bytes < max(MIN_SLACK_BYTES, MIN_SLACK_SHARE * recording.reserved_bytes):
        return
    try:
        found = whatif(recording.trace)
    except ValueError:  # the trace cannot be followed, or its torch refuses its settings: whatif says which
        return
    best, today = found.recommended, found.today
    if best is today or best.replay.ooms:
        return
    peak_bytes = best.replay.peak_reserved_bytes
    yield AdvisedMeasure(
        Measure.ALLOCATOR_SETTINGS,
        peak_bytes,
        today.replay.peak_reserved_bytes - peak_bytes,
        action=f"Set the allocator (`{export_line(found)}`)",
        price=f"{calls(best, found.steps)} to the device for memory, today {calls(today, found.steps)}",
        condition=f"by a replay whose confidence is {best.confidence.value} (`tidegauge whatif`)",
        is_reserved=True,
    )
