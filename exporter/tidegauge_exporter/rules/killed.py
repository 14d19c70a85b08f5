"""The section of docs/alerts.md that ``bench/killed_for_ten_minutes.py`` measured."""

from __future__ import annotations

from typing import Final

KILLED: Final = """## When a part is dead for ten minutes

`bench/killed_for_ten_minutes.py` takes one part away for ten minutes, while a job begins to leak, and writes down who is
notified, when, and by whom. The head, its node, Prometheus and Alertmanager are real, with the rules and times of
`deploy/observability`; Slack, the mail server, Grafana, the GPUs, whoever is on call and the dead man's switch (a ping a
minute expected, five waited for) are stand-ins. The notifier was held (SIGSTOP): one that is killed is back within two
seconds. 2 cores, under a load of 16 for the last three rows, 2026-11-30; times are minutes:seconds after the kill, or
after the part was back.

| dead | notified while it is dead | notified once it is back |
| --- | --- | --- |
| head | 3:59 **whoever is on call**, by Alertmanager: Coordinator down<br>5:59 **on call**: Agent down on the head's node | 0:01 **owner**, Slack; 0:08 mail: the leak<br>0:03 **Grafana**: the incident<br>0:11 **operators' channel**: the leak<br>2:27 **on call**: Coordinator down resolved; 4:27 Agent down resolved |
| notifier | 6:00 **on call**: Notifier down: nobody is notified | 0:01 **owner**, Slack; 0:03 mail: the leak<br>0:01 **Grafana**: the incident<br>0:08 **operators' channel**: the leak<br>0:59 **on call**: resolved |
| Slack | 1:42 **Grafana**: the incident<br>1:43 **owner**, mail: the leak | 0:02 **operators' channel**: the leak<br>0:16 **owner**, Slack: the leak |
| Alertmanager | 1:24 **Grafana**: the incident<br>1:25 **owner**, Slack; 1:26 mail: the leak<br>4:15 **dead man's switch**: no ping for 5 minutes | 0:24 **operators' channel**: the leak<br>0:44 **dead man's switch**: pings again |
| Grafana | 1:18 **owner**, Slack; 1:21 mail: the leak<br>1:24 **operators' channel**: the leak | 0:19 **Grafana**: the incident |

Nothing was lost and nothing came twice. Three rows say what to prepare: without a receiver of your own nobody is
notified of a dead head or a notifier that hangs, and without a dead man's switch nobody of a dead Alertmanager.
"""  # noqa: E501 - rows of a table
