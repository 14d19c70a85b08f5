"""Sections about an incident: headline, ranks, actions, timeline, links and files.

The incident is tamed (``messages.untrusted``), unless a docstring says otherwise; every text is escaped here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Final

from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.words import CAUSES, CONFIDENCES, line_words
from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange, IncidentState, RankFinding
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.incidents.post_mortem import next_step, post_mortem
from tidegauge.core.incidents.wording import (
    CLOSURES,
    RAN_OUT,
    capitalised,
    change_in_words,
    change_sentence,
    evidence_sentences,
    incident_sentence,
    list_ranks,
    meaning,
    other_number,
    rank_place,
    rate,
    state_in_words,
)
from tidegauge.core.incidents.wording import time_left as time_to_oom
from tidegauge.core.units import format_bytes, format_duration
from tidegauge.core.verdicts import LeakState, Severity, Verdict
from tidegauge_exporter.links import Links, is_web, shown_time
from tidegauge_exporter.messages.action_text import deed
from tidegauge_exporter.messages.headlines import as_of, seconds_left
from tidegauge_exporter.messages.text import tidy, time_left
from tidegauge_exporter.reports.html_page import (
    NOTHING,
    held_by,
    inline,
    lead,
    listing,
    moment,
    muted,
    section,
    table,
    with_note,
)

MAX_LINES: Final = 200
"""Bound of lines of the timeline, and of the actions; the newest are shown."""
MAX_ROWS: Final = 64
"""Bound of ranks in the table, the worst of them."""
MAX_PATH_CHARS: Final = 400
UUID_LENGTH: Final = 12
"""Shown characters of ``GPU-1b2c3d4e-...``, enough to tell two GPUs apart; the tooltip has all."""
_KEEP_RUNNING: Final = (
    "Tidegauge ends or changes a job only where the site's policy says so, and never an exempt job. To exempt a job "
    "at its start: `tidegauge run --no-actions`, or for a Ray job the metadata `tidegauge.actions: off`. While it "
    "runs: on Kubernetes, annotate the workload with `tidegauge.dev/actions: keep`; on Slurm, put `tidegauge:keep` "
    "into the job's comment; an admin can exempt any other job at once. An exempt job is still watched, and fails by "
    "itself if it runs out of memory."
)


def lead_section(incident: Incident, records: Sequence[DecisionRecord], now_unix_s: float) -> str:
    """The incident in short; of one that ended by an error, the whole story. ``records``: its decisions."""
    story, step = post_mortem(incident, records), next_step(incident)
    stale = "A node of this job is not reporting: these figures are stale, and Tidegauge takes no action on them."
    return lead(
        incident_sentence(as_of(incident, now_unix_s)),
        tone=incident_tone(incident),
        remarks=[
            _standing(incident),
            stale if incident.stale else None,
            "" if story else _ended(incident.explanation or ""),
            "" if story else " ".join(evidence_sentences(incident)) or meaning(incident),
            change_sentence(incident),
        ],
        figures=_figures(incident, now_unix_s),
        story=[*story, *([("Next step", step)] if step else [])],
    )


def incident_tone(incident: Incident) -> str:
    if oom_end(incident) is not None:
        return str(Severity.CRITICAL.value)
    if incident.state is IncidentState.OPEN:
        return str(incident.severity.value)
    return "ok" if incident.state is IncidentState.CLOSED else str(Severity.NOTE.value)


def tone(verdict: Verdict) -> str:
    """The colour of a verdict, as a class of report.css without its ``tone-``."""
    if verdict.state is LeakState.LEAK:
        return str(verdict.severity.value) if verdict.severity else "critical"
    return str(verdict.state.value)


def _standing(incident: Incident) -> str | None:
    """The state of an incident that is not open; the headline is about the alarm, or says how it ended."""
    if oom_end(incident) is not None:
        return None
    if incident.state is IncidentState.RECOVERING:
        return "It has stopped; the incident closes unless it comes back."
    if incident.state is IncidentState.CLOSED:
        how = f": {CLOSURES[incident.closure]}" if incident.closure is not None else ""
        return f"This incident is closed{how}. The figures are those of the last alarm."
    return None


def _figures(incident: Incident, now_unix_s: float) -> list[tuple[str | None, str]]:
    left = seconds_left(incident, now_unix_s)
    end_s = now_unix_s if incident.closed_unix_s is None else incident.closed_unix_s
    ranks = list_ranks(incident.ranks, common=incident.common, left_out=incident.ranks_left_out)
    return [
        (_state(incident), f"opened {moment(incident.opened_unix_s)}"),
        (None if left is None else time_left(left), "until OOM"),
        (format_duration(max(end_s - incident.opened_unix_s, 0.0)), "open so far" if incident.is_open else "was open"),
        (capitalised(ranks), f"of {incident.world_size:,} in the job"),
        (rate(incident.bytes_per_step), "growth per step"),
        (None if incident.grown_bytes is None else format_bytes(incident.grown_bytes), "growth since onset"),
        (None if incident.onset_step is None else f"{incident.onset_step:,}", "onset step"),
    ]


def _state(incident: Incident) -> str:
    if state_in_words(incident) == RAN_OUT:
        return capitalised(RAN_OUT)
    now = incident.severity if incident.state is IncidentState.OPEN else incident.state
    worst = incident.worst_severity
    was_worse = worst is not None and worst.level > incident.severity.level
    return capitalised(now.value) + (f" (was {worst.value})" if worst is not None and was_worse else "")


def briefs_table(briefs: Sequence[EvidenceBrief]) -> str:
    """The table of evidence: line, holder and cause of each examined rank."""
    return (
        table(("Rank", "Allocated at", "Growth", "Held by", "Cause"), map(_brief_cells, briefs), numbers=(2,))
        if briefs
        else ""
    )


def _brief_cells(brief: EvidenceBrief) -> Sequence[str]:
    grew = None if brief.grown_bytes is None else format_bytes(brief.grown_bytes)
    if grew is not None and brief.window_steps:
        grew += f" in {brief.window_steps:,} steps"
    where = None if brief.line is None else f"<code>{escape(line_words(brief.line))}</code>"
    held = None if brief.holder is None else held_by(brief.holder)
    why = with_note(escape(capitalised(CAUSES[brief.cause])), CONFIDENCES[brief.confidence])
    return [cell or "unknown" for cell in (str(brief.rank), where, grew, held, why)]


def ranks_section(incident: Incident) -> str:
    """The table of ranks, worst first. An optional column is left out if no rank has a figure."""
    findings = incident.findings
    if not findings:
        return ""
    heading = "Affected ranks" if incident.state is IncidentState.OPEN else "Affected ranks, at the last alarm"
    shown = [column for column in _COLUMNS if incident.is_open or column[0] != _OOM_IN]
    columns = [column for column in shown if column[0] not in _OPTIONAL or any(map(column[1], findings))]
    rows = [[cell(finding) or NOTHING for _, cell in columns] for finding in findings]
    heads = [name for name, _ in columns]
    return section(heading, table(heads, rows, numbers=range(3, len(heads)), most=MAX_ROWS, what="ranks"))


def _place(finding: RankFinding) -> str:
    place, uuid = rank_place(finding.hostname, finding.gpu), finding.uuid or ""
    short = f'<small title="{escape(uuid)}">{escape(uuid[:UUID_LENGTH])}</small>'
    return f'<span class="place">{escape(place)}</span>{short}'


def _verdict(finding: RankFinding) -> str:
    verdict = finding.verdict
    grave = verdict.severity.value if verdict.severity and verdict.state is LeakState.LEAK else None
    return with_note(f'<span class="verdict tone-{tone(verdict)}">{verdict.state.value}</span>', grave)


def _oom(finding: RankFinding) -> str | None:
    oom = finding.oom
    if oom is None:
        return None
    requested, free = format_bytes(oom.wanted_bytes), format_bytes(oom.free_bytes)
    return with_note(f"step {oom.step:,}", f"{requested} requested, {free} free")


def _of_growth(read: Callable[[Verdict], str | None]) -> Callable[[RankFinding], str | None]:
    """A figure that only a growing rank has."""
    return lambda finding: None if finding.verdict.state is LeakState.OK else read(finding.verdict)


def _bytes(read: Callable[[RankFinding], int | None]) -> Callable[[RankFinding], str | None]:
    return lambda finding: None if (count := read(finding)) is None else format_bytes(count)


_OOM_IN: Final = "OOM in"
"""The column of what has not happened yet."""
_COLUMNS: Final[tuple[tuple[str, Callable[[RankFinding], str | None]], ...]] = (
    ("Rank", lambda finding: str(finding.rank)),
    ("GPU", _place),
    ("Verdict", _verdict),
    ("OOM at", _oom),
    ("Growth per step", _of_growth(lambda verdict: rate(verdict.bytes_per_step))),
    ("Onset step", _of_growth(lambda verdict: None if verdict.onset_step is None else f"{verdict.onset_step:,}")),
    (_OOM_IN, _of_growth(lambda verdict: time_to_oom(verdict.seconds_to_oom, verdict.steps_to_oom))),
    ("Allocated", _bytes(lambda finding: finding.allocated_bytes)),
    ("Reserved", _bytes(lambda finding: finding.reserved_bytes)),
    ("Outside PyTorch", _bytes(lambda finding: finding.nontorch_bytes)),
    ("Limit", _bytes(lambda finding: finding.limit_bytes)),
)
"""Columns and their markup. The first three hold words, the others numbers."""
_OPTIONAL: Final = ("OOM at", "Growth per step", "Onset step", _OOM_IN, "Outside PyTorch")


def deeds_section(records: Sequence[DecisionRecord], *, is_open: bool) -> str:
    """Actions and decisions, oldest first."""
    if not records:
        return section("Actions", muted("None so far." if is_open else "None."))
    lines = []
    for record in records[-MAX_LINES:]:
        done, decision = deed(record), record.decision
        origin = f"rule {decision.rule}, rung {decision.rung + 1}"
        why = origin if done.remark == decision.reason else f"{origin}: {decision.reason}"
        lines.append((done.at_unix_s, f"{_ended(done.sentence)} {_ended(done.remark)}".rstrip(), why))
    return section("Actions", _timed(lines, left_out=len(records) - len(lines)))


def history_section(changes: Sequence[IncidentChange]) -> str:
    """The timeline of the incident, oldest first, without changes of figures alone."""
    told = [change for change in changes if change.kind is not ChangeKind.UPDATED]
    lines = [(change.at_unix_s, _ended(change_in_words(change)), "") for change in told[-MAX_LINES:]]
    return section("Timeline", _timed(lines, left_out=len(told) - len(lines))) if lines else ""


def _timed(lines: Iterable[tuple[float, str, str]], *, left_out: int) -> str:
    """A listing of times, events and reasons."""
    rows = listing((moment(at_unix_s), with_note(escape(text), why)) for at_unix_s, text, why in lines)
    return f"{muted(f'{left_out:,} earlier entries not shown.')}\n{rows}" if left_out else rows


def _ended(text: str) -> str:
    """The text as a sentence."""
    return capitalised(text) + ("" if not text or text.endswith((".", "!", "?", "\u2026")) else ".")


def links_line(incident: Incident, *, cluster: str, links: Links) -> str:
    """Configured links to dashboards over the incident's time, and to the forms; of an incident that is not tamed."""
    job, shown = incident.key.job, shown_time(incident)
    addresses = [("Job in Grafana", links.job(cluster, job, shown))]
    addresses += [
        (f"Rank {finding.rank} in Grafana", links.rank(cluster, job, finding.rank, shown))
        for finding in incident.findings[:1]
    ]
    other = other_number(incident)
    if other is not None:
        addresses.append((f"Incident {other}", links.incident(other)))
    if incident.key.cause.is_growth:
        addresses.append(("Say whether it is a leak", links.grade(incident.number)))
    if incident.is_open:
        addresses.append(("Acknowledge, or exempt the job", links.act(incident.number)))
    made = [_link(words, url) for words, url in addresses if url is not None]
    return f'<nav class="links">{" ".join(made)}</nav>' if made else ""


def _link(words: str, url: str) -> str:
    """A link; an address that is no web address is not made clickable."""
    if not is_web(url):
        return escape(words)
    return f'<a href="{escape(url)}" rel="noreferrer">{escape(words)}</a>'


def files_section(incident: Incident, *, gone: str | None) -> str:
    """Paths of snapshots and reports, or that the snapshots are ``gone``; of an incident that is not tamed."""
    snapshots = incident.snapshots if gone is None else ()
    paths = [tidy(path, MAX_PATH_CHARS) for path in (*snapshots, *incident.reports)]
    items = "".join(f"<li><code>{escape(path)}</code></li>" for path in paths)
    listed = f"<ul>{items}</ul>" if items else ""
    return section("Snapshots and reports", listed, "" if gone is None else muted(f"{gone}."))


def keep_running_section(links: Links) -> str:
    url = links.exemption()
    more = f" {_link('More about exemptions', url)}" if url is not None else ""
    return section("How to keep the job running", f"<p>{inline(_KEEP_RUNNING)}{more}</p>")
