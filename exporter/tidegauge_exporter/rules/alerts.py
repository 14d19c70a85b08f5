"""Alert rules about jobs and about the service, and which alert mutes which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegauge.core.detector import DEFAULT
from tidegauge.core.detector.unheld import MIN_UNHELD_BYTES, UNHELD_FOR_S
from tidegauge.core.ids import MADE_UP
from tidegauge_exporter.messages.values import INCIDENT_ALERT
from tidegauge_exporter.rules.recording import JOB
from tidegauge_exporter.rules.values import AlertRule, AlertSeverity, Board, RuleGroup

RANK: Final = f"{JOB}, rank, hostname, gpu, UUID"
"""Labels that tell the alerts of ranks apart. Target labels are left out: an agent that is scraped under another name
does not begin the alert anew."""

KNOWN_FOR: Final = "15m"
"""Time after which alerts lose the owner's name while the coordinator is not scraped. An alert without a name is
another one: people would read that the leak is resolved."""

_OWNERS: Final = f"max by ({JOB}, user_name, job_name)"
_OWNER: Final = (
    f"topk by ({JOB}) (1, {_OWNERS} (tidegauge_job_info)\n"
    f"  or on ({JOB}) {_OWNERS} (last_over_time(tidegauge_job_info[{KNOWN_FOR}])))"
)

DURATION: Final = "{{ $value | humanizeDuration }}"
BYTES: Final = "{{ $value | humanize1024 }}B"
SHARE: Final = "{{ $value | humanizePercentage }}"
RATE: Final = "{{ $value | humanize }}"
COUNT: Final = '{{ $value | printf "%.0f" }}'
HOST: Final = "{{ $labels.hostname }}"

OF_OWNER: Final = "{{ with $labels.user_name }} (user {{ . }}){{ end }}"
ATTEMPT: Final = '{{ with $labels.attempt }}{{ if ne . "0" }} (attempt {{ . }}){{ end }}{{ end }}'
GROUP: Final = "{{ with $labels.group }}, {{ . }}{{ end }}"
_NAME: Final = (
    f'{{{{ if and (match "^{MADE_UP}" $labels.job_id) $labels.job_name }}}}{{{{ $labels.job_name }}}}'
    "{{ else }}{{ $labels.job_id }}{{ end }}"
)
THE_JOB: Final = f"job {_NAME}{GROUP}{ATTEMPT}"
THE_RANK: Final = f"rank {{{{ $labels.rank }}}} of {THE_JOB}"
PLACE: Final = f"on {HOST}{{{{ with $labels.gpu }}}}, GPU {{{{ . }}}}{{{{ end }}}}"


def with_owner(condition: str, *, like: str) -> str:
    """``condition`` with the labels ``user_name`` and ``job_name`` of ``tidegauge_job_info``.

    ``like`` is a metric that is there whenever the condition can be: once the coordinator has been away for longer than
    ``KNOWN_FOR`` and nobody knows the owner, the alert fires without one. A job with two owners (which the
    coordinator does not export) would have one of them, and not break the rule for all jobs.
    """
    return (
        f"({condition})\n"
        f"* on ({JOB}) group_left (user_name, job_name)\n"
        f"({_OWNER}\n"
        f" or on ({JOB}) group by ({JOB}) ({like}))"
    )


def grown(series: str, *, at_least_bytes: int) -> str:
    """The rise of the floor of ``series`` within an hour, if it rose in both halves of it: a single step, such as
    communicators that are set up, is no growth."""
    now, half, whole = (f"min_over_time({series}[10m]{offset})" for offset in ("", " offset 30m", " offset 1h"))
    return (
        f"({now} - {whole})\n"
        f"and ({now} - {half} > {at_least_bytes})\n"
        f"and ({half} - {whole} > {at_least_bytes})"
    )  # fmt: skip


def looked_up(promql: str, labels: tuple[str, ...], shown: str) -> str:
    """A template that queries Prometheus when the alert fires. ``promql`` has ``SELECTOR`` in place of the matchers of
    these labels; ``shown`` is the text for each result (``$index``, ``.Labels``, ``.Value``). Results are sorted by
    rank, because those with the same value come in any order."""
    query = promql.replace("SELECTOR", "{" + ",".join(f"{label}=%q" for label in labels) + "}")
    values = " ".join(f"$labels.{label}" for label in labels)
    found = f'printf "{query}" {values} | query | sortByLabel "rank"'
    return f"{{{{ range $index, $sample := {found} }}}}{shown}{{{{ end }}}}"


JOB_NAMES: Final = ("cluster", "job_id", "attempt", "group")
RANK_NAMES: Final = (*JOB_NAMES, "rank")

SOON_S: Final = 3600
MUCH_EATEN: Final = DEFAULT.danger_share
"""Share of the headroom that growth must have taken before an alert fires: then it is dangerous."""
FAR_S: Final = 7 * 86400
"""Growth that takes longer than this to matter is no alert; the dashboards and `tidegauge jobs` show it."""
_UNLESS_LITTLE: Final = (
    # Buffers and caches that fill are full before: docs/detector.md. An agent of an older version does not say.
    f"unless on ({JOB}, rank) tidegauge_rank_leak_headroom_eaten_ratio < {MUCH_EATEN}"
)
_PER_STEP: Final = looked_up(
    "max(tidegauge_rank_leak_bytes_per_stepSELECTOR) > 0",
    RANK_NAMES,
    " by {{ .Value | humanize1024 }}B per step",
)
_ERRORS: Final = (
    f"{{{{ if lt $value 1.5 }}}}an out-of-memory error{{{{ else }}}}{COUNT} out-of-memory errors{{{{ end }}}}"
)
_OOM_RANKS: Final = looked_up(
    "topk(4, max by (rank, hostname) (increase(tidegauge_rank_ooms_totalSELECTOR[5m])) > 0)",
    JOB_NAMES,
    "{{ if $index }},{{ else }}:{{ end }} rank {{ .Labels.rank }} on {{ .Labels.hostname }}",
)
_WORST_OUTSIDE: Final = looked_up(
    "topk(1, max by (rank, hostname) (tidegauge_rank_nontorch_bytesSELECTOR))",
    JOB_NAMES,
    " Largest: rank {{ .Labels.rank }} on {{ .Labels.hostname }}, {{ .Value | humanize1024 }}B.",
)

LEAKS = (
    AlertRule(
        "TidegaugeLeakOomSoon",
        with_owner(
            f"max by ({RANK}) (tidegauge_rank_leak_seconds_to_oom) < {SOON_S}\n"
            f"and on ({JOB}, rank) tidegauge_rank_leak_state == 2\n"
            f"{_UNLESS_LITTLE}",
            like="tidegauge_rank_leak_state",
        ),
        AlertSeverity.CRITICAL,
        Board.RANK,
        f"Out of memory in {DURATION}: {THE_RANK} on {HOST}",
        f"Memory of {THE_RANK}{OF_OWNER} {PLACE}, grows{_PER_STEP} and reaches the rank's limit in {DURATION} at the "
        "current rate.",
        for_s=60,
    ),
    AlertRule(
        "TidegaugeLeak",
        with_owner(
            f"max by ({RANK}) (tidegauge_rank_leak_state) == 2\n"
            f"unless on ({JOB}, rank) tidegauge_rank_leak_seconds_to_oom > {FAR_S}\n"
            f"{_UNLESS_LITTLE}\n"
            # A verdict lingers, the rank's memory does not: who has ended leaks no more.
            f"and on ({JOB}, rank) tidegauge_rank_allocated_bytes",
            like="tidegauge_rank_leak_state",
        ),
        AlertSeverity.WARNING,
        Board.RANK,
        f"Memory leak: {THE_RANK} on {HOST}",
        f"Memory of {THE_RANK}{OF_OWNER} {PLACE}, keeps growing{_PER_STEP}."
        + looked_up(
            "min(tidegauge_rank_leak_seconds_to_oomSELECTOR) > 0",
            RANK_NAMES,
            " It reaches the rank's limit in {{ .Value | humanizeDuration }} at the current rate.",
        ),
        for_s=300,
    ),
)

EVENTS = (
    AlertRule(
        "TidegaugeOutOfMemory",
        with_owner("cluster_job:tidegauge_ooms:increase5m > 0", like="cluster_job:tidegauge_ooms:increase5m"),
        AlertSeverity.WARNING,
        Board.JOB,
        f"Out of memory: {THE_JOB}",
        f"PyTorch raised {_ERRORS} in {THE_JOB}{OF_OWNER} within five minutes (caught errors included){_OOM_RANKS}.",
    ),
    AlertRule(
        "TidegaugeRankLost",
        with_owner(
            f"max by ({RANK}) (present_over_time(tidegauge_rank_allocated_bytes[10m]))\n"
            f"unless on ({JOB}, rank) tidegauge_rank_allocated_bytes\n"
            f'unless on (cluster, hostname) up{{job="tidegauge",component="agent"}} == 0\n'
            f"and on ({JOB}) tidegauge_rank_allocated_bytes",
            like="tidegauge_rank_allocated_bytes",
        ),
        AlertSeverity.WARNING,
        Board.JOB,
        f"Process gone: {THE_RANK} on {HOST}",
        f"The process of {THE_RANK}{OF_OWNER} {PLACE}, is gone while other ranks of the job are alive.",
        for_s=120,
    ),
    AlertRule(
        "TidegaugeRankLost",
        with_owner(
            f"max by ({JOB}) (tidegauge_job_ranks) > 0\n"
            f"and on ({JOB}) (tidegauge_job_ranks < on ({JOB}) tidegauge_job_world_size)",
            like="tidegauge_job_ranks",
        ),
        AlertSeverity.INFO,
        Board.JOB,
        f"Ranks missing: {THE_JOB}",
        f"{COUNT} ranks of {THE_JOB}{OF_OWNER} report, fewer than its world size. Either ranks are gone, or they run "
        "where no agent watches.",
        for_s=600,
    ),
    AlertRule(
        "TidegaugeRankSilent",
        with_owner(
            # By the node's clock, which may be behind: a rank whose readings go on is not silent.
            f"max by ({RANK}) (\n"
            "  time() - tidegauge_rank_last_sample_timestamp_seconds > 300\n"
            "  unless changes(tidegauge_rank_last_sample_timestamp_seconds[5m]) > 0\n"
            ")\n"
            f"and on ({JOB}, rank) tidegauge_rank_allocated_bytes",
            like="tidegauge_rank_allocated_bytes",
        ),
        AlertSeverity.WARNING,
        Board.RANK,
        f"No reading for {DURATION}: {THE_RANK} on {HOST}",
        f"The process of {THE_RANK}{OF_OWNER} {PLACE}, is alive but has written no reading for {DURATION}. A healthy "
        "rank writes twice a second, even while it waits.",
        for_s=60,
    ),
)

PRESSURE = (
    AlertRule(
        "TidegaugeFragmentation",
        with_owner(
            f"max by ({JOB}) (\n"
            "  (tidegauge_rank_reserved_bytes - tidegauge_rank_allocated_peak_bytes) / tidegauge_rank_limit_bytes\n"
            ") > 0.15\n"
            f"and on ({JOB}) cluster_job:tidegauge_used_ratio:max > 0.9",
            like="tidegauge_rank_reserved_bytes",
        ),
        AlertSeverity.WARNING,
        Board.JOB,
        f"Fragmentation: {THE_JOB}",
        f"A rank of {THE_JOB}{OF_OWNER} reserves {SHARE} of its limit more than its tensors ever needed at once, "
        "and is more than 90 % full.",
        for_s=900,
    ),
    AlertRule(
        "TidegaugeMemoryNearlyFull",
        with_owner(
            "cluster_job:tidegauge_used_ratio:max > 0.95\n"
            f"and on ({JOB}) cluster_job:tidegauge_alloc_retries:rate5m > 0",
            like="cluster_job:tidegauge_used_ratio:max",
        ),
        AlertSeverity.WARNING,
        Board.JOB,
        f"GPU memory nearly full: {THE_JOB}",
        f"A rank of {THE_JOB}{OF_OWNER} uses {SHARE} of its limit, and device allocations need a second try. This "
        "slows the job down, and the next larger batch may run out of memory.",
        for_s=300,
    ),
    AlertRule(
        "TidegaugeUntrackedGrowth",
        with_owner(
            grown("cluster_job:tidegauge_nontorch_bytes:max", at_least_bytes=256 * 2**20),
            like="cluster_job:tidegauge_nontorch_bytes:max",
        ),
        AlertSeverity.WARNING,
        Board.JOB,
        f"Memory growth outside PyTorch: {THE_JOB}",
        f"GPU memory of {THE_JOB}{OF_OWNER} outside PyTorch's allocator grew by {BYTES} within an hour and keeps "
        "growing." + _WORST_OUTSIDE,
        for_s=300,
    ),
    AlertRule(
        "TidegaugeUntrackedGrowth",
        grown("cluster_node:tidegauge_unwatched_bytes:sum", at_least_bytes=2**30),
        AlertSeverity.WARNING,
        Board.FLEET,
        f"Unattributed GPU memory grows on {HOST}",
        f"GPU memory in use on {HOST} that no watched rank accounts for grew by {BYTES} within an hour.",
        for_s=300,
        scope="node",
    ),
    AlertRule(
        "TidegaugeGpuMemoryUnheld",
        f"max by (cluster, hostname, gpu, UUID) (tidegauge_gpu_unheld_bytes) >= {MIN_UNHELD_BYTES}",
        AlertSeverity.WARNING,
        Board.FLEET,
        f"GPU memory that no process holds {PLACE}",
        f"For ten minutes {BYTES} have been in use {PLACE}, and no process holds them. The next job there has that "
        "much less.",
        for_s=round(UNHELD_FOR_S),
        scope="node",
    ),
)

JOB_ALERTS: RuleGroup[AlertRule] = RuleGroup("tidegauge-job-alerts", (*LEAKS, *EVENTS, *PRESSURE))

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
            "Watchdog",
            "vector(1)",
            AlertSeverity.NONE,
            Board.FLEET,
            "Alerts about Tidegauge arrive",
            "This alert always fires. When it stops arriving, Prometheus or Alertmanager is down, or the way from them "
            "to the receiver is broken, and nobody gets any other alert either.",
        ),
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
        AlertRule(
            "TidegaugeNotificationsFailing",
            "min by (cluster, sink) (tidegauge_notification_sink_works) == 0\n"
            "or max by (cluster, sink) (tidegauge_notifications_oldest_pending_seconds) > 900",
            AlertSeverity.WARNING,
            Board.INCIDENTS,
            f"Notifications failing: {{{{ $labels.sink }}}}{CLUSTER}",
            "For ten minutes Tidegauge has not been able to notify people: {{ $labels.sink }}. Incidents and actions "
            "go on; the notifications wait. `tidegauge status` shows the cause.",
            for_s=600,
        ),
        AlertRule(
            "TidegaugeNotificationsFailing",
            'max by (cluster, instance) (up{job="tidegauge",component="notifier"}) == 0',
            AlertSeverity.WARNING,
            Board.INCIDENTS,
            f"Notifier down: nobody is notified{CLUSTER}",
            "The notifier has not answered for five minutes: Tidegauge notifies nobody of incidents and actions, which "
            "go on. Notifications wait until it is back.",
            for_s=300,  # one that was killed is back within two seconds
            scope="notifier",
        ),
    ),
    component="service",
)
ALERTS: tuple[RuleGroup[AlertRule], ...] = (JOB_ALERTS, SERVICE_ALERTS)

_OF_ATTEMPT = ("cluster", "job_id", "attempt")
_OF_NODE = ("cluster", "hostname")


@dataclass(frozen=True)
class Mute:
    """While one of ``sources`` fires, ``targets`` with the same ``equal`` labels send no message."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    equal: tuple[str, ...]
    source_severity: str | None = None
    """``None``: of any severity."""
    target_severity: str | None = None
    servers: str | None = None
    """Only sources with this label ``server``, a pattern: they are about the replicas of an inference server, and have
    no label ``group``. Empty: those of no server. ``None``: all."""
    groups: str = ""
    """Only targets with this label ``group``, a pattern: what else has the server's name is not the server."""


