"""The HTML report with evidence: one file that needs nothing beside itself, for a person who is to find the line.

Words and tables are HTML, which is there without a script; the plots are drawn by a script in the file
(``report_page``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

from tidegauge.core.evidence import Evidence, StackGrowth
from tidegauge.core.evidence.brief import EvidenceCause
from tidegauge.core.evidence.rank_evidence import Holder
from tidegauge.core.evidence.words import advice_of, because_lines, cause_words, evidence_sentence
from tidegauge.core.incidents import CAUSE_OF_SIGNAL
from tidegauge.core.incidents.wording import capitalised, does, hint, outlook, rate, since, time_left
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState, Signal
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import tamed_story
from tidegauge_exporter.reports.evidence_chart import MemoryChart, memory_chart
from tidegauge_exporter.reports.evidence_plots import memory_plot, memory_values, rank_plots
from tidegauge_exporter.reports.evidence_snapshot import (
    growth_weights,
    history,
    live_weights,
    memory_map,
    pool_rows,
)
from tidegauge_exporter.reports.evidence_stacks import StackNumbers
from tidegauge_exporter.reports.evidence_tables import (
    holders_table,
    pools_table,
    suspects_table,
    whatif_section,
)
from tidegauge_exporter.reports.evidence_values import RankCurve, ReportContent
from tidegauge_exporter.reports.html_page import lead, meta, section
from tidegauge_exporter.reports.incident_sections import deeds_section, history_section, lead_section, ranks_section
from tidegauge_exporter.reports.rank_table import tone

# A report as one file: what the page's script is given, and the document that runs this script and nothing else.
# The document fetches nothing: its policy (a ``Content-Security-Policy``) allows the one script and the one style sheet
# that are in it, by their hashes. What a job chose goes to the script as JSON in which no character means anything to
# HTML, and the script puts it on the page as text.

SCRIPT: Final = ("report_page", "built", "report.js")
STYLES: Final = (("report.css",), ("report_page", "built", "report.css"))
DATA_ID: Final = "report-data"
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def document(title: str, html: Iterable[str], data: Mapping[str, Any]) -> str:
    """The whole file. ``html`` are parts of markup, ``data`` is for the script."""
    script = _asset(*SCRIPT)
    style = "\n".join(_asset(*name) for name in STYLES)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    body = "\n".join(part for part in html if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n"
        f'<script type="application/json" id="{DATA_ID}">{script_json(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def script_json(value: object) -> str:
    """JSON that may stand in a ``script`` element: ASCII, without ``<``, ``>`` and ``&``."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def _asset(*name: str) -> str:
    return files("tidegauge_exporter.reports").joinpath(*name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """As a ``Content-Security-Policy`` names what it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


_CODE: Final = re.compile("`([^`]+)`")
MAX_TEXT_CHARS: Final = 600
"""Characters of one sentence."""
_SCRIPT_ONLY: Final = "This is drawn by the script in this file, which does not run here. The tables say the same."


def render_evidence_report(content: ReportContent) -> str:
    """The file. Texts that a job or a scheduler chose are made short and visible, and escaped."""
    stacks = StackNumbers()
    chart = memory_chart(content)
    data = _data(content, chart, stacks)
    parts = [
        meta([(label, value and tidy(value, MAX_TEXT_CHARS)) for label, value in content.subject],
             made_unix_s=content.made_unix_s),
        _lead(content),
        _cause(content),
        _memory(content, chart),
        _ranks(content),
        _flames(content, data),
        _suspects(content.evidence),
        _holders(content.evidence),
        _map(content, data),
        _history(data),
        "" if content.whatif is None else section("Other allocator settings", whatif_section(content.whatif)),
        *_story(content),
        _absent(content),
        "<footer>Made by Tidegauge. Times and rates are estimates; their ranges are given with them.</footer>",
    ]  # fmt: skip
    return document(tidy(content.title, MAX_TEXT_CHARS), parts, {**data, "stacks": stacks.table()})


def _data(content: ReportContent, chart: MemoryChart | None, stacks: StackNumbers) -> dict[str, Any]:
    """What the script draws; a part that is null is not on the page."""
    evidence, late = content.evidence, content.late
    growth: Sequence[StackGrowth] = evidence.growth if evidence is not None else ()
    live = live_weights(late, stacks) if late is not None and late.end else ()
    return {
        "chart": None if chart is None else memory_values(chart),
        "growth": growth_weights(growth, stacks) or None,
        "live": live or growth_weights(evidence.live if evidence is not None else (), stacks) or None,
        "map": None if late is None else memory_map(late, content.early, growth, stacks),
        "history": None if late is None else history(late, stacks),
    }


def _lead(content: ReportContent) -> str:
    """An incident's, where there is one; else what the curves say, else the snapshots."""
    if content.story is not None:
        return lead_section(tamed_story(content.story).incident, content.made_unix_s)
    found = None if content.evidence is None else tidy(evidence_sentence(content.evidence), MAX_TEXT_CHARS)
    if content.ranks:
        return _lead_of_curve(content.ranks[0], found)
    if content.evidence is not None and found is not None:
        grew = (content.evidence.grown_bytes or 0) > 0
        caution = "Growth between two moments is not yet a leak: only memory over time says whether it ends."
        figures = _window_figures(content.evidence)
        return lead(found, tone="warning" if grew else "ok", remarks=[caution] * grew, figures=figures)
    live_bytes = sum(row.live_bytes for row in pool_rows((content.late and content.late.end) or ()))
    remark = "One snapshot says what lives, not what grows: give an earlier one of the same rank as well."
    return lead(
        f"{format_bytes(live_bytes)} of live tensors, by the line that allocated them.",
        tone="note",
        remarks=[remark],
        figures=[],
    )


def _lead_of_curve(curve: RankCurve, found: str | None) -> str:
    verdict, who = curve.verdict, f"Rank {curve.rank}"
    if verdict.state is LeakState.OK:
        return lead(f"{who} does not grow: its memory has not kept growing.", tone="ok", remarks=[found], figures=[])
    cause = CAUSE_OF_SIGNAL[verdict.signal or Signal.ALLOCATED]
    says = f"{who} {does(cause, verdict.bytes_per_step, verdict.severity)}{since(verdict.onset_step)}"
    end = outlook(verdict.severity, verdict.seconds_to_oom, verdict.steps_to_oom)
    doubt = "It is suspected, not established: memory has not grown for long enough to be sure."
    return lead(
        f"{says}{end}",
        tone=tone(verdict),
        remarks=[found or hint(cause), doubt if verdict.state is LeakState.SUSPECTED else None],
        figures=[
            (rate(verdict.bytes_per_step), "growth per step"),
            (None if verdict.grown_bytes is None else format_bytes(verdict.grown_bytes), "gained since it began"),
            (None if verdict.alarm_step is None else f"{verdict.alarm_step:,}", "established at step"),
            (time_left(verdict.seconds_to_oom, verdict.steps_to_oom), "until out of memory"),
        ],
    )


def _window_figures(evidence: Evidence) -> list[tuple[str | None, str]]:
    steps, grown = evidence.window_steps, evidence.grown_bytes
    return [
        (None if grown is None else format_bytes(grown), "more alive at the end of the window"),
        (None if not steps else f"{steps:,}", "steps apart"),
        (None if not steps or grown is None else format_bytes(grown / steps), "per step"),
    ]


def _cause(content: ReportContent) -> str:
    """What it rests on, and what to change. What grew where is in the headline, unless an incident's lacks it."""
    evidence = content.evidence
    if evidence is None or (content.story is None and not _calls_for_a_cause(evidence)):
        return ""
    cause, told = evidence.cause, []
    if content.story is not None and not content.story.incident.evidence:
        told.append(f"<p>{_told(evidence_sentence(evidence))}</p>")
    told.append(f"<p><b>{_told(capitalised(cause_words(cause.cause, cause.confidence)))}.</b></p>")
    told.append(_list(because_lines(evidence)))
    if advice := advice_of(evidence):
        told.append(f'<p class="advice"><b>What to change.</b> {_told(capitalised(advice))}</p>')
    if evidence.problems:
        told.append(f'<p class="muted">What is missing:</p>{_list(evidence.problems)}')
    return section("Cause and advice", "\n".join(told))


def _calls_for_a_cause(evidence: Evidence) -> bool:
    """Something grew, or somebody knows a cause."""
    return (evidence.grown_bytes or 0) > 0 or evidence.cause.cause is not EvidenceCause.UNKNOWN


def _told(sentence: str) -> str:
    """Markup: a sentence that may quote a job; what stands between backticks is code."""
    return _CODE.sub(r"<code>\1</code>", escape(tidy(sentence, MAX_TEXT_CHARS)))


def _list(sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{_told(sentence)}</li>" for sentence in sentences)
    return f"<ul>{items}</ul>" if items else ""


def _memory(content: ReportContent, chart: MemoryChart | None) -> str:
    if chart is None:
        return ""
    ranks = content.ranks
    of_rank = f" of rank {ranks[0].rank} ({tidy(ranks[0].place, MAX_TEXT_CHARS)})" if ranks else ""
    drawn = memory_plot(chart, "GPU memory over time")
    return section(f"GPU memory{of_rank}", _drawn("chart", drawn))


def _ranks(content: ReportContent) -> str:
    if len(content.ranks) < 2:
        return ""
    plots = rank_plots(content.ranks, by_step=content.by_step)
    return section("The ranks side by side, the odd one first", plots) if plots else ""


def _flames(content: ReportContent, data: dict[str, Any]) -> str:
    """Growth first: it is what the question is about."""
    looks = [("growth", "What grew between the snapshots"), ("live", "What lived at the late snapshot")]
    if content.evidence is None or content.evidence.early_step is None:
        looks[1] = ("live", "What is alive in the snapshot")
    return "\n".join(section(f"{title}, by allocation stack", _drawn(name)) for name, title in looks if data[name])


def _suspects(evidence: Evidence | None) -> str:
    if evidence is None or not evidence.growth:
        return ""
    table = suspects_table(evidence.growth, grown_bytes=evidence.grown_bytes, holder=_holder(evidence))
    return section("Lines whose memory grew", table)


def _holder(evidence: Evidence) -> Holder | None:
    return evidence.search.holders[0] if evidence.search is not None and evidence.search.holders else None


def _holders(evidence: Evidence | None) -> str:
    if evidence is None or evidence.search is None:
        return ""
    return section("Who holds it, as the process itself found", holders_table(evidence.search))


def _map(content: ReportContent, data: dict[str, Any]) -> str:
    if content.late is None or data["map"] is None:
        return ""
    pools = pools_table(pool_rows(content.late.end or ()))
    return section("The allocator's segments and blocks", f"{_drawn('map')}\n{pools}")


def _history(data: dict[str, Any]) -> str:
    if data["history"] is None:
        return ""
    return section("Event by event: the history inside the late snapshot", _drawn("history"))


def _drawn(name: str, otherwise: str = f'<p class="muted">{_SCRIPT_ONLY}</p>') -> str:
    """Where the script draws, and what stands there without it and on paper."""
    return f'<div class="drawn" data-part="{name}"></div>\n<div class="static">{otherwise}</div>'


def _story(content: ReportContent) -> Iterable[str]:
    """The incident's ranks, what was done, what happened."""
    if content.story is None:
        return []
    story = tamed_story(content.story)
    return [
        ranks_section(story.incident),
        deeds_section(story.decisions, is_open=story.incident.is_open),
        history_section(story.history),
    ]


def _absent(content: ReportContent) -> str:
    """What the report rests on, and what it lacks."""
    evidence = content.evidence
    facts = list(content.absent)
    if evidence is not None:
        facts += [
            f"Snapshot: `{ref.store}/{ref.key}`, step {ref.step:,}, {format_bytes(ref.stored_bytes)}."
            for ref in evidence.snapshots
        ]
    if evidence is not None and evidence.longest_stall_s:
        facts.append(f"Collecting it held training up for {evidence.longest_stall_s * 1000:,.0f} ms at most.")
    return section("What this report rests on", _list(facts)) if facts else ""
