"""docs/metrics.md from the table of metrics: ``python -m tidegauge_exporter.metrics.docs_page > docs/metrics.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tidegauge.core.profile.categories import Category
from tidegauge_exporter.metrics.coordinator_rows import JOB_LOOP_METRICS, LOOP_METRICS, NODE_COUNTS, USAGE_METRICS
from tidegauge_exporter.metrics.families import JOB_LABELS, Metric, ReadMetric
from tidegauge_exporter.metrics.notifications import NOTIFIER_METRICS
from tidegauge_exporter.metrics.table import (
    COLLECT_SUCCESS,
    GPU_LABELS,
    GPU_METRICS,
    GROUP_LABELS,
    JOB_INFO,
    JOB_METRICS,
    NODE_LABELS,
    NODE_METRICS,
    POD_LABELS,
    RANK_INFO,
    RANK_LABELS,
    RANK_METRICS,
    RANK_PROFILE,
    SAMPLES_PER_TARGET,
    SELF_METRICS,
    SERVICE_TABLE,
)


def _words(values: Iterable[Category]) -> str:
    return ", ".join(f"`{one.value}`" for one in values)


def page() -> str:
    """The whole page, Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            "## Per rank, on its node\n",
            f"Labels: {_code(RANK_LABELS)}.",
            "`gpu` is the NVML index and `UUID` the name that dcgm-exporter writes, so that joins `on (UUID)` need no",
            "rewriting; both are empty for a rank whose GPU is not known.\n",
            "A job that runs several launches side by side (two `srun` in one allocation, a trainer beside an",
            f"evaluator) has several groups of ranks: its series, and its ranks', also have {_code(GROUP_LABELS)}, the",
            "name of the group: `step 1`, `container eval`, `pid 4711` of its launcher or, of a program without one,\n"
            "its own. Series of a job with one group do not have the label, but those of a\n"
            "[server's replica](kubernetes_jobs.md#an-inference-server) always do.\n",
            f"On Kubernetes a rank's series also have {_code(POD_LABELS)}, named as by dcgm-exporter: those",
            "of its pod by the word of kernel and API server, never its own. `job_id` is then `namespace/name` of the",
            "workload. A PodMonitor or ServiceMonitor has to say `honorLabels: true`: else Prometheus puts the agent's",
            "own pod there, and calls these `exported_namespace` and so on.\n",
            _table(RANK_METRICS),
            "Rows marked *lingers* are still exported for a while after a rank has ended (`linger_s`, two minutes by",
            "default), so that the counters of a rank that died are scraped; all others end with the rank.\n",
            f"`{RANK_PROFILE.name}`: {RANK_PROFILE.help} Labels: those above and",
            f"{_code(RANK_PROFILE.labels[len(RANK_LABELS) :])}, one of {_words(Category)}.",
            f"From: {RANK_PROFILE.source}.\n",
            f"`{RANK_INFO.name}` is always 1. {RANK_INFO.help} Labels: those above and",
            f"{_code(RANK_INFO.labels[len(RANK_LABELS) :])}. From: {RANK_INFO.source}.\n",
            "## Per GPU, on its node\n",
            f"Labels: {_code(GPU_LABELS)}.\n",
            _table(GPU_METRICS),
            "## Per node, on the node\n",
            f"Labels: {_code(NODE_LABELS)}.\n",
            _table(NODE_METRICS),
            "## The node agent about itself\n",
            _table(SELF_METRICS, with_labels=True),
            "## Per job, on the coordinator only\n",
            f"Labels: {_code(JOB_LABELS)}, and those of the table. A job's series linger like a rank's. Of two users'",
            "jobs with the same labels only the first is exported, with its own incidents. Series from the database",
            "are absent while it cannot be read.\n",
            _table((JOB_INFO, *JOB_METRICS, *JOB_LOOP_METRICS), with_labels=True),
            "## Nodes, on the coordinator only\n",
            "Labels: `cluster`, and those of the table; every value of `health` is there from the start.\n",
            _table(NODE_COUNTS, with_labels=True),
            "## Incidents and actions, on the coordinator only\n",
            _LOOP,
            _table(LOOP_METRICS, with_labels=True),
            "## The notifier about itself\n",
            "On the port of Alertmanager's webhook (9496, `notify_port`), also while the coordinator is down. `sink`",
            "is a receiver as `tidegauge status` names it: `alertmanager`, `slack` (the operators' channel),",
            "`slack owners`, `mail`, `grafana`; those that are configured are there from the start.",
            f'`{COLLECT_SUCCESS.name}{{source="stories"}}` on this page is 1 while the coordinator answers the',
            "notifier. A warning that the policy sends to an owner waits in the coordinator, not here.\n",
            _table(NOTIFIER_METRICS, with_labels=True),
            "## On every page\n",
            _table(SERVICE_TABLE, with_labels=True),
            "## What ended jobs had and needed, on the coordinator only\n",
            "Of the last seven days, read from the database every ten minutes. `by` is `job`, `user`, `account`,",
            "`partition` or `namespace`, `name` which one; the 50 of each that left most GPU memory unused.",
            "`user_name` is that of a job's owner, else empty.\n",
            _table(USAGE_METRICS, with_labels=True),
            _QUERIES,
        ]
    )


