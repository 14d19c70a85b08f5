"""The values of a forecast plot: layers, range of time, and the fan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegauge.core.incidents import Incident, IncidentCause, IncidentState
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import Band
from tidegauge_exporter.messages.headlines import seconds_left
from tidegauge_exporter.messages.values import Story

HISTORY_PER_FORECAST: Final = 4.0
"""Seconds of the past shown at most for each second of the forecast, so that it is not a sliver at the edge."""
FORECAST_PER_HISTORY: Final = 1.5
"""Seconds of the future that are shown at most for each second of the past."""
AFTER_LIKELY: Final = 1.35
"""Shown part of a fan with a late end or none, as a multiple of the time to its likely end."""
MIN_SPAN_S: Final = 60.0


@dataclass(frozen=True)
class Layer:
    """Memory of one kind, drawn on top of the previous layer."""

    label: str
    kind: str
    """``allocated``, ``cached`` (reserved and not allocated), ``nontorch``."""
    bytes_each: tuple[float, ...]
    grows: bool
    """True for the layer that the incident is about."""


@dataclass(frozen=True)
class Fan:
    """The forecast from one point to the limit: soonest, likely and latest (may be infinite), in unix seconds."""

    from_unix_s: float
    from_bytes: float
    ends_unix_s: Band


@dataclass(frozen=True)
class Plot:
    """The values that are drawn."""

    at_unix_s: tuple[float, ...]
    layers: tuple[Layer, ...]
    """Layers from the bottom. Their sum is the rank's memory on its GPU."""
    from_unix_s: float
    to_unix_s: float
    limit_bytes: int | None
    fan: Fan | None
    onset_unix_s: float | None
    stopped_unix_s: float | None
    """When it recovered, or was closed; not of one that ended by an out-of-memory error."""
    oom_unix_s: float | None


def plot_values(story: Story, *, now_unix_s: float) -> Plot | None:
    """The plot; ``None`` with fewer than two points in time, and for host memory."""
    incident, points = story.incident, _in_order(story.memory)
    if len(points) < 2 or not incident.findings or incident.key.cause is IncidentCause.HOST_MEMORY:
        return None
    times = tuple(point.at_unix_s for point in points)
    layers = memory_layers(points, incident.key.cause)
    limit_bytes = incident.findings[0].limit_bytes
    fan = _fan(incident, layers, times[-1], limit_bytes, now_unix_s)
    first_s, last_s = _time_range(times, fan)
    end = oom_end(incident)
    oom = incident.findings[0].oom if end is None else end.oom
    return Plot(
        at_unix_s=times,
        layers=layers,
        from_unix_s=first_s,
        to_unix_s=last_s,
        limit_bytes=limit_bytes,
        fan=fan,
        onset_unix_s=_within(_time_of_step(points, incident.onset_step), first_s, last_s),
        stopped_unix_s=None if end is not None else _within(_stopped(incident), first_s, last_s),
        oom_unix_s=None if oom is None else _within(oom.at_unix_s, first_s, last_s),
    )


def _in_order(points: Sequence[MemoryPoint]) -> list[MemoryPoint]:
    """Points in order of time, without those after a clock was set back."""
    ordered: list[MemoryPoint] = []
    for point in points:
        if math.isfinite(point.at_unix_s) and (not ordered or point.at_unix_s > ordered[-1].at_unix_s):
            ordered.append(point)
    return ordered


def memory_layers(points: Sequence[MemoryPoint], cause: IncidentCause | None) -> tuple[Layer, ...]:
    """Layers in their order: the growing one above the others, so that its growth is seen, and the cache, which gives
    way, above it. ``cause=None``: nothing grows."""
    seen = None if cause is None else cause.as_seen
    allocated = tuple(float(point.allocated_bytes) for point in points)
    cached = tuple(float(max(point.reserved_bytes - point.allocated_bytes, 0)) for point in points)
    outside = tuple(float(point.nontorch_bytes or 0) for point in points)
    tensors = Layer("live tensors", "allocated", allocated, seen is IncidentCause.LEAK)
    cache = Layer("held by PyTorch, not in use", "cached", cached, seen is IncidentCause.FRAGMENTATION)
    others = Layer("outside PyTorch", "nontorch", outside, seen is IncidentCause.OUTSIDE_ALLOCATOR)
    order = (tensors, cache, others) if others.grows else (others, tensors, cache)
    return tuple(layer for layer in order if any(layer.bytes_each))


def _fan(
    incident: Incident, layers: Sequence[Layer], last_s: float, limit_bytes: int | None, now_unix_s: float
) -> Fan | None:
    """The fan from the top of the growing layer: above a leak there is only cache, which PyTorch gives back first."""
    left = seconds_left(incident, now_unix_s)
    growing = next((index for index, layer in enumerate(layers) if layer.grows), None)
    if left is None or limit_bytes is None or growing is None:
        return None
    top = sum(layer.bytes_each[-1] for layer in layers[: growing + 1])
    if top >= limit_bytes:
        return None
    begins_s = max(last_s, now_unix_s)
    return Fan(last_s, top, Band(*(now_unix_s + seconds if seconds else begins_s for seconds in left)))


def _time_range(times: Sequence[float], fan: Fan | None) -> tuple[float, float]:
    past_s = max(times[-1] - times[0], MIN_SPAN_S)
    if fan is None:
        return times[0], times[-1] + 0.04 * past_s
    soonest_s, likely_s, latest_s = (end - times[-1] for end in fan.ends_unix_s)
    shown_s = min(latest_s * 1.04, max(likely_s, soonest_s) * AFTER_LIKELY)
    future_s = max(min(shown_s, past_s * FORECAST_PER_HISTORY), MIN_SPAN_S)
    return max(times[0], times[-1] - HISTORY_PER_FORECAST * future_s), times[-1] + future_s


def _time_of_step(points: Sequence[MemoryPoint], step: int | None) -> float | None:
    if step is None or points[0].step >= step:
        return None
    return next((point.at_unix_s for point in points if point.step >= step), None)


def _stopped(incident: Incident) -> float | None:
    if incident.state is IncidentState.RECOVERING:
        return incident.recovering_since_unix_s
    return incident.closed_unix_s if incident.state is IncidentState.CLOSED else None


def _within(at_unix_s: float | None, first_s: float, last_s: float) -> float | None:
    return at_unix_s if at_unix_s is not None and first_s <= at_unix_s <= last_s else None
