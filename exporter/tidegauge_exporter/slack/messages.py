"""Messages on Slack, one function for each occasion. Nothing here knows how they are sent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from tidegauge.core.incidents import ChangeKind, Incident, IncidentCause, IncidentChange, IncidentState, RankFinding
from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge.core.incidents.acts import ActKind, PersonAct, acknowledgement, exemption_in_force
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.incidents.wording import (
    CLOSURES,
    capitalised,
    change_in_words,
    change_sentence,
    evidence_in_words,
    evidence_sentences,
    incident_sentence,
    name_ranks,
    other_half,
    rank_place,
    rate,
)
from tidegauge.core.units import format_bytes, format_count, format_duration
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.links import BEFORE_S, Link, Links, chosen_links
from tidegauge_exporter.messages.action_text import TO_OWNER, act_line, deed, latest_deeds, people_lines, told_at
from tidegauge_exporter.messages.headlines import (
    NOUNS,
    OPEN_SIGNS,
    RECOVERED_SIGN,
    as_of,
    crash,
    end_by_clock,
    end_by_time_left,
    headline,
    owners_job,
    replica_names,
    replicas_sentence,
    seconds_left,
    sign,
)
from tidegauge_exporter.messages.owner_text import owner_words
from tidegauge_exporter.messages.text import clock, code, local_clock, tidy
from tidegauge_exporter.messages.untrusted import MAX_NAME_CHARS, tamed, tamed_change, tamed_record, tamed_story
from tidegauge_exporter.messages.values import Alert, AlertGroup, Story, ToldReplicas
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.slack.blocks import Block, context, fields, header, link_row, message, paragraph

EVIDENCE_SIGN = "\N{LEFT-POINTING MAGNIFYING GLASS}"
ADVICE_SIGN = "\N{WRENCH}"

_CHANGE_SIGNS = {
    ChangeKind.ESCALATED: "\N{UPWARDS BLACK ARROW}",
    ChangeKind.EASED: "\N{DOWNWARDS BLACK ARROW}",
    ChangeKind.SPREAD: "\N{LEFT RIGHT ARROW}",
    ChangeKind.EVIDENCE: EVIDENCE_SIGN,
}
"""Signs of changes that the colour of the incident does not show."""


def incident_message(story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
    """The first message of an incident's thread."""
    asked = link_row(chosen_links(story.look_first, cluster=cluster, links=links))
    story = tamed_story(story)
    incident = story.incident
    whose = owners_job(incident, story.replicas)
    return message(
        f"{sign(incident)} {headline(incident, whose, end_by_time_left(incident, now_unix_s))}",
        [header(f"{sign(incident)} {headline(incident, whose, end_by_clock(incident, now_unix_s))}")],
        paragraph(_sentences(incident, now_unix_s)),
        evidence_paragraph(incident),
        _figures(story, now_unix_s),
        paragraph([*_deeds(story, now_unix_s), *people_lines(story.acts, now_unix_s=now_unix_s)]),
        asked,
        context(_footer(story, cluster, now_unix_s)),
    )


def change_reply(change: IncidentChange) -> Message:
    """A change of an incident, as a reply in its thread."""
    change = tamed_change(change)
    shown = _CHANGE_SIGNS.get(change.kind, sign(change.incident))
    when = clock(change.at_unix_s, change.at_unix_s)
    crashed = crash(change.incident, "the job") if change.kind is ChangeKind.CLOSED else None
    words = change_in_words(change) if crashed is None else f"closed: {crashed[:1].lower()}{crashed[1:]}"
    return message(f"{shown} {capitalised(words)}", paragraph([f"{shown} {when}: {words}"]))


def evidence_paragraph(incident: Incident) -> list[Block]:
    """The evidence of a tamed incident: line, holder, cause and advice."""
    signs = (EVIDENCE_SIGN, ADVICE_SIGN)
    return paragraph(f"{sign} {words}" for sign, words in zip(signs, evidence_sentences(incident), strict=False))


def action_reply(record: DecisionRecord) -> Message:
    """A decision of the policy and its outcome, as a reply in the incident's thread."""
    record = tamed_record(record)
    done = deed(record)
    decision = record.decision
    origin = f"rule {decision.rule}, rung {decision.rung + 1}, mode {decision.mode}"
    return message(
        f"{done.sign} {done.sentence}",
        paragraph([told_at(done, done.at_unix_s)]),
        context(f"Policy: {origin}"),
    )