def _table(metrics: Iterable[Metric], *, with_labels: bool = False) -> str:
    extra = "labels" if with_labels else "lingers"
    lines = [f"| metric | type | unit | what it says | from | {extra} |", "| --- | --- | --- | --- | --- | --- |"]
    for metric in metrics:
        lingers = isinstance(metric, ReadMetric) and metric.lingers
        last = _code(label for label in metric.labels if label not in JOB_LABELS) if with_labels else "yes" * lingers
        cells = (f"`{metric.name}`", metric.kind.value, metric.unit or "", metric.help, metric.source, last)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


_INTRODUCTION = f"""<!-- Made by python -m tidegauge_exporter.metrics.docs_page from the table in
exporter/tidegauge_exporter/metrics/table.py; edit that. -->
# Metrics

Every node serves `/metrics` (port 9494 unless configured otherwise), the notifier its own (port 9496), and the
coordinator its own (port 9495) and `/sd`, the list of all of them for Prometheus' `http_sd_configs`; an example is
`deploy/observability/prometheus/prometheus.yml`. All speak Prometheus' text format 0.0.4 and OpenMetrics 1.0, as they
are asked; a node's page can be cut down to some metrics (`?name[]=`) and compressed. prometheus-client writes them, and
adds its `process_*` and `python_*` about the process that is scraped. A Python program of your own can serve a node's
metrics in its own registry: `registry.register(NodeCollector(view))` of `tidegauge_exporter.metrics.collector`.

Names and labels are stable. Units are base units. A missing reading is an absent sample, never 0
or -1, and samples carry no timestamps, so that a series goes stale as soon as its rank has ended. Counters start
at 0 when watching starts. A node hands out at most {SAMPLES_PER_TARGET:,} samples of ranks; it drops and counts the
rest. The coordinator hands out five to ten for every job.
"""

_LOOP = """Labels: `cluster`, and those of the table. The counters come from the database, so that they go on counting
when the coordinator restarts; every value of their labels is there from the start, at 0. While the database cannot
be read, what comes from it is absent, and `tidegauge_collect_success{source="store"}` is 0 on this page.
"""

_QUERIES = """## Queries to begin with

Growing ranks, and those whose growth is dangerous:

```promql
max by (job_id, rank) (tidegauge_rank_leak_state) == 2
max by (job_id, rank) (tidegauge_rank_leak_headroom_eaten_ratio) >= 0.5
```

Headroom of the fullest rank of each job, as a share of its limit:

```promql
min by (job_id) (
  1 - (tidegauge_rank_reserved_bytes + tidegauge_rank_nontorch_bytes) / tidegauge_rank_limit_bytes
)
```

The same with the owner's name:

```promql
min by (cluster, job_id, attempt, group) (
  1 - (tidegauge_rank_reserved_bytes + tidegauge_rank_nontorch_bytes) / tidegauge_rank_limit_bytes
) * on (cluster, job_id, attempt, group) group_left (user_name, job_name) tidegauge_job_info
```

Ranks that have not written a reading for a minute:

```promql
time() - tidegauge_rank_last_sample_timestamp_seconds > 60
```

Open critical incidents, with their owners:

```promql
(tidegauge_job_incident_severity == 3)
  * on (cluster, job_id, attempt, group) group_left (user_name, job_name) tidegauge_job_info
```

Actions of the last day that did not succeed:

```promql
sum by (cluster, action, outcome) (increase(tidegauge_actions_total{outcome=~"failed|unverified|no_proof"}[1d])) > 0
```

Actions stopped although the policy may act:

```promql
tidegauge_policy_acting == 1 and on (cluster) (tidegauge_policy_paused == 1 or tidegauge_policy_breaker_open == 1)
```
"""

if __name__ == "__main__":
    sys.stdout.write(page())
