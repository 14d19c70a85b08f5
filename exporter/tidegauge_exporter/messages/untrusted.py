"""Tames stories: makes every text in them that somebody else chose short and visible.

A job chooses its id, its name and, inside a container, the name of its host; answers of schedulers are quoted too. A
name of a megabyte then costs the reader one line, and not the figures behind it.
"""

from __future__ import annotations

from dataclasses import replace

from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.words import file_name
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge_exporter.messages.text import DASH, tidy
from tidegauge_exporter.messages.values import Story, ToldReplicas

MAX_ID_CHARS = 64
MAX_NAME_CHARS = 80
MAX_REMARK_CHARS = 400
MAX_EXPLANATION_CHARS = 900
MAX_EVIDENCE = 3
"""Bound of named snapshots and reports; the report lists all."""
MAX_PATH_CHARS = 120
MAX_HOLDER_CHARS = 160
MAX_ADVICE_CHARS = 400


def tamed_story(story: Story) -> Story:
    """The tamed story; addresses of links are made from the original."""
    return replace(
        story,
        incident=tamed(story.incident),
        history=tuple(map(tamed_change, story.history)),
        decisions=tuple(map(tamed_record, story.decisions)),
        replicas=None if story.replicas is None else _tamed_replicas(story.replicas),
    )


def _tamed_replicas(replicas: ToldReplicas) -> ToldReplicas:
    return replicas._replace(names=tuple(tidy(name, MAX_NAME_CHARS) for name in replicas.names))


def tamed(incident: Incident) -> Incident:
    job = incident.key.job
    return replace(
        incident,
        key=incident.key._replace(
            job=job._replace(job_id=tidy(job.job_id, MAX_ID_CHARS) or DASH, group=tidy(job.group, MAX_NAME_CHARS))
        ),
        group_name=tidy(incident.group_name, MAX_NAME_CHARS),
        array_name=tidy(incident.array_name, MAX_ID_CHARS) if incident.array_name else None,
        user_name=tidy(incident.user_name, MAX_ID_CHARS) or DASH,
        job_name=tidy(incident.job_name, MAX_NAME_CHARS) if incident.job_name else None,
        scheduler=tidy(incident.scheduler, MAX_ID_CHARS) if incident.scheduler else None,
        findings=tuple(replace(one, hostname=tidy(one.hostname, MAX_NAME_CHARS)) for one in incident.findings),
        explanation=tidy(incident.explanation, MAX_EXPLANATION_CHARS) if incident.explanation else None,
        change=tidy(incident.change, MAX_EXPLANATION_CHARS) if incident.change else None,
        snapshots=_paths(incident.snapshots),
        reports=_paths(incident.reports),
        evidence=tuple(tamed_evidence(one) for one in incident.evidence[:MAX_EVIDENCE]),
    )


def tamed_evidence(brief: EvidenceBrief) -> EvidenceBrief:
    """The tamed evidence, with the last part of each path."""
    return brief._replace(
        line=_tamed_line(brief.line),
        through=_tamed_line(brief.through),
        holder=tidy(brief.holder, MAX_HOLDER_CHARS) if brief.holder else None,
        advice=tidy(brief.advice, MAX_ADVICE_CHARS) if brief.advice else None,
    )


def _tamed_line(line: CodeLine | None) -> CodeLine | None:
    if line is None:
        return None
    filename, function = file_name(line.filename[-8 * MAX_NAME_CHARS :]), tidy(line.function, MAX_NAME_CHARS)
    return line._replace(filename=tidy(filename, MAX_NAME_CHARS) or DASH, function=function or DASH)


def tamed_change(change: IncidentChange) -> IncidentChange:
    return change._replace(incident=tamed(change.incident))


def tamed_record(record: DecisionRecord) -> DecisionRecord:
    """The tamed record; ``parameters`` are unchanged."""
    return replace(
        record,
        decision=tamed_decision(record.decision),
        detail=tidy(record.detail, MAX_REMARK_CHARS) if record.detail else None,
    )


def tamed_decision(decision: Decision) -> Decision:
    """The tamed decision; ``parameters`` are unchanged."""
    return replace(
        decision,
        incident=tamed(decision.incident),
        reason=tidy(decision.reason, MAX_REMARK_CHARS),
        rule=tidy(decision.rule, MAX_ID_CHARS),
    )


def _paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(tidy(path, MAX_PATH_CHARS) for path in paths[:MAX_EVIDENCE])
