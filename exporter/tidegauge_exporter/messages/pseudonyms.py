"""Stories for places that many people see, with pseudonyms in place of users' names."""

from __future__ import annotations

from dataclasses import replace

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.acts import PersonAct
from tidegauge.core.persons.pseudonyms import Pseudonyms
from tidegauge_exporter.messages.values import Story


def story_with_pseudonym(story: Story, pseudonyms: Pseudonyms) -> Story:
    return replace(
        story,
        incident=_incident(story.incident, pseudonyms),
        history=tuple(
            change._replace(incident=_incident(change.incident, pseudonyms)) for change in story.history
        ),
        decisions=tuple(_record(record, pseudonyms) for record in story.decisions),
        acts=tuple(_act(act, pseudonyms) for act in story.acts),
    )  # fmt: skip


def _incident(incident: Incident, pseudonyms: Pseudonyms) -> Incident:
    name, said = incident.user_name, incident.explanation
    return replace(
        incident,
        user_name=pseudonyms.of(name),
        explanation=None if said is None else pseudonyms.instead_of(name, said),
    )


def _act(act: PersonAct, pseudonyms: Pseudonyms) -> PersonAct:
    """Words may name anybody: they are left out."""
    return act._replace(by=None if act.by is None else pseudonyms.of(act.by), sender=None, detail=None)


def _record(record: DecisionRecord, pseudonyms: Pseudonyms) -> DecisionRecord:
    made, detail = record.decision, record.detail
    name = made.facts.user_name
    shown = replace(
        made,
        incident=_incident(made.incident, pseudonyms),
        facts=replace(made.facts, user_name=pseudonyms.of(name)),
        reason=pseudonyms.instead_of(name, made.reason),
    )
    return replace(record, decision=shown, detail=None if detail is None else pseudonyms.instead_of(name, detail))
