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
            f"Agent down: {THE_NODE}",
            f"Prometheus has not reached the node agent on {THE_NODE} for five minutes. Its ranks are not watched; "
            "if the node is well, training goes on.",
            for_s=300,
        ),
        AlertRule(
            "TidegaugeNodeStale",
            'sum by (cluster) (tidegauge_nodes{health=~"stale|waiting"}) > 0',
            AlertSeverity.WARNING,
            Board.FLEET,
            f"Nodes do not report: {COUNT}{CLUSTER}",
            f"Agents have not reported to the coordinator{CLUSTER} for ten minutes; number of nodes: {COUNT}. "
            "Incidents of their jobs stand still, and nothing is done about them.",
            for_s=600,
        ),
        AlertRule(
            "TidegaugeCoordinatorDown",
            f"max by (cluster, instance) ({_COORDINATOR} == 0) or max by (cluster) (absent({_COORDINATOR}))",
            AlertSeverity.CRITICAL,
            Board.FLEET,
            f"Coordinator down{CLUSTER}",
            "Prometheus has not reached the coordinator for three minutes, or was never told of one. No incidents, no "
            "actions, no messages to owners; agents and their series go on.",
            for_s=180,
        ),
        AlertRule(
            "TidegaugeDetectorSilent",
            f"sum by ({_NODE}) (rate(tidegauge_rank_steps_total[10m])) > 0\n"
            "and on (instance) (rate(tidegauge_detector_points_total[10m]) == 0)",
            AlertSeverity.WARNING,
            Board.FLEET,
            f"Detector silent: {THE_NODE}",
            f"Ranks on {THE_NODE} make {RATE} steps a second, and the leak detector has judged no "
            "reading for five minutes or more. A leak there would not be noticed.",
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
            f"Actions fail: {ACTION}{CLUSTER}",
            f"{COUNT} actions of the kind {ACTION} did not end well within an hour: "
            "they failed, could not be verified, or a checkpoint was not proven.",
        ),
        AlertRule(
            "TidegaugeBreakerOpen",
            "max by (cluster) (tidegauge_policy_breaker_open) == 1",
            AlertSeverity.CRITICAL,
            Board.INCIDENTS,
            f"All actions are stopped: circuit breaker open{CLUSTER}",
            "So many jobs would have been acted on within a short time that the policy's circuit breaker opened. "
            "Nothing is done to any job until a person resets it.",
            for_s=60,
        ),
        AlertRule(
            "TidegaugeUserBreakerOpen",
            "max by (cluster) (tidegauge_policy_user_breakers_open) > 0",
            AlertSeverity.WARNING,
            Board.INCIDENTS,
            f"Actions on one user's jobs are stopped: their circuit breaker is open{CLUSTER}",
            "So many jobs of one user would have been acted on within a short time that the breaker of this user's "
            "jobs opened. Nothing is done to them until a person resets it; `tidegauge policy status` names the user.",
            for_s=60,
        ),
        AlertRule(
            "TidegaugeStoreDown",
            'min by (cluster, instance) (tidegauge_collect_success{source="store"}) == 0',
            AlertSeverity.CRITICAL,
            Board.INCIDENTS,
            f"Database away{CLUSTER}",
            "The coordinator cannot use its database. It goes on watching, keeps incidents in memory, and decides and "
            "does nothing.",
            for_s=120,
        ),
        AlertRule(
            "TidegaugeSeriesDropped",
            f"sum by ({_NODE}, reason) (increase(tidegauge_series_dropped_total[15m])) > 0",
            AlertSeverity.WARNING,
            Board.FLEET,
            f"Series are left out: {THE_NODE}",
            f"Scrapes of {THE_NODE} leave out series, for the reason {REASON}: ranks that claim the "
            "same labels, or more ranks than a target may hand out.",
            for_s=900,
        ),
    ),
)