revises_owner = False
"""Without buttons the message to the owner stays as it was sent."""


def replicas_reply(story: Story) -> Message:
    """How many replicas of a server are affected by now, as a reply in the thread about it."""
    story = tamed_story(story)
    sentence = replicas_sentence(story.incident, story.replicas)
    line = f"{_CHANGE_SIGNS[ChangeKind.SPREAD]} {sentence}"
    return message(line, paragraph([f"{line[:-1]}: {replica_names(story.replicas)}"]))


def act_reply(act: PersonAct) -> Message:
    """What a person did about an incident, as a reply in its thread."""
    line = act_line(act)
    return message(line, paragraph([line]))


def acts_left(story: Story, offered: Sequence[ActKind], *, now_unix_s: float) -> list[ActKind]:
    """Of the ``offered`` acts, those that are not done already: what was done is a line of the message."""
    done = {
        ActKind.ACKNOWLEDGE: acknowledgement(story.acts) is not None,
        ActKind.EXEMPT: exemption_in_force(story.acts, now_unix_s=now_unix_s) is not None,
    }
    return [kind for kind in offered if not done.get(kind, False)]


def _sentences(incident: Incident, now_unix_s: float) -> Iterable[str]:
    if incident.state is IncidentState.CLOSED:
        closed_s = incident.closed_unix_s if incident.closed_unix_s is not None else incident.updated_unix_s
        how = CLOSURES[incident.closure] if incident.closure is not None else "closed"
        when = clock(closed_s, now_unix_s)
        if oom_end(incident) is not None or incident.key.cause is IncidentCause.OUT_OF_MEMORY:
            yield incident_sentence(incident)
            yield capitalised(incident.explanation or "")
        yield f"{capitalised(how)}.{f' Closed at {when}' if when else ''}{_lasted(incident, closed_s)}"
        return
    if incident.state is IncidentState.RECOVERING and oom_end(incident) is None:
        yield "It has stopped; the incident closes if it does not come back. Last seen:"
    if incident.stale:
        yield "A node of this job is not reporting: figures are stale, and Tidegauge takes no action."
    yield incident_sentence(as_of(incident, now_unix_s))
    if incident.explanation:
        yield capitalised(incident.explanation)
    if incident.change:
        yield change_sentence(incident)


def _lasted(incident: Incident, closed_s: float) -> str:
    lasted_s = closed_s - incident.opened_unix_s
    return f", after {format_duration(lasted_s)}." if lasted_s >= 0 else "."


def _figures(story: Story, now_unix_s: float) -> list[Block]:
    incident, replicas = story.incident, story.replicas
    job = incident.key.job
    shown = incident.called.job_id
    goes_by_name = shown != job.job_id and shown == incident.job_name
    first = incident.findings[0] if incident.findings else None
    closed = incident.state is IncidentState.CLOSED
    pairs: list[tuple[str, str | None]] = [
        ("Owner", code(incident.user_name)),
        ("Job", code(shown) + (f", attempt {job.attempt}" if job.attempt else "")),
        ("Name", code(incident.job_name) if incident.job_name and not goes_by_name else None),
        ("Id", None if job.job_id == shown else code(job.job_id)),
        ("Ranks", _ranks(incident)) if replicas is None else ("Replicas", _replicas(replicas)),
        ("Growth", _growth(incident)),
    ]
    if not closed:
        pairs += [
            ("Look first at", _place(first, incident.group_name if replicas else "") if first else None),
            ("Since", None if incident.onset_step is None else f"step {incident.onset_step:,}"),
            ("Out of memory", _end(incident, now_unix_s)),
        ]
    worst = incident.worst_severity or incident.severity
    pairs.append(("Peak severity", worst.value) if closed else ("Severity", incident.severity.value))
    return fields(pairs)


def _ranks(incident: Incident) -> str | None:
    if not incident.findings:
        return None
    if len(incident.findings) + incident.ranks_left_out == incident.world_size:
        return "1 of 1" if incident.world_size == 1 else f"all {incident.world_size}"
    return f"{name_ranks(incident.ranks, left_out=incident.ranks_left_out)} of {incident.world_size}"


def _replicas(replicas: ToldReplicas) -> str | None:
    return f"{replicas.counted}: {code(replica_names(replicas))}" if replicas.names else None


def _place(finding: RankFinding, replica: str) -> str:
    where = f"rank {finding.rank} on {rank_place(code(finding.hostname), finding.gpu)}"
    return f"{code(replica)}, {where}" if replica else where


