"""Settings of PyTorch's allocator, where it reserves more than is asked for: replayed with them."""

from __future__ import annotations

from collections.abc import Iterator

from tidegauge.analysis.profile.advice.curve import Curve, LifeChange
from tidegauge.analysis.profile.recording import NamedRecording
from tidegauge.analysis.whatif.results import SAME_BYTES, SAME_SHARE
from tidegauge.analysis.whatif.search import whatif
from tidegauge.analysis.whatif.words import calls, export_line
from tidegauge.core.profile.advice import AdvisedMeasure, Measure


def allocator_settings(recording: NamedRecording, curve: Curve) -> Iterator[AdvisedMeasure]:
    """What ``tidegauge whatif`` recommends, where that is not today's settings."""
    # No setting reserves less than is asked for, and whatif takes peaks so close together for the same.
    most_saved_bytes = recording.reserved_bytes - _requested_peak_bytes(recording, curve)
    if most_saved_bytes <= max(SAME_BYTES, SAME_SHARE * recording.reserved_bytes):
        return
    try:
        found = whatif(recording.trace, recorded=recording.replayed)
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


def _requested_peak_bytes(recording: NamedRecording, curve: Curve) -> int:
    """Without what the allocator adds, which is up to its settings."""
    blocks = (one.block for one in recording.blocks)
    return curve.peak_bytes(LifeChange(one.made, one.freed, one.requested_bytes - one.size_bytes) for one in blocks)
