"""Many things in one message: a group of alerts as Alertmanager made it, and a night with too many incidents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from tidegauge.core.incidents import Incident, IncidentState
from tidegauge.core.incidents.wording import capitalised
from tidegauge.core.units import format_count
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.chat import Message
from tidegauge_exporter.messages.headlines import (
    NOUNS,
    OPEN_SIGNS,
    RECOVERED_SIGN,
    end_by_time_left,
    headline,
    owners_job,
    seconds_left,
    sign,
)
from tidegauge_exporter.messages.incident_links import BEFORE_S, Link
from tidegauge_exporter.messages.text import clock, tidy
from tidegauge_exporter.messages.untrusted import MAX_NAME_CHARS, tamed
from tidegauge_exporter.messages.values import Alert, AlertGroup, Story
from tidegauge_exporter.slack.blocks import context, header, link_row, message, paragraph

MAX_LISTED: Final = 10
MAX_SUMMARY_CHARS: Final = 220
MAX_PLACES: Final = 3
"""Hosts or jobs in a title; the lines below it name all."""
MAX_PLACE_CHARS: Final = 32

_ALERT_SIGNS: Final = {
    "critical": OPEN_SIGNS[Severity.CRITICAL],
    "warning": OPEN_SIGNS[Severity.WARNING],
    "info": OPEN_SIGNS[Severity.NOTE],
}
RUNBOOK_URL: Final = "runbook_url"
DASHBOARD_URL: Final = "dashboard_url"
"""Annotations of an alert that hold addresses."""


def alert_message(group: AlertGroup, *, links: Links) -> Message:
    """A group of alerts that are not incidents, those that fire first."""
    alerts = sorted(group.alerts, key=_alert_order)
    firing = sum(alert.firing for alert in alerts)
    worst = _alert_sign(alerts[0]) if alerts else RECOVERED_SIGN
    title = f"{worst} {_alert_title(alerts, firing)}"
    rest = max(len(alerts) - MAX_LISTED, 0) + group.left_out
    return message(
        title,
        [header(title)],
        paragraph([_alert_line(alert) for alert in alerts[:MAX_LISTED]]),
        context(f"{rest:,} more not listed" if rest else ""),
        link_row(_alert_links(group, alerts, links)),
    )


def _alert_title(alerts: Sequence[Alert], firing: int) -> str:
    """What fires, and on which host or job: "Agent down on node0", "TidegaugeAgentDown on node0, node1: 2 firing"."""
    if len(alerts) == 1:
        return f"{'' if firing else 'Resolved: '}{_alert_words(alerts[0])}"
    names = sorted({tidy(alert.name, MAX_NAME_CHARS) for alert in alerts} - {""})
    what = names[0] if len(names) == 1 else f"{len(names)} kinds of alerts" if names else "Alerts"
    places = list(dict.fromkeys(filter(None, map(_alert_place, alerts))))
    more = [f"{len(places) - MAX_PLACES} more"] if len(places) > MAX_PLACES else []
    where = f" on {', '.join([*places[:MAX_PLACES], *more])}" if places else ""
    counts = [f"{firing} firing"] * (firing > 0) + [f"{len(alerts) - firing} resolved"] * (firing < len(alerts))
    return f"{what}{where}: {', '.join(counts) or 'none left'}"


def storm_message(stories: Sequence[Story], *, cluster: str, links: Links, now_unix_s: float) -> Message:
    """A bad night: incidents by cause and severity, and the most urgent by name; of those that are over, the number."""
    told = [tamed(story.incident) for story in stories]
    incidents = [one for one in told if one.is_open] or told
    incidents.sort(key=lambda one: _urgency(one, now_unix_s))
    over = sum(not one.is_open for one in told)
    where = f"on cluster {tidy(cluster, MAX_NAME_CHARS)}"
    if over < len(told):
        title = f"{OPEN_SIGNS[Severity.CRITICAL]} {format_count(len(incidents), 'incident')} at once {where}"
    else:
        title = f"{RECOVERED_SIGN} Resolved: {format_count(over, 'incident')} {where}"
    began_s = min((one.opened_unix_s for one in told), default=now_unix_s)
    rest = len(incidents) - MAX_LISTED
    return message(
        title,
        [header(title)],
        paragraph([_extent(incidents, began_s, now_unix_s), *_by_cause(incidents)]),
        paragraph(["Most urgent:", *(_incident_line(one, now_unix_s) for one in incidents[:MAX_LISTED])]),
        context(
            ", ".join([f"{rest:,} more not listed"] * (rest > 0) + [f"{over:,} resolved"] * (0 < over < len(told)))
        ),
        link_row(
            [
                Link("Fleet dashboard", links.fleet(cluster=cluster, from_unix_s=began_s - BEFORE_S, to_unix_s=None)),
                Link("All incidents", links.incidents(cluster=cluster, from_unix_s=began_s - BEFORE_S, to_unix_s=None)),
            ]
        ),
    )


def silence_url(group: AlertGroup) -> str | None:
    """The page of Alertmanager on which a silence for this group is made; ``None`` without its address."""
    matched: Mapping[str, str] = group.group_labels or ({"alertname": group.alerts[0].name} if group.alerts else {})
    if not group.external_url or not matched:
        return None
    matchers = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(matched.items()))
    return f"{group.external_url.rstrip('/')}/#/silences/new?filter={quote('{' + matchers + '}', errors='replace')}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _alert_links(group: AlertGroup, alerts: Sequence[Alert], links: Links) -> list[Link]:
    """Those of the first alert: a group is of one kind, or one cannot say for all of them."""
    if not alerts:
        return []
    first = alerts[0]
    runbook = first.annotations.get(RUNBOOK_URL) or (links.runbook(first.name) if first.name else None)
    chosen = [Link("Runbook", runbook), Link("Dashboard", first.annotations.get(DASHBOARD_URL))]
    return [*chosen, *([Link("Silence", silence_url(group))] if group.firing else [])]


def _alert_line(alert: Alert) -> str:
    return f"{_alert_sign(alert)} {_alert_words(alert)}"


def _alert_words(alert: Alert) -> str:
    told = alert.annotations.get("summary") or alert.annotations.get("description") or alert.name
    return tidy(told, MAX_SUMMARY_CHARS) or "an alert without a name"


def _alert_place(alert: Alert) -> str:
    """The job, else the host that an alert is about; empty for one about the service as a whole."""
    labels = alert.labels
    job = tidy(labels.get("job_id", ""), MAX_PLACE_CHARS)
    return f"job {job}" if job else tidy(labels.get("hostname") or labels.get("instance", ""), MAX_PLACE_CHARS)


def _alert_sign(alert: Alert) -> str:
    if not alert.firing:
        return RECOVERED_SIGN
    return _ALERT_SIGNS.get(alert.labels.get("severity", ""), OPEN_SIGNS[Severity.WARNING])


def _alert_order(alert: Alert) -> tuple[bool, int, str]:
    order = list(_ALERT_SIGNS)
    severity = alert.labels.get("severity", "")
    return not alert.firing, order.index(severity) if severity in order else len(order), alert.starts_at


def _urgency(incident: Incident, now_unix_s: float) -> tuple[bool, float, int, int]:
    """Open ones first, then by time to out-of-memory, severity and age."""
    left = seconds_left(incident, now_unix_s)
    seconds = math.inf if left is None else left.low
    return incident.state is not IncidentState.OPEN, seconds, -incident.severity.level, incident.number


def _extent(incidents: Sequence[Incident], began_s: float, now_unix_s: float) -> str:
    jobs, users = len({one.key.job for one in incidents}), len({one.user_name for one in incidents})
    since = clock(began_s, now_unix_s)
    first = f", first at {since}" if since else ""
    return f"{format_count(jobs, 'job')} of {format_count(users, 'user')} affected{first}."


def _incident_line(incident: Incident, now_unix_s: float) -> str:
    told = headline(incident, owners_job(incident), end_by_time_left(incident, now_unix_s))
    return f"{sign(incident)} {told} (#{incident.number})"


def _by_cause(incidents: Sequence[Incident]) -> list[str]:
    """ "Memory leak: 18 (5 critical, 13 warning)", the commonest cause first."""
    lines = []
    for cause, count in Counter(one.key.cause for one in incidents).most_common():
        severities = Counter(one.severity for one in incidents if one.key.cause is cause)
        graded = [f"{severities[grade]} {grade.value}" for grade in reversed(Severity) if severities[grade]]
        lines.append(f"{capitalised(NOUNS[cause])}: {count:,} ({', '.join(graded)})")
    return lines