def _growth(incident: Incident) -> str | None:
    speed = rate(incident.bytes_per_step)
    if speed is None:
        return None
    if not incident.grown_bytes:
        return f"{speed} per step"
    return f"{speed} per step, {format_bytes(incident.grown_bytes)} {'so far' if incident.is_open else 'in total'}"


def _end(incident: Incident, now_unix_s: float) -> str | None:
    left = seconds_left(incident, now_unix_s)
    if left is None:
        return None
    first = local_clock(now_unix_s + left.low, now_unix_s)
    words = end_by_time_left(incident, now_unix_s) or ""
    return words if first is None else f"{words}: not before {first}, your time"


def _deeds(story: Story, now_unix_s: float) -> list[str]:
    told = [told_at(one, now_unix_s) for one in latest_deeds(story.decisions)]
    if not told and story.incident.is_open:
        return ["No action taken."]
    return told


def _footer(story: Story, cluster: str, now_unix_s: float) -> str:
    incident = story.incident
    opened, figures = (clock(at_s, now_unix_s) for at_s in (incident.opened_unix_s, incident.updated_unix_s))
    parts = [_numbers(story), incident.state.value, f"cluster {tidy(cluster, MAX_NAME_CHARS)}"]
    parts += [part for part in (other_half(incident),) if part]
    parts += [f"opened {opened}"] * (opened is not None)
    parts += [f"figures from {figures}"] * (figures is not None and incident.is_open)
    return " \N{MIDDLE DOT} ".join(parts)


def _numbers(story: Story) -> str:
    """ "Incident 12", "Incidents 12, 13 and 4 more"."""
    numbers = (story.incident.number,) if story.replicas is None else story.replicas.numbers
    more = [f"{len(numbers) - MAX_LISTED} more"] * (len(numbers) > MAX_LISTED)
    listed = " and ".join([", ".join(map(str, numbers[:MAX_LISTED])), *more])
    return f"Incident{'s' * (len(numbers) > 1)} {listed}"


