"""Alerts about the service itself: who watches the watcher. What they mean to a person is in ``runbook``."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.rules.promql import COUNT, RATE
from tidegauge_exporter.rules.values import AlertRule, AlertSeverity, Board, RuleGroup

_AGENT: Final = 'up{job="tidegauge",component="agent"}'
_COORDINATOR: Final = 'up{job="tidegauge",component="coordinator"}'
_NODE: Final = "cluster, hostname, instance"
_LEFT: Final = (
    # A node that crashes leaves service discovery within seconds, and `up` with it. It is told from one that was taken
    # out on purpose by ranks that wrote readings to the end (a minute is for clocks that differ).
    f"  (max_over_time(timestamp({_AGENT})[15m:30s]) unless {_AGENT})\n"
    "  < on (cluster, hostname) group_left () (\n"
    "    max by (cluster, hostname) (last_over_time(tidegauge_rank_last_sample_timestamp_seconds[15m])) + 60\n"
    "  )"
)
THE_NODE: Final = "{{ with $labels.hostname }}{{ . }}{{ else }}{{ $labels.instance }}{{ end }}"
ACTION: Final = "{{ $labels.action }}"
REASON: Final = "{{ $labels.reason }}"
CLUSTER: Final = "{{ with $labels.cluster }} (cluster {{ . }}){{ end }}"

SERVICE_ALERTS: RuleGroup[AlertRule] = RuleGroup(
    "tidegauge-service-alerts",
    (
        AlertRule(
            "TidegaugeAgentDown",
            f"max by ({_NODE}) ({_AGENT} == 0)\nor max by ({_NODE}) (\n{_LEFT}\n)",
            AlertSeverity.WARNING,
            Board.FLEET,
            f"Agent down on {THE_NODE}",
            f"Prometheus has not reached the node agent on {THE_NODE} for five minutes. Its ranks are not watched; "
            "training continues if the node is healthy.",
            for_s=300,
        ),
        AlertRule(
            "TidegaugeNodeStale",
            'sum by (cluster) (tidegauge_nodes{health=~"stale|waiting"}) > 0',
            AlertSeverity.WARNING,
            Board.FLEET,
            f"Nodes not reporting: {COUNT}{CLUSTER}",
            f"Nodes whose agent has not reported to the coordinator{CLUSTER} for ten minutes: {COUNT}. Incidents of "
            "their jobs are frozen, and Tidegauge takes no action on them.",
            for_s=600,
        ),
        AlertRule(
            "TidegaugeCoordinatorDown",
            f"max by (cluster, instance) ({_COORDINATOR} == 0) or max by (cluster) (absent({_COORDINATOR}))",
            AlertSeverity.CRITICAL,
            Board.FLEET,
            f"Coordinator down{CLUSTER}",
            "Prometheus has not reached the coordinator for three minutes, or has no target for it. No incidents, no "
            "actions, no messages to owners; agents and their metrics continue.",
            for_s=180,
        ),
        AlertRule(
            "TidegaugeDetectorSilent",
            f"sum by ({_NODE}) (rate(tidegauge_rank_steps_total[10m])) > 0\n"
            "and on (instance) (rate(tidegauge_detector_points_total[10m]) == 0)",
            AlertSeverity.WARNING,
            Board.FLEET,
            f"Leak detector silent on {THE_NODE}",
            f"Ranks on {THE_NODE} run {RATE} steps per second, but the leak detector has judged no reading for at "
            "least five minutes. A leak there goes unnoticed.",
            for_s=300,
        ),
        AlertRule(
            "TidegaugeActionsFailing",
            # 1.5 stands between one and two: increase() extrapolates a single one to a little more than 1.
            "sum by (cluster, action) (\n"
            '  increase(tidegauge_actions_total{outcome=~"failed|unverified|no_proof"}[1h])\n'
            ") > 1.5",
            AlertSeverity.WARNING,
            Board.INCIDENTS,
            f"Actions failing: {ACTION}{CLUSTER}",
            f"{COUNT} {ACTION} actions did not succeed within an hour: they failed, could not be confirmed, or a "
            "checkpoint was not proven.",
        ),
        AlertRule(
            "TidegaugeBreakerOpen",
            "max by (cluster) (tidegauge_policy_breaker_open) == 1",
            AlertSeverity.CRITICAL,
            Board.INCIDENTS,
            f"All actions stopped: circuit breaker open{CLUSTER}",
            "The policy would have acted on too many jobs within a short time, so its circuit breaker opened. "
            "Tidegauge takes no action on any job until a person resets it.",
            for_s=60,
        ),
        AlertRule(
            "TidegaugeUserBreakerOpen",
            "max by (cluster) (tidegauge_policy_user_breakers_open) > 0",
            AlertSeverity.WARNING,
            Board.INCIDENTS,
            f"Actions on one user's jobs stopped: circuit breaker open{CLUSTER}",
            "The policy would have acted on too many jobs of one user within a short time, so the breaker of this user "
            "opened. Tidegauge takes no action on their jobs until a person resets it; `tidegauge policy status` names "
            "the user.",
            for_s=60,
        ),
        AlertRule(
            "TidegaugeStoreDown",
            'min by (cluster, instance) (tidegauge_collect_success{source="store"}) == 0',
            AlertSeverity.CRITICAL,
            Board.INCIDENTS,
            f"Database unavailable{CLUSTER}",
            "The coordinator cannot use its database. It keeps watching and holds incidents in memory, but decides and "
            "does nothing.",
            for_s=120,
        ),
        AlertRule(
            "TidegaugeSeriesDropped",
            f"sum by ({_NODE}, reason) (increase(tidegauge_series_dropped_total[15m])) > 0",
            AlertSeverity.WARNING,
            Board.FLEET,
            f"Series dropped on {THE_NODE}",
            f"Scrapes of {THE_NODE} drop series (reason: {REASON}): ranks claim the same labels, or there are more "
            "ranks than a target may export.",
            for_s=900,
        ),
    ),
)
