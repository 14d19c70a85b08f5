"""Stories with every text in them that somebody else chose made short and visible, before a word of it is written.

A job chooses its id, its name and, inside a container, the name of its host; what a scheduler said is quoted too. Cut
here, at the one way in, a name of a megabyte costs the reader one line and not the figures behind it.
"""

from __future__ import annotations

from dataclasses import replace

from tidegauge.core.actions import Decision, DecisionRecord
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge_exporter.notify.values import Story
from tidegauge_exporter.slack.text import DASH, tidy

MOST_ID = 64
MOST_NAME = 80
MOST_REMARK = 400
MOST_EXPLANATION = 900
MOST_EVIDENCE = 3
"""Snapshots and reports named; the report lists all."""
MOST_PATH = 120


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
        key=incident.key._replace(job=job._replace(job_id=tidy(job.job_id, MOST_ID) or DASH)),
        user_name=tidy(incident.user_name, MOST_ID) or DASH,
        job_name=tidy(incident.job_name, MOST_NAME) if incident.job_name else None,
        scheduler=tidy(incident.scheduler, MOST_ID) if incident.scheduler else None,
        findings=tuple(replace(one, hostname=tidy(one.hostname, MOST_NAME)) for one in incident.findings),
        explanation=tidy(incident.explanation, MOST_EXPLANATION) if incident.explanation else None,
        snapshots=_paths(incident.snapshots),
        reports=_paths(incident.reports),
    )


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
