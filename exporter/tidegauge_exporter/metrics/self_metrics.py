"""The rows of the table of metrics that tell of Tidegauge itself: of a node's agent, and in part of the coordinator."""

from __future__ import annotations

from tidegauge_exporter.metrics.rows import Metric, MetricKind

COLLECT_SUCCESS = Metric(
    "tidegauge_collect_success",
    MetricKind.GAUGE,
    "1 if the last read of this source succeeded, else 0; `view` is the node's state as a whole.",
    ("source",),
    "node agent",
)
COLLECT_DURATION = Metric(
    "tidegauge_collect_duration_seconds",
    MetricKind.GAUGE,
    "Duration of the last read of this source.",
    ("source",),
    "node agent",
    "seconds",
)
SERIES_DROPPED = Metric(
    "tidegauge_series_dropped_total",
    MetricKind.COUNTER,
    "Series dropped from scrapes: `duplicate` labels, or beyond the `budget` of a target; and processes that are not "
    "ranks: a helper with its rank's environment (`duplicate_rank`), or beyond the places of a node or a tenant "
    "(`ranks`).",
    ("reason",),
    "node agent",
)
RINGS_SKIPPED = Metric(
    "tidegauge_rings_skipped_total",
    MetricKind.COUNTER,
    "Ring files refused, by reason.",
    ("reason",),
    "node agent",
)
RECORDS_LOST = Metric(
    "tidegauge_records_lost_total",
    MetricKind.COUNTER,
    "Readings that a rank overwrote before the agent had read them.",
    (),
    "node agent, gaps in the rings' sequence numbers",
)
POLL_DEFERRED = Metric(
    "tidegauge_poll_deferred_total",
    MetricKind.COUNTER,
    "Work that a poll deferred to a later one, so that one tenant's rings do not delay the others': new rings "
    "(`opened`), rings with unread records (`records`), rings of processes that are gone (`orphans`), folders of "
    "containers whose tenant used up its time (`containers`).",
    ("reason",),
    "node agent",
)
RECORDS_REFUSED = Metric(
    "tidegauge_records_refused_total",
    MetricKind.COUNTER,
    "Readings refused because of impossible values.",
    (),
    "node agent",
)
DETECTOR_POINTS = Metric(
    "tidegauge_detector_points_total",
    MetricKind.COUNTER,
    "Readings that the leak detector judged, all ranks; constant while ranks train means that nobody watches them.",
    (),
    "node agent",
)
CLAIMS_OVERRULED = Metric(
    "tidegauge_claims_overruled_total",
    MetricKind.COUNTER,
    "Claims of ranks about themselves that the kernel, the driver, the scheduler or its prolog contradicts, or with "
    "too many ranks (`rank`) or labels (`labels`), by claim.",
    ("claim",),
    "node agent",
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
