"""Stories with every text in them that somebody else chose made short and visible, before a word of it is written.

A job chooses its id, its name and, inside a container, the name of its host; what a scheduler said is quoted too. Cut
here, at the one way in, a name of a megabyte costs the reader one line and not the figures behind it.
"""

from __future__ import annotations

from dataclasses import replace

from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.words import file_name
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge_exporter.messages.text import DASH, tidy
from tidegauge_exporter.messages.values import Story

MOST_ID = 64
MOST_NAME = 80
MOST_REMARK = 400
MOST_EXPLANATION = 900
MOST_EVIDENCE = 3
"""Snapshots and reports named; the report lists all."""
MOST_PATH = 120
MOST_HOLDER = 160
MOST_ADVICE = 400


def tamed_story(story: Story) -> Story:
    """The story, fit to be written; addresses of links are made from the one before."""
    return replace(
        story,
        incident=tamed(story.incident),
        history=tuple(map(tamed_change, story.history)),
        decisions=tuple(map(tamed_record, story.decisions)),
    )


def tamed(incident: Incident) -> Incident:
    """The incident, fit to be written."""
    job = incident.key.job
    return replace(
        incident,
        key=incident.key._replace(
            job=job._replace(job_id=tidy(job.job_id, MOST_ID) or DASH, group=tidy(job.group, MOST_NAME))
        ),
        group_name=tidy(incident.group_name, MOST_NAME),
        array_name=tidy(incident.array_name, MOST_ID) if incident.array_name else None,
        user_name=tidy(incident.user_name, MOST_ID) or DASH,
        job_name=tidy(incident.job_name, MOST_NAME) if incident.job_name else None,
        scheduler=tidy(incident.scheduler, MOST_ID) if incident.scheduler else None,
        findings=tuple(replace(one, hostname=tidy(one.hostname, MOST_NAME)) for one in incident.findings),
        explanation=tidy(incident.explanation, MOST_EXPLANATION) if incident.explanation else None,
        snapshots=_paths(incident.snapshots),
        reports=_paths(incident.reports),
        evidence=tuple(tamed_evidence(one) for one in incident.evidence[:MOST_EVIDENCE]),
    )


def tamed_evidence(brief: EvidenceBrief) -> EvidenceBrief:
    """What a rank says of its own code, fit to be written: of a path the last part, which is what people look for."""
    return brief._replace(
        line=_tamed_line(brief.line),
        through=_tamed_line(brief.through),
        holder=tidy(brief.holder, MOST_HOLDER) if brief.holder else None,
        advice=tidy(brief.advice, MOST_ADVICE) if brief.advice else None,
    )


def _tamed_line(line: CodeLine | None) -> CodeLine | None:
    if line is None:
        return None
    filename, function = file_name(line.filename[-8 * MOST_NAME :]), tidy(line.function, MOST_NAME)
    return line._replace(filename=tidy(filename, MOST_NAME) or DASH, function=function or DASH)


def tamed_change(change: IncidentChange) -> IncidentChange:
    """The change, fit to be written."""
    return change._replace(incident=tamed(change.incident))


def tamed_record(record: DecisionRecord) -> DecisionRecord:
    """The record, fit to be written; ``parameters`` stay as they are."""
    return replace(
        record,
        decision=tamed_decision(record.decision),
        detail=tidy(record.detail, MOST_REMARK) if record.detail else None,
    )


def tamed_decision(decision: Decision) -> Decision:
    """The decision, fit to be written; ``parameters`` stay as they are."""
    return replace(
        decision,
        incident=tamed(decision.incident),
        reason=tidy(decision.reason, MOST_REMARK),
        rule=tidy(decision.rule, MOST_ID),
    )


def _paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(tidy(path, MOST_PATH) for path in paths[:MOST_EVIDENCE])
