"""The section of docs/alerts.md that ``bench/killed_for_ten_minutes.py`` measured."""

from __future__ import annotations

from typing import Final

KILLED: Final = """## When a part is dead for ten minutes

`bench/killed_for_ten_minutes.py` takes one part away for ten minutes, while a job begins to leak, and writes down who is
notified, when, and by whom. The head, its node, Prometheus and Alertmanager are real, with the rules and times of
`deploy/observability`; Slack, the mail server, Grafana, the GPUs, whoever is on call and the dead man's switch (a ping a
minute expected, five waited for) are stand-ins. The notifier was held (SIGSTOP): one that is killed is back within two
seconds. 2 cores under a load of 16, 2026-11-30; times are minutes:seconds after the kill, or after the part was back.

| dead | notified while it is dead | notified once it is back |
| --- | --- | --- |
| head | 3:30 **whoever is on call**, by Alertmanager: Coordinator down | 0:15 **on call**: resolved<br>1:14 **owner**, Slack; 1:18 mail: the leak<br>1:14 **Grafana**: the incident<br>1:21 **operators' channel**: the leak |
| notifier | nobody | 0:01 **owner**, Slack; 0:03 mail: the leak<br>0:01 **Grafana**: the incident<br>0:04 **operators' channel**: the leak |
| Slack | 1:42 **Grafana**: the incident<br>1:43 **owner**, mail: the leak | 0:02 **operators' channel**: the leak<br>0:16 **owner**, Slack: the leak |
| Alertmanager | 1:24 **Grafana**: the incident<br>1:25 **owner**, Slack; 1:26 mail: the leak<br>4:15 **dead man's switch**: no ping for 5 minutes | 0:24 **operators' channel**: the leak<br>0:44 **dead man's switch**: pings again |
| Grafana | 1:18 **owner**, Slack; 1:21 mail: the leak<br>1:24 **operators' channel**: the leak | 0:19 **Grafana**: the incident |

Nothing was lost and nothing came twice. This head died before Prometheus had scraped it for the first time; of a head
that it knew, TidegaugeAgentDown for the node on the same host follows after some six minutes. Two rows say what to
prepare: without a receiver of your own nobody is notified of a dead head, and without a dead man's switch nobody of a
dead Alertmanager. Nobody was notified of the notifier that hung; it sent what it had missed when it went on.
"""  # noqa: E501 - rows of a table
