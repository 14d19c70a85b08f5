"""docs/alerts.md, made from the tables of rules: ``python -m tidegauge_exporter.rules.docs_page > docs/alerts.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from tidegauge_exporter.rules.alerts import ALERTS, KNOWN_FOR, MUTES
from tidegauge_exporter.rules.files import COMPONENT, duration
from tidegauge_exporter.rules.killed import KILLED
from tidegauge_exporter.rules.recording import JOINS, RECORDING
from tidegauge_exporter.rules.values import AlertRule
from tidegauge_exporter.runbooks.job_alerts import JOB_RUNBOOK
from tidegauge_exporter.runbooks.service_alerts import SERVICE_RUNBOOK


def page() -> str:
    """The whole page, Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            _alert_table(),
            _ROUTING,
            KILLED,
            _MUTED,
            _mute_table(),
            _LIMITS,
            _FALLBACK,
            "## Recording rules\n",
            _RECORDING,
            *_recording_tables(),
            _JOINS,
            *_joins(),
        ]
    )


def _alert_table() -> str:
    known = [rule for group in ALERTS for rule in group.rules]
    lines = ["| alert | severity | fires after | about |", "| --- | --- | --- | --- |"]
    for entry in (*JOB_RUNBOOK, *SERVICE_RUNBOOK):
        rules = [rule for rule in known if rule.name == entry.alert]
        lines.extend(_row(entry.alert, rule) for rule in rules)
        if not rules:
            lines.append(
                f"| [{entry.alert}](runbooks.md#{entry.alert.lower()}) | of the incident | at once | an incident |"
            )
    return "\n".join(lines) + "\n"


def _row(name: str, rule: AlertRule) -> str:
    about = {"fleet": "a node or the service", "incidents": "the service", "job": "a job", "rank": "a rank"}
    waits = duration(rule.for_s) if rule.for_s else "at once"
    what = "a node" if rule.scope == "node" else about[rule.board.value]
    return f"| [{name}](runbooks.md#{name.lower()}) | {rule.severity.value} | {waits} | {what} |"


def _mute_table() -> str:
    lines = ["| while this fires | these are muted | for the same |", "| --- | --- | --- |"]
    for mute in MUTES:
        sources = ", ".join(mute.sources) + (f" ({mute.source_severity})" if mute.source_severity else "")
        if mute.servers is not None:
            sources += f" about {'a ' + mute.servers.replace('|', ' or ') if mute.servers else 'no server'}"
        targets = ", ".join(mute.targets) + (f" ({mute.target_severity})" if mute.target_severity else "")
        targets += f", of groups `{mute.groups}`" if mute.groups else ""
        lines.append(f"| {sources} | {targets} | `{', '.join(mute.equal)}` |")
    return "\n".join(lines) + "\n"


def _recording_tables() -> Iterator[str]:
    for group in RECORDING:
        yield "| series | what it says |\n| --- | --- |"
        yield from (f"| `{rule.record}` | {rule.help} |" for rule in group.rules)
        yield ""


def _joins() -> Iterator[str]:
    for join in JOINS:
        yield f"**`{join.record}`**: {join.help} Needs {join.needs}.\n"
        yield _code("promql", [join.expr])


