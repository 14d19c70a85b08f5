"""Headlines and pages of text of ``tidegauge top``. Values in, text out.

A line is cells; what is too long is wrapped here, so that nothing gets lost at the screen's edge.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from tidegauge.cli.jobs import incident_page
from tidegauge.cli.output import narrowed, plain_lines
from tidegauge.cli.timeline import timeline
from tidegauge.cli.times import moment
from tidegauge.cli.top.cells import Cell, Tone, cut
from tidegauge.cli.top.columns import NEARLY_FULL
from tidegauge.cli.top.model import key_of
from tidegauge.cli.top.service import ShownIncident
from tidegauge.cluster.api.overview import JobLine, Overview
from tidegauge.core.ids import OwnedJob
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.wording import incident_sentence
from tidegauge.core.units import format_count
from tidegauge.core.verdicts import Severity, state_word

Line = Sequence[Cell]

NARROWEST = 20
"""Characters of text in a wrapped line, however narrow the screen."""

KEYS = (
    ("Enter", "open the job, rank or incident under the cursor"),
    ("Escape", "back"),
    ("up, down", "move; also k, j, page up, page down, home, end, and the mouse"),
    ("Tab", "switch between the table and the open incidents; also i"),
    ("t m g n", "sort by time to OOM, share of memory used, growth per step, name"),
    ("/", "filter by text in id, name, user, host or state; empty shows all"),
    ("u", "toggle between your own jobs and all jobs"),
    ("s", "on a rank or incident: find the line that leaks and what holds it (on the head)"),
    ("r", "show the URL of the incident's report; printed again on exit"),
    ("?", "this page"),
    ("q", "quit"),
)
_SIGNS = (
    ("leak !!!", "memory grows and has used up half of the free memory: dangerous"),
    ("growing !!", "memory grows, not dangerous yet; ! OOM weeks away, !! days away"),
    ("suspected", "a trend that is not certain yet"),
    (
        "no steps",
        "no training step yet; after five minutes growth is measured by time (see tidegauge.step())",
    ),
    ("stale", "the node is not reporting: last known figures"),
    ("memory", "GPU memory of the rank over time, oldest first; full height is its limit"),
    ("used", "highest share of the limit in use by any rank"),
    ("rank", "rank to look at first; alike: most ranks grow alike"),
    ("OOM in", "predicted time to out of memory, from\N{EN DASH}to; in steps if time is unknown"),
)


def headline(overview: Overview) -> Line:
    """The cluster in one line: nodes, jobs, GPUs."""
    counts = overview.nodes
    running: dict[OwnedJob, JobLine] = {}
    for job in overview.jobs:  # the groups of ranks of a job are one job, as bad as the worst of them
        owned = key_of(job).owned
        if job.running and (owned not in running or job.state.level > running[owned].state.level):
            running[owned] = job
    words = Counter(state_word(job.state, job.severity) for job in running.values())
    leaking, growing = words["leak"], words["growing"]
    cells = [Cell(format_count(sum(counts.values()) - counts.get("gone", 0), "node"))]
    for health in ("waiting", "stale", "gone"):
        cells += [Cell(", "), Cell(f"{counts[health]} {health}", Tone.WARNING)] if counts.get(health) else []
    more = f" and {overview.left_out} not shown" if overview.left_out else ""
    cells.append(Cell(f"   {format_count(len(running), 'job')}{more}"))
    cells += [Cell(", "), Cell(format_count(leaking, "leak"), Tone.ALARM)] if leaking else []
    cells += [Cell(", "), Cell(f"{growing} growing", Tone.WARNING)] if growing else []
    cells.append(Cell(f"   {format_count(overview.gpus, 'GPU')}"))
    if overview.gpu_total_bytes and overview.gpu_used_bytes is not None:
        share = overview.gpu_used_bytes / overview.gpu_total_bytes
        cells += [Cell(", "), Cell(f"{share:.0%} full", Tone.WARNING if share >= NEARLY_FULL else Tone.PLAIN)]
    return cells


def job_headline(job: JobLine) -> Line:
    """A job in one line: whose it is, how large, how far."""
    size = (
        f"{job.alive} of {format_count(job.world_size, 'rank')} on {format_count(job.nodes, 'node')}, step {job.step:,}"
    )
    about = [size, f"of {job.user_name}", job.scheduler or "no scheduler"]
    cells = [Cell(cut(job.job_name, 40) + "   ", Tone.STRONG)] if job.job_name else []
    cells.append(Cell(", ".join(about)))
    for word in ["exempt from actions"] * job.exempt + ["ended"] * (not job.running):
        cells += [Cell(", "), Cell(word, Tone.WARNING)]
    return cells


def incident_headline(incident: Incident) -> Line:
    """What it is and where it stands."""
    severity = Tone.ALARM if incident.is_open and incident.severity is Severity.CRITICAL else Tone.STRONG
    stale = ", stale figures" if incident.stale else ""
    return [
        Cell(f"{incident.key.cause.value}, {incident.severity.value}", severity),
        Cell(f", {incident.state.value}{stale}"),
    ]


def incident_lines(story: ShownIncident, *, width: int, now_s: float) -> list[Line]:
    """One incident, as ``tidegauge incidents show`` tells it."""
    incident = story.incident
    lines = [*_wrapped("", incident_sentence(incident), width), ""]
    for name, text in incident_page.figures(incident, now_s=now_s):
        lines += _wrapped(f"{name:<12}", text, width)
    if incident.findings:
        lines += ["", f"Ranks, worst first, at {moment(incident.updated_unix_s)}"]
        lines += _ranks_table(incident, width)
    evidence = incident_page.evidence_lines(incident)
    lines += ["", "Evidence"] if evidence else []
    for start, text in evidence:
        lines += _wrapped(start, text, width)
    lines += ["", "What happened"]
    for start, text in incident_page.story(timeline(story.history, story.records)):
        lines += _wrapped(start, text, width)
    lines += ["", "What happens next"]
    lines += _wrapped("  ", incident_page.what_next(incident, story.records, story.status), width)
    return [[Cell(cut(text, width))] for text in lines]


def help_lines(*, width: int) -> list[Line]:
    """Keys and signs."""
    lines: list[Line] = [[Cell("Keys", Tone.STRONG)]]
    for names, texts in ((KEYS, "Signs"), (_SIGNS, "")):
        for name, text in names:
            lines += [[Cell(line)] for line in _wrapped(f"  {name:<11}", text, width)]
        lines += [[], [Cell(texts, Tone.STRONG)]] if texts else []
    return lines


def _ranks_table(incident: Incident, width: int) -> list[str]:
    rows = incident_page.rank_rows(incident)
    header, cells = narrowed(incident_page.RANK_HEADER, rows, incident_page.RANKS_GIVE_WAY, width)
    more = len(incident.findings) + incident.ranks_left_out - len(rows)
    return plain_lines(header, cells) + ([f"and {more} more ranks"] if more else [])


def _wrapped(start: str, text: str, width: int) -> list[str]:
    """Lines that hang below the text's beginning, where that leaves room for words."""
    hang = len(start) if width - len(start) >= NARROWEST else 2
    lines = textwrap.wrap(text, max(width, 20), initial_indent=start, subsequent_indent=" " * hang)
    return lines or [start.rstrip()]