_TOLD_BY_INCIDENTS = (
    "TidegaugeLeak",
    "TidegaugeLeakOomSoon",
    "TidegaugeFragmentation",
    "TidegaugeOutOfMemory",
    "TidegaugeUntrackedGrowth",
)

MUTES: tuple[Mute, ...] = (
    Mute((INCIDENT_ALERT,), _TOLD_BY_INCIDENTS, JOB_NAMES, servers=""),
    Mute((INCIDENT_ALERT,), _TOLD_BY_INCIDENTS, _OF_ATTEMPT, servers="Deployment", groups="pod .+"),
    Mute(
        (INCIDENT_ALERT,), _TOLD_BY_INCIDENTS, _OF_ATTEMPT, servers="StatefulSet|LeaderWorkerSet", groups="replica .+"
    ),
    Mute(
        ("TidegaugeLeakOomSoon", "TidegaugeOutOfMemory"),
        (
            "TidegaugeLeak",
            "TidegaugeFragmentation",
            "TidegaugeMemoryNearlyFull",
            "TidegaugeRankLost",
            "TidegaugeUntrackedGrowth",
        ),
        JOB_NAMES,
    ),
    Mute(("TidegaugeRankLost",), ("TidegaugeRankLost",), JOB_NAMES, "warning", "info"),
    Mute(
        ("TidegaugeAgentDown",),
        ("TidegaugeRankLost", "TidegaugeRankSilent", "TidegaugeDetectorSilent", "TidegaugeSeriesDropped"),
        _OF_NODE,
    ),
    Mute(
        ("TidegaugeCoordinatorDown",),
        (
            "TidegaugeNodeStale",
            "TidegaugeStoreDown",
            "TidegaugeActionsFailing",
            "TidegaugeBreakerOpen",
            "TidegaugeUserBreakerOpen",
            "TidegaugeNotificationsFailing",
        ),
        ("cluster",),
    ),
)