def _code(language: str, lines: Iterable[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```", ""])


_INTRODUCTION = f"""<!-- Made by python -m tidegauge_exporter.rules.docs_page from the tables in
exporter/tidegauge_exporter/rules; edit those. -->
# Alerts

Prometheus decides *whether* (the rules in `deploy/observability/prometheus/rules/`, made by
`python -m tidegauge_exporter.rules DIR --grafana-url URL --runbook-url URL --service-url URL`), Alertmanager decides
*when and whom* (`deploy/observability/alertmanager/`). How to bring both up:
[deploy/observability](../deploy/observability/README.md).

Every alert has a summary, a description with figures, a link to its dashboard and one to its [runbook](runbooks.md);
one about a job also has a link to the job's [web page](web_ui.md), and one about an incident to its report.
Alerts about a job carry `cluster`, `job_id`, `attempt`, `user_name` and `job_name`, and `group` where the job has
several groups of ranks; those about one rank also `rank`, `hostname`, `gpu` and `UUID`. `user_name` and `job_name` come
from the coordinator: once it has been down for {KNOWN_FOR}, alerts come without them, and an alert that fired before
starts anew. Alerts about the service carry `{COMPONENT}="service"`.
"""

_ROUTING = """## Who is notified

| alerts | go to | why |
| --- | --- | --- |
| about jobs | Tidegauge's own receiver, so to Slack in threads ([notify.md](notify.md)) | it knows job and owner |
| about the service | a receiver of your own: Slack's webhook, mail, PagerDuty … | Tidegauge cannot say it is down |
| Watchdog | a dead man's switch of your own | Prometheus and Alertmanager cannot say it either |

**Alerts about the service** need a receiver that needs nothing of Tidegauge's. Copy
`alertmanager/service-receiver.example.yml`, fill it in, and give it with `alertmanager.sh --service-receiver FILE`
(`--print` prints the configuration for an Alertmanager of your own; in the chart it is
`monitoring.alertmanagerConfig.serviceReceiver`). Without one these alerts go to Tidegauge's receiver as well, the
script says so when it starts, and nobody is notified when the head is down. With `--slack-url-file` Alertmanager posts
all alerts itself, and no further receiver is needed.

**Watchdog** always fires, and Alertmanager sends it every minute. Give it to a service that notifies people when it
*stops*, and that does not run on the machines that it watches: one that waits for pings of a URL (healthchecks.io, or a
copy of it that you host), the heartbeat monitor of PagerDuty, Opsgenie or Grafana OnCall, or a second Alertmanager and
Prometheus elsewhere with an alert on the absence of this one. Expect a ping a minute and wait for five. Copy
`alertmanager/watchdog-receiver.example.yml`; `alertmanager.sh --watchdog-receiver FILE`, in the chart
`monitoring.alertmanagerConfig.watchdogReceiver`.

**Runbooks and links** must work when Tidegauge is down. `prometheus.sh` has Prometheus serve the runbooks, and alerts
link there; `--runbook-url` names another copy, such as one on your wiki, `--contact` whom they say to call.
`--grafana-url` and `alertmanager.sh --external-url` are the addresses of the links to dashboards and silences.
"""

_MUTED = """## What mutes what

Alerts of severity `info` notify nobody; Alertmanager and the dashboards show them. Of the others:
"""

_LIMITS = """## What alerts do not see

- Prometheus scrapes every 15 s: TidegaugeOutOfMemory misses a rank that starts and runs out of memory between two
  scrapes. The service itself misses none that its node agent saw: that is what incidents are for.
- A rank of a job that is watched only in part is reported missing (severity `info`) for as long as the job lives.
- TidegaugeRankLost names a rank for ten minutes after it was last seen, then ends by itself. So does
  TidegaugeAgentDown for a node that left the cluster (it crashed, or is cut off); one without ranks leaves unnoticed.
- TidegaugeUntrackedGrowth needs more than an hour of history of the attempt.
- TidegaugeDetectorSilent joins by `instance`: all series of an agent must carry the same one, as they do with the
  scrape configuration of deploy/observability. The rules about `up` need `job="tidegauge"` and the label `component`.
- Scheduler actions never hang on these rules: they are the [policy](policy.md)'s, which reads verdicts, not PromQL.
"""

_FALLBACK = """## A leak seen by PromQL alone

The detector knows steps, PromQL does not: a slope over what a scrape happens to see accuses healthy jobs (in a trial
with 240 simulated ranks, `predict_linear` over 30 minutes accused a third to nearly all of them). If a rank has no
verdict, because its probe cannot count steps, the floor of its memory is the next best: in the same trial it accused
at most 2 % of the healthy ones and found the fast leaks (10 GiB an hour) after 1.2 hours; slow ones mostly stayed
unseen. It is not among the rules; add it if you need it:

```promql
predict_linear(min_over_time(tidegauge_rank_allocated_bytes[5m])[1h:1m], 4 * 3600)
  > on (cluster, job_id, attempt, group, rank) tidegauge_rank_limit_bytes
```
"""

_RECORDING = """Computed every 30 s, so that a question about 10,000 ranks reads some hundreds of series. Levels:
`cluster_job:` is by `cluster, job_id, attempt, group`; `cluster_node:` by `cluster, hostname`; `cluster:` by `cluster`.
They exist from the moment at which Prometheus got the rules; `promtool tsdb create-blocks-from rules` computes the time
before.
"""

_JOINS = """## Joins

What Tidegauge's series say together with those of others. These are rules of their own,
`deploy/observability/prometheus/rules/tidegauge-joins.yml`, which `prometheus.yml` does not load unless you say so:
each needs another exporter, and is empty without it. Pods without a rank have no series of ours, so GPUs that nobody
watches are found by node. On Kubernetes a rank's series carry `namespace`, `pod` and `container`, and join with
kube-state-metrics `on (namespace, pod)`. Facts of a job on any series of it:

```promql
cluster_job:tidegauge_used_ratio:max
  * on (cluster, job_id, attempt, group) group_left (user_name, job_name)
  max by (cluster, job_id, attempt, group, user_name, job_name) (tidegauge_job_info)
```

dcgm-exporter's `UUID` is ours, so any of its series joins with a rank's: `... * on (UUID) group_left () max by (UUID)
(DCGM_FI_DEV_GPU_TEMP)`. Reduce the other side with `max by`, or a second target of it breaks the join.
"""

if __name__ == "__main__":
    sys.stdout.write(page())
