"""The HTML report: one page about an incident, a job or files, with a section for each known part.

``tidegauge report`` makes this page. It needs no other file and fetches
nothing: its policy (``Content-Security-Policy``) allows the style sheet and the script in it by their hashes. The web
UI of the coordinator shows the same parts with its own script. Texts of a job go to the script as JSON without
characters of HTML, and the script puts them on the page as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegauge.analysis.profile.words import doubts
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.brief import EvidenceCause
from tidegauge.core.evidence.words import advice_of, because_lines, cause_words, evidence_sentence
from tidegauge.core.incidents import CAUSE_OF_SIGNAL
from tidegauge.core.incidents.wording import capitalised, does, hint, outlook, rate, since, time_left
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState, Signal
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import tamed_story
from tidegauge_exporter.reports.act_page import acts_section
from tidegauge_exporter.reports.evidence_sections import evidence_sections, script_data
from tidegauge_exporter.reports.html_page import (
    asset,
    bullets,
    inline,
    lead,
    meta,
    muted,
    page,
    policy,
    script_json,
    section,
    style_sheet,
)
from tidegauge_exporter.reports.incident_sections import (
    briefs_table,
    deeds_section,
    files_section,
    history_section,
    keep_running_section,
    lead_section,
    links_line,
    ranks_section,
    tone,
)
from tidegauge_exporter.reports.memory_plot import memory_section
from tidegauge_exporter.reports.memory_plot import ranks_section as rank_charts
from tidegauge_exporter.reports.profile_page import SCRIPT as PROFILE_SCRIPT
from tidegauge_exporter.reports.profile_page import SEARCH, profile_json, profile_lead, profile_sections
from tidegauge_exporter.reports.recording_data import recording_data
from tidegauge_exporter.reports.report_content import RankCurve, ReportContent
from tidegauge_exporter.reports.snapshot_data import pool_rows

if TYPE_CHECKING:
    from tidegauge.analysis.profile.recording import NamedRecording

DATA_ID: Final = "report-data"
MAX_TEXT_CHARS: Final = 600
"""Characters of one sentence."""
_BUILT: Final = ("report_page", "built")
_FOOTER: Final = "<footer>Made by Tidegauge. Times and rates are estimates, shown with their ranges.</footer>"


class ReportParts(NamedTuple):
    """A report without the document around it."""

    title: str
    html: Sequence[str]
    data: str
    """Markup with the data of the script; empty where there is nothing to draw."""
    has_profile: bool


def render_report(content: ReportContent) -> str:
    """The page. Texts that a job or a scheduler chose are made short and visible, and escaped."""
    title, parts, data, has_profile = report_parts(content)
    if not data:
        style = style_sheet()
        return page(title, parts, head=policy(style), style=style)
    script = asset(*_BUILT, "report.js") + (f"\n{asset(*PROFILE_SCRIPT)}" if has_profile else "")
    style = asset(*_BUILT, "uplot.css") + style_sheet()
    end = f"{data}<script>{script}</script>\n"
    return page(title, parts, head=policy(style, script), style=style, end=end)


def report_parts(content: ReportContent) -> ReportParts:
    """The parts of the page, as ``render_report`` has them."""
    whole = content.story
    told = replace(content, story=None if whole is None else tamed_story(whole))
    story = told.story
    drawings, chart = script_data(told), memory_section(told)
    blocks = None if told.profile is None else _blocks(told.recording, told.profile)
    drawn = any(("<svg" in chart, told.profile, *(value for name, value in drawings.items() if name != "stacks")))
    parts = [
        meta([(label, value and tidy(value, MAX_TEXT_CHARS)) for label, value in told.subject],
             made_unix_s=told.made_unix_s),
        _lead(told),
        "" if whole is None else links_line(whole.incident, cluster=told.cluster, links=told.links),
        _root_cause(told),
        chart,
        *([] if told.profile is None else [SEARCH, *profile_sections(told.profile, told.profile.advice, data=blocks)]),
        "" if story is None else ranks_section(story.incident),
        rank_charts(told),
        *evidence_sections(told, drawings),
    ]  # fmt: skip
    if whole is not None and story is not None:
        parts += [
            deeds_section(story.decisions, is_open=story.incident.is_open),
            acts_section(story.acts),
            history_section(story.history),
            files_section(whole.incident, gone=told.snapshots_gone),
            keep_running_section(told.links) if story.incident.is_open else "",
        ]
    parts += [section("Sources and gaps", bullets(tidy(fact, MAX_TEXT_CHARS) for fact in _sources(told))), _FOOTER]
    data = f'<script type="application/json" id="{DATA_ID}">{script_json(drawings)}</script>\n{profile_json(blocks)}'
    return ReportParts(tidy(told.title, MAX_TEXT_CHARS), parts, data if drawn else "", told.profile is not None)


def _blocks(recording: NamedRecording | None, profile: StepProfile) -> dict[str, Any] | None:
    return None if recording is None else recording_data(recording, peak_event=profile.peak.event)


def _lead(content: ReportContent) -> str:
    """The first section, of an incident, else of the curves, else of the snapshots."""
    if content.story is not None:
        return lead_section(content.story.incident, content.story.decisions, content.made_unix_s)
    evidence = content.evidence
    found = None if evidence is None else tidy(evidence_sentence(evidence), MAX_TEXT_CHARS)
    if content.ranks:
        return curve_lead(content.ranks[0], found)
    if evidence is not None and found is not None:
        grew, steps = evidence.grown_bytes, evidence.window_steps
        caution = "Growth between two snapshots is not yet a leak: memory over time shows whether it stops."
        return lead(
            found,
            tone="warning" if (grew or 0) > 0 else "ok",
            remarks=[caution] * ((grew or 0) > 0),
            figures=[
                (None if grew is None else format_bytes(grew), "growth in the window"),
                (None if not steps else f"{steps:,}", "steps in the window"),
                (None if not steps or grew is None else format_bytes(grew / steps), "growth per step"),
            ],
        )
    if content.profile is not None:
        return profile_lead(content.profile)
    live_bytes = sum(row.live_bytes for row in pool_rows((content.late and content.late.end) or ()))
    remark = "One snapshot shows what is alive, not what grows: add an earlier one of the same rank."
    return lead(f"{format_bytes(live_bytes)} of live tensors, by the line that allocated them.", tone="note",
                remarks=[remark])  # fmt: skip


def curve_lead(curve: RankCurve, found: str | None = None, remarks: Sequence[str | None] = ()) -> str:
    """The first section of a page about a rank: its verdict. ``found``: what evidence says; ``remarks`` come first."""
    verdict, who = curve.verdict, f"Rank {curve.rank}"
    if verdict.state is LeakState.OK:
        return lead(f"{who} does not grow: its memory has not kept growing.", tone="ok", remarks=[*remarks, found])
    cause = CAUSE_OF_SIGNAL[verdict.signal or Signal.ALLOCATED]
    says = f"{who} {does(cause, verdict.bytes_per_step, verdict.severity)}{since(verdict.onset_step)}"
    end = outlook(verdict.severity, verdict.seconds_to_oom, verdict.steps_to_oom)
    doubt = "Suspected, not established: memory has not grown for long enough to be sure."
    return lead(
        f"{says}{end}",
        tone=tone(verdict),
        remarks=[*remarks, found or hint(cause), doubt if verdict.state is LeakState.SUSPECTED else None],
        figures=[
            (rate(verdict.bytes_per_step), "growth per step"),
            (None if verdict.grown_bytes is None else format_bytes(verdict.grown_bytes), "growth since onset"),
            (None if verdict.alarm_step is None else f"{verdict.alarm_step:,}", "established at step"),
            (time_left(verdict.seconds_to_oom, verdict.steps_to_oom), "until OOM"),
        ],
    )


def _root_cause(content: ReportContent) -> str:
    """The section with line, holder and cause of each examined rank, the reasons, and advice. Growth and line are in
    the headline, unless an incident's lacks them."""
    evidence, parts = content.evidence, []
    incident = None if content.story is None else content.story.incident
    if incident is not None and incident.evidence:
        parts.append(briefs_table(incident.evidence))
        if evidence is None:
            adds = "flame graphs" if content.snapshots_gone else "flame graphs and the allocator map"
            parts.append(muted(f"`tidegauge report {incident.number}` adds {adds}."))
    if evidence is None or (incident is None and not _calls_for_a_cause(evidence)):
        return section("Root cause", *parts)
    if incident is not None and not incident.evidence:
        parts.append(f"<p>{_told(evidence_sentence(evidence))}</p>")
    parts.append(f"<p><b>{_told(capitalised(cause_words(evidence.cause.cause, evidence.cause.confidence)))}.</b></p>")
    parts.append(bullets(tidy(line, MAX_TEXT_CHARS) for line in because_lines(evidence)))
    if advice := advice_of(evidence):
        parts.append(f'<p class="advice"><b>What to change.</b> {_told(capitalised(advice))}</p>')
    if evidence.problems:
        parts += [muted("Missing evidence:"), bullets(tidy(line, MAX_TEXT_CHARS) for line in evidence.problems)]
    return section("Root cause", *parts)


def _calls_for_a_cause(evidence: Evidence) -> bool:
    """True if memory grew, or the cause is known."""
    return (evidence.grown_bytes or 0) > 0 or evidence.cause.cause is not EvidenceCause.UNKNOWN


def _told(sentence: str) -> str:
    """Markup of a sentence that may quote a job."""
    return inline(tidy(sentence, MAX_TEXT_CHARS))


def _sources(content: ReportContent) -> list[str]:
    facts, evidence = list(content.absent), content.evidence
    facts += [] if content.profile is None else doubts(content.profile)
    if evidence is not None:
        facts += [
            f"Snapshot: `{ref.store}/{ref.key}`, step {ref.step:,}, {format_bytes(ref.stored_bytes)}."
            for ref in evidence.snapshots
        ]
        if evidence.longest_stall_s:
            facts.append(f"Collecting evidence paused training for at most {evidence.longest_stall_s * 1000:,.0f} ms.")
    return facts