def owner_message(decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
    """The growth, the forecast, the next actions, and advice to the owner."""
    words = owner_words(decision, story, cluster=cluster, now_unix_s=now_unix_s)
    shown = sign(words.incident)
    return message(
        f"{shown} {words.by_time_left}",
        [header(f"{shown} {words.by_clock}")],
        paragraph(["\n\n".join(words.sentences)]),
        paragraph(people_lines(story.acts, now_unix_s=now_unix_s)),
        paragraph(words.evidence),
        link_row(chosen_links(story.look_first, cluster=cluster, links=links)),
        context(words.footer),
    )


def owner_followup(record: DecisionRecord) -> Message:
    """A decision about the owner's job and its outcome, as a reply to the message that announced it."""
    done = deed(tamed_record(record), TO_OWNER)
    return message(f"{done.sign} {done.sentence}", paragraph([told_at(done, done.at_unix_s)]))


def owner_evidence(story: Story) -> Message:
    """The evidence about the owner's job, as a reply to the message that announced the incident."""
    incident = tamed(story.incident)
    line = f"{EVIDENCE_SIGN} {capitalised(evidence_in_words(incident))}"
    return message(line, evidence_paragraph(incident))


MAX_LISTED: Final = 10
MAX_SUMMARY_CHARS: Final = 220
MAX_PLACES: Final = 3
"""Bound of hosts or jobs in a title; the lines below it name all."""
MAX_PLACE_CHARS: Final = 32

_ALERT_SIGNS: Final = {
    "critical": OPEN_SIGNS[Severity.CRITICAL],
    "warning": OPEN_SIGNS[Severity.WARNING],
    "info": OPEN_SIGNS[Severity.NOTE],
}
OUR_ALERTS: Final = "Tidegauge"
"""The beginning of the names of our own alerts."""
RUNBOOK_URL: Final = "runbook_url"
DASHBOARD_URL: Final = "dashboard_url"
JOB_URL: Final = "job_url"
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
    """The alert and its hosts or jobs: "Agent down on node0", "TidegaugeAgentDown on node0, node1: 2 firing"."""
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
    """Many incidents: counts by cause and severity, the most urgent by name, and the number of those that are over."""
    tame = sorted(map(tamed_story, stories), key=lambda story: _urgency(story.incident, now_unix_s))
    told = [story.incident for story in tame]
    listed = [story for story in tame if story.incident.is_open] or tame
    incidents = [story.incident for story in listed]
    over = sum(not one.is_open for one in told)
    where = f"on cluster {tidy(cluster, MAX_NAME_CHARS)}"
    if over < len(told):
        worst = max((one.severity for one in incidents), key=lambda one: one.level)
        at_once = " at once" * (len(incidents) > 1)
        title = f"{OPEN_SIGNS[worst]} {format_count(len(incidents), 'incident')}{at_once} {where}"
    else:
        title = f"{RECOVERED_SIGN} Resolved: {format_count(over, 'incident')} {where}"
    began_s = min((one.opened_unix_s for one in told), default=now_unix_s)
    shown = began_s - BEFORE_S, None
    rest = len(incidents) - MAX_LISTED
    return message(
        title,
        [header(title)],
        paragraph([_extent(incidents, began_s, now_unix_s), *_by_cause(incidents)]),
        paragraph(["Most urgent:", *(_incident_line(one, now_unix_s) for one in listed[:MAX_LISTED])]),
        context(
            ", ".join([f"{rest:,} more not listed"] * (rest > 0) + [f"{over:,} resolved"] * (0 < over < len(told)))
        ),
        link_row(
            [
                Link("Fleet dashboard", links.fleet(cluster, shown)),
                Link("All incidents", links.incidents(cluster, shown) or links.page("incidents")),
            ]
        ),
    )


def silence_url(group: AlertGroup, links: Links) -> str | None:
    """Alertmanager's page for a silence of this group; ``None`` without an address that people reach."""
    matched: Mapping[str, str] = group.group_labels or ({"alertname": group.alerts[0].name} if group.alerts else {})
    address = links.alertmanager(group.external_url)
    if not address or not matched:
        return None
    matchers = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(matched.items()))
    return f"{address.rstrip('/')}/#/silences/new?filter={quote('{' + matchers + '}', errors='replace')}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _alert_links(group: AlertGroup, alerts: Sequence[Alert], links: Links) -> list[Link]:
    """Links of the first alert: a group has one kind of alerts, or none holds for all of them."""
    if not alerts:
        return []
    first = alerts[0]
    runbook, dashboard, job = map(first.annotations.get, (RUNBOOK_URL, DASHBOARD_URL, JOB_URL))
    if first.name.startswith(OUR_ALERTS):
        runbook, dashboard = links.alert_runbook(first.name, runbook), links.alert_dashboard(dashboard)
        job = links.alert_job(job)
    chosen = [Link("Runbook", runbook), Link("Dashboard", dashboard), Link("Job", job)]
    return [*chosen, *([Link("Silence", silence_url(group, links))] if group.firing else [])]


def _alert_line(alert: Alert) -> str:
    return f"{_alert_sign(alert)} {_alert_words(alert)}"


def _alert_words(alert: Alert) -> str:
    told = alert.annotations.get("summary") or alert.annotations.get("description") or alert.name
    return tidy(told, MAX_SUMMARY_CHARS) or "an alert without a name"


def _alert_place(alert: Alert) -> str:
    """The job, else the host of an alert; empty for one about the service as a whole."""
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
    """The sort key: open incidents first, then by forecast, severity and age."""
    left = seconds_left(incident, now_unix_s)
    seconds = math.inf if left is None else left.low
    return incident.state is not IncidentState.OPEN, seconds, -incident.severity.level, incident.number


def _extent(incidents: Sequence[Incident], began_s: float, now_unix_s: float) -> str:
    jobs, users = len({one.key.job.whole for one in incidents}), len({one.user_name for one in incidents})
    since = clock(began_s, now_unix_s)
    first = f", first at {since}" if since else ""
    return f"{format_count(jobs, 'job')} of {format_count(users, 'user')} affected{first}."


def _incident_line(story: Story, now_unix_s: float) -> str:
    incident = story.incident
    told = headline(incident, owners_job(incident, story.replicas), end_by_time_left(incident, now_unix_s))
    return f"{sign(incident)} {told} (#{incident.number})"


def _by_cause(incidents: Sequence[Incident]) -> list[str]:
    """ "Memory leak: 18 (5 critical, 13 warning)", the commonest cause first."""
    lines = []
    for cause, count in Counter(one.key.cause for one in incidents).most_common():
        severities = Counter(one.severity for one in incidents if one.key.cause is cause)
        graded = [f"{severities[grade]} {grade.value}" for grade in reversed(Severity) if severities[grade]]
        lines.append(f"{capitalised(NOUNS[cause])}: {count:,} ({', '.join(graded)})")
    return lines
