"""Alerts about the memory of a job. What they mean to a person is in ``runbook``."""

from __future__ import annotations

from typing import Final

from tidegauge.core.detector import DEFAULT
from tidegauge_exporter.rules.promql import (
    BYTES,
    COUNT,
    DURATION,
    HOST,
    JOB_NAMES,
    OF_OWNER,
    PLACE,
    RANK,
    RANK_NAMES,
    SHARE,
    THE_JOB,
    THE_RANK,
    grown,
    looked_up,
    with_owner,
)
from tidegauge_exporter.rules.recording import JOB
from tidegauge_exporter.rules.values import AlertRule, AlertSeverity, Board, RuleGroup

SOON_S: Final = 3600
MUCH_EATEN: Final = DEFAULT.danger_share
"""Share of the head-room that growth must have taken before anybody is alerted: then it is dangerous."""
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
            f"max by ({RANK}) (time() - tidegauge_rank_last_sample_timestamp_seconds > 300)\n"
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
)

JOB_ALERTS: RuleGroup[AlertRule] = RuleGroup("tidegauge-job-alerts", (*LEAKS, *EVENTS, *PRESSURE))
