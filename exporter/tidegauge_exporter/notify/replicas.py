"""Stories of an inference server's replicas, joined: its replicas run one program, and what grows in all of them is one
problem.

Each replica has an incident of its own; ``Incident.told_as`` says which are told as one. Which of them come in a round
changes (closed ones are forgotten), so nothing here depends on earlier rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidegauge.core.incidents import Incident, IncidentState, ToldAs
from tidegauge.core.incidents.actions import DecisionRecord, Disposition
from tidegauge.core.incidents.wording import best_evidence
from tidegauge_exporter.messages.values import Story, ToldReplicas

_ORDER = {IncidentState.OPEN: 0, IncidentState.RECOVERING: 1, IncidentState.CLOSED: 2}


def told_as_one(stories: Sequence[Story]) -> list[Story]:
    """The stories in their order, with one in place of those that are told as one: that of the replica to look at
    first, under the number and with the beginning of the first incident."""
    together: dict[ToldAs, list[Story]] = {}
    for story in stories:
        together.setdefault(story.incident.told_under, []).append(story)
    numbers = {story.incident.number: told_as.number for told_as, ones in together.items() for story in ones}
    return [_joined(told_as, ones, numbers) for told_as, ones in together.items()]


def affected(story: Story) -> int:
    """In how many replicas of a server it goes on now; 0 for other jobs."""
    return len(story.replicas.names) if story.replicas and story.incident.state is IncidentState.OPEN else 0


def _joined(told_as: ToldAs, stories: Sequence[Story], numbers: Mapping[int, int]) -> Story:
    if stories[0].incident.told_as is None:
        return stories[0]
    stories = sorted(stories, key=lambda story: story.incident.number)
    incidents = [story.incident for story in stories]
    lead = min(stories, key=_look_first)
    known = next((one for one in incidents if best_evidence(one)), lead.incident)
    growth = next((one.grew_in for one in incidents if one.grew_in is not None), None)
    told = [one for one in incidents if _goes_with(one, lead.incident)]
    replicas = _replicas(incidents, told, lead.incident)
    decisions = (made for story in stories for made in story.decisions)
    of_server = lead.incident.replicas
    says_more = of_server is not None and of_server.growing > len(replicas.names)
    return Story(
        replace(
            lead.incident,
            number=told_as.number,
            opened_unix_s=told_as.opened_unix_s,
            worst_severity=max((one.worst_severity or one.severity for one in incidents), key=lambda one: one.level),
            stale=any(one.stale for one in told),
            evidence=known.evidence,
            snapshots=known.snapshots,
            reports=known.reports,
            grew_in=None if growth is None else numbers.get(growth, growth),
            replicas=of_server if says_more else None,
        ),
        tuple(sorted((change for story in stories for change in story.history), key=lambda one: one.at_unix_s)),
        tuple(sorted(filter(_is_of_server, decisions), key=lambda one: one.decision.decided_s)),
        lead.memory,
        tuple(sorted((act for story in stories for act in story.acts), key=lambda one: one.at_unix_s)),
        replicas,
    )


def _goes_with(incident: Incident, lead: Incident) -> bool:
    """Whether a replica is one of those that are told of: what may have ended long ago does not count among them."""
    return incident.is_open and (incident.state, incident.unheard) == (lead.state, lead.unheard)


def _replicas(incidents: Sequence[Incident], told: Sequence[Incident], lead: Incident) -> ToldReplicas:
    names = tuple(dict.fromkeys(one.group_name for one in told))
    server = lead.replicas
    return ToldReplicas(
        "" if server is None else server.kind,
        names,
        max(len(names), 0 if server is None else server.running),
        tuple(one.number for one in incidents),
        ToldAs(lead.number, lead.opened_unix_s),
    )


def _is_of_server(record: DecisionRecord) -> bool:
    """Not for what is held back because one replica recovers: others go on."""
    decision = record.decision
    return decision.disposition is Disposition.DO or decision.incident.state is not IncidentState.RECOVERING


def _look_first(story: Story) -> tuple[int, bool, int, float, float, int]:
    """Sort key: what is going on, what is heard of, the most severe, what ends first; of what is over, the latest."""
    incident = story.incident
    left = incident.seconds_to_oom
    ends_s = math.inf if left is None else incident.updated_unix_s + left.likely
    closed_s = incident.closed_unix_s or 0.0
    return _ORDER[incident.state], incident.unheard, -incident.severity.level, -closed_s, ends_s, incident.number
