"""Headlines and text pages of ``tidegauge top``: the cluster, a job, a rank, an incident, the keys.

The functions take values and return lines of cells, already wrapped.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegauge.cli.jobs.incidents import RANK_HEADER, RANKS_GIVE_WAY, below_ranks, figures, people_figures, rank_rows
from tidegauge.cli.output import narrowed, plain_lines
from tidegauge.cli.timeline import timeline
from tidegauge.cli.times import clock, moment
from tidegauge.cli.top.columns import Cell, Tone, bars, cut, rank_state
from tidegauge.cli.top.model import key_of
from tidegauge.cli.top.service import ShownIncident
from tidegauge.cluster.api.overview import JobLine, Overview, RankLine
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.words import brief_sentences, end_words
from tidegauge.core.host_memory import TOLD_GROWTH_BYTES, grown_most
from tidegauge.core.ids import OwnedJob
from tidegauge.core.incidents import CAUSE_OF_SIGNAL, Incident, IncidentCause
from tidegauge.core.incidents.oom_ends import oom_end
from tidegauge.core.incidents.wording import (
    does,
    hint,
    host_growth,
    incident_sentence,
    outlook,
    rate,
    since,
    state_in_words,
)
from tidegauge.core.memory_history import ChartScale, MemoryPoint
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes, format_bytes_apart, format_count, format_duration
from tidegauge.core.verdicts import LeakState, Severity, Signal, state_word
from tidegauge.core.views import NEARLY_FULL

Line = Sequence[Cell]

NARROWEST = 20
"""Minimum width of wrapped text, characters."""
LOWEST_BARS, HIGHEST_BARS = 2, 12
"""Minimum and maximum height of a memory chart, lines."""
TWO_COLUMNS = 70
"""Screen width, characters, from which on two charts stand side by side."""
GAP = 2
MAX_EVIDENCE_CHARS = 600
"""Maximum length of the evidence text, which leaves room for the charts."""

KEYS = (
    ("Enter", "open the job, rank or incident under the cursor"),
    ("Escape", "back"),
    ("up, down", "move; also k, j, page up, page down, home, end, and the mouse"),
    ("Tab", "switch between the table and the open incidents; also i"),
    ("t m g n", "sort by time to OOM, share of memory used, growth per step, name; o: the next order of all"),
    ("/", "filter by text in id, name, user, host or state; empty shows all"),
    ("u", "toggle between your own jobs and all jobs"),
    ("c", "nodes and their GPUs: who is on each, what is unattributed; Enter opens a node"),
    ("e", "jobs that ended: how, their peak and limit; Enter opens one"),
    ("l", "log of changes: nodes, jobs, verdicts, incidents, actions"),
    ("s", "on a rank or incident: ask the rank for evidence, a snapshot or a memory profile"),
    ("a", "acknowledge an incident, or record whether it was a leak"),
    ("x", "exempt a job from actions"),
    ("P", "pause all actions, or resume them"),
    ("", "s, a, x and P say what will happen, and do it only when it is confirmed; Escape cancels"),
    ("z", "on a rank: charts over the range of their figures, or from 0 to the limit"),
    ("r", "show the URL of the incident's report, or of the job's page; printed again on exit"),
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
    ("memory", "GPU memory of the rank over time, oldest first, over the range beside it; +374M: a range of 374 MiB"),
    ("used", "highest share of the limit in use by any rank"),
    ("rank", "rank to look at first; alike: most ranks grow alike"),
    ("OOM in", "predicted time to out of memory, from\N{EN DASH}to; in steps if time is unknown"),
)


def headline(overview: Overview) -> Line:
    """Nodes, jobs and GPUs of the cluster in one line."""
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
    more = f" and {overview.left_out:,} not shown" if overview.left_out else ""
    cells.append(Cell(f"   {format_count(len(running), 'job')}{more}"))
    cells += [Cell(", "), Cell(format_count(leaking, "leak"), Tone.ALARM)] if leaking else []
    cells += [Cell(", "), Cell(f"{growing} growing", Tone.WARNING)] if growing else []
    cells.append(Cell(f"   {format_count(overview.gpus, 'GPU')}"))
    if overview.gpu_total_bytes and overview.gpu_used_bytes is not None:
        share = overview.gpu_used_bytes / overview.gpu_total_bytes
        cells += [Cell(", "), Cell(f"{share:.0%} full", Tone.WARNING if share >= NEARLY_FULL else Tone.PLAIN)]
    return cells


def job_headline(job: JobLine, name: str | None) -> Line:
    """Name, size, step and owner of a job in one line."""
    size = (
        f"{job.alive} of {format_count(job.world_size, 'rank')} on {format_count(job.nodes, 'node')}, step {job.step:,}"
    )
    about = [size, f"of {job.user_name}", job.scheduler or "no scheduler"]
    cells = [Cell(cut(name, 40) + "   ", Tone.STRONG)] if name else []
    cells.append(Cell(", ".join(about)))
    for word in ["exempt from actions"] * job.exempt + ["ended"] * (not job.running):
        cells += [Cell(", "), Cell(word, Tone.WARNING)]
    return cells


def incident_headline(incident: Incident) -> Line:
    """Cause, severity and state of an incident in one line."""
    is_grave = oom_end(incident) is not None or (incident.is_open and incident.severity is Severity.CRITICAL)
    severity = Tone.ALARM if is_grave else Tone.STRONG
    stale = ", stale figures" if incident.stale else ""
    return [
        Cell(f"{incident.key.cause.value}, {incident.severity.value}", severity),
        Cell(f", {state_in_words(incident)}{stale}"),
    ]


def incident_lines(story: ShownIncident, *, width: int, now_s: float) -> list[Line]:
    """The page of an incident, as ``tidegauge incidents show`` prints it."""
    incident = story.incident
    lines = [*wrapped("", incident_sentence(incident, clock), width), ""]
    for name, text in [*figures(incident, now_s=now_s), *people_figures(story.acts, now_s=now_s)]:
        lines += wrapped(f"{name:<12}", text, width)
    if incident.findings:
        lines += ["", f"Ranks, worst first, at {moment(incident.updated_unix_s)}"]
        lines += _ranks_table(incident, width)
    entries = timeline(story.history, story.records, acts=story.acts)
    for start, text in below_ranks(incident, entries, story.records, story.status):
        lines += wrapped(start, text, width)
    return [[Cell(cut(text, width))] for text in lines]


def help_lines(*, width: int) -> list[Line]:
    lines: list[Line] = [[Cell("Keys", Tone.STRONG)]]
    for names, texts in ((KEYS, "Signs"), (_SIGNS, "")):
        for name, text in names:
            lines += [[Cell(line)] for line in wrapped(f"  {name:<11}", text, width)]
        lines += [[], [Cell(texts, Tone.STRONG)]] if texts else []
    return lines


def _ranks_table(incident: Incident, width: int) -> list[str]:
    rows = rank_rows(incident)
    header, cells = narrowed(RANK_HEADER, rows, RANKS_GIVE_WAY, width)
    more = len(incident.findings) + incident.ranks_left_out - len(rows)
    return plain_lines(header, cells) + ([f"and {more} more ranks"] if more else [])


def wrapped(start: str, text: str, width: int) -> list[str]:
    """Wrap ``text`` behind ``start``; further lines are indented below it if that leaves room for words."""
    hang = len(start) if width - len(start) >= NARROWEST else 2
    lines = textwrap.wrap(text, max(width, 20), initial_indent=start, subsequent_indent=" " * hang)
    return lines or [start.rstrip()]


@dataclass(frozen=True)
class _Part:
    """One part of a rank's memory over time."""

    name: str
    amounts: tuple[int | None, ...]
    """Bytes, one per point; ``None`` if unknown."""
    scale: ChartScale
    """Bytes at the foot and the top of the chart."""
    signal: Signal | None = None
    """The detector's name of this part."""


def rank_page(
    rank: RankLine,
    points: Sequence[MemoryPoint],
    *,
    width: int,
    height: int,
    evidence: EvidenceBrief | None = None,
    is_whole: bool = False,
) -> list[Line]:
    """The page of a rank; ``is_whole``: its charts go from 0 to the limit, not over the range of their figures.

    It has at most ``height`` lines if its text leaves room for charts of ``LOWEST_BARS`` lines.
    """
    known = [_where(rank), *_in_pod(rank), _also(rank), *_on_host(rank)]
    lines: list[Line] = [
        *_verdict(rank, width),
        *_evidence(evidence, width),
        *([Cell(cut(text, width))] for text in known),
        [],
    ]
    if not points:
        return [*lines, [Cell("no readings since the coordinator started", Tone.DIM)]]
    parts = _parts(rank, points, is_whole=is_whole)
    side_by_side = 2 if width >= TWO_COLUMNS else 1
    across = (width - GAP * (side_by_side - 1)) // side_by_side
    room = (height - len(lines) - 1) * side_by_side // len(parts) - 1
    for first in range(0, len(parts), side_by_side):
        pictures = [
            [
                _title(part, rank, across),
                *_picture(part, points, width=across, height=min(max(room, LOWEST_BARS), HIGHEST_BARS)),
            ]
            for part in parts[first : first + side_by_side]
        ]
        lines += [_beside(pieces) for pieces in zip(*pictures)]
    life_s = points[-1].at_unix_s - points[0].at_unix_s
    return [*lines, [Cell(f"over {format_duration(life_s)}, until {moment(points[-1].at_unix_s)}", Tone.DIM)]]


def over_time(points: Sequence[MemoryPoint], amounts: Sequence[int | None], width: int) -> list[float]:
    """The highest amount in each of ``width`` equal stretches of time.

    A stretch without a point repeats the one before; an unknown amount counts as 0.
    """
    began_s, ended_s = points[0].at_unix_s, points[-1].at_unix_s
    per_second = width / (ended_s - began_s) if ended_s > began_s else 0.0
    columns: list[float] = []
    for point, amount in zip(points, amounts):
        place = min(int((point.at_unix_s - began_s) * per_second), width - 1)
        columns += columns[-1:] * (place - len(columns))
        if place == len(columns):
            columns.append(amount or 0)
        else:
            columns[place] = max(columns[place], amount or 0)
    return columns + columns[-1:] * (width - len(columns))


def _parts(rank: RankLine, points: Sequence[MemoryPoint], *, is_whole: bool) -> tuple[_Part, ...]:
    """Used memory and its three parts: allocated, cached and nontorch, each over its own range or up to the limit."""
    amounts: Mapping[str, tuple[int | None, ...]] = {
        "used": tuple(point.used_bytes for point in points),
        "allocated": tuple(point.allocated_bytes for point in points),
        "cached": tuple(max(point.reserved_bytes - point.allocated_bytes, 0) for point in points),
        "nontorch": tuple(point.nontorch_bytes for point in points),
    }
    signals = {"allocated": Signal.ALLOCATED, "cached": Signal.RESERVED, "nontorch": Signal.NONTORCH}
    most = max(rank.limit_bytes or 0, *filter(None, amounts["used"]), 1)
    known = {name: [amount for amount in series if amount is not None] or [0] for name, series in amounts.items()}
    return tuple(
        _Part(name, series, ChartScale(0, most) if is_whole else ChartScale.of(known[name]), signals.get(name))
        for name, series in amounts.items()
    )


def _verdict(rank: RankLine, width: int) -> list[Line]:
    """The verdict in a sentence, and where to look."""
    state = rank_state(rank)
    if rank.state is LeakState.OK or rank.signal is None:
        return [[Cell(state.text, state.tone)], []]
    cause = CAUSE_OF_SIGNAL[rank.signal]
    sure = "" if rank.state is LeakState.LEAK else "apparently "
    if rank.bound is not None and rank.bound.holds:
        end = f"; the growth is bounded: it {end_words(rank.bound)}."
    else:
        end = outlook(rank.severity, rank.seconds_to_oom, rank.steps_to_oom)
    sentence = f"{sure}rank {rank.rank} {does(cause, rank.bytes_per_step, rank.severity)}{since(rank.onset_step)}{end}"
    texts = textwrap.wrap(sentence, max(width - len(state.text) - 2, 20))
    first: Line = [Cell(state.text, state.tone), Cell(f"  {texts[0]}", Tone.STRONG)]
    rest: list[Line] = [[Cell(" " * (len(state.text) + 2) + text, Tone.STRONG)] for text in texts[1:]]
    return [first, *rest, *([Cell(text, Tone.DIM)] for text in textwrap.wrap(_hint(rank, cause), max(width, 20))), []]


def _hint(rank: RankLine, cause: IncidentCause) -> str:
    grown = grown_most(rank.host_processes) if cause is IncidentCause.HOST_MEMORY else None
    return hint(cause) if grown is None else host_growth(grown, rank=rank.pid)


def _evidence(brief: EvidenceBrief | None, width: int) -> list[Line]:
    """Line, holder, cause and advice, as far as they are known."""
    if brief is None:
        return []
    text = one_line(" ".join(brief_sentences(brief)), MAX_EVIDENCE_CHARS)
    return [*([Cell(line)] for line in textwrap.wrap(text, max(width, 20))), []]


def _where(rank: RankLine) -> str:
    gpu = "GPU unknown" if rank.gpu is None else f"GPU {rank.gpu}"
    srun = "" if rank.slurm_step is None else f", Slurm step {rank.slurm_step}"
    return f"on {rank.hostname}, {gpu}, pid {rank.pid}{srun}, step {rank.step:,}"


def _in_pod(rank: RankLine) -> list[str]:
    """Pod and container on a line of their own, because names in Kubernetes are long."""
    if rank.pod is None:
        return []
    return [f"in pod {rank.pod}" + (f", container {rank.container}" if rank.container else "")]


def _also(rank: RankLine) -> str:
    """Limit, cap, host memory and the last OOM."""
    limit = "limit unknown" if rank.limit_bytes is None else f"limit {format_bytes(rank.limit_bytes)}"
    cap = f" (capped at {rank.cap_fraction:.0%} of the GPU)" if rank.cap_fraction is not None else ""
    host = "" if rank.host_rss_bytes is None else f", host memory {format_bytes(rank.host_rss_bytes)}"
    oom = "" if rank.oom_at_unix_s is None else f", ran out of memory at {moment(rank.oom_at_unix_s)}"
    return f"{limit}{cap}{host}{oom}"


def _on_host(rank: RankLine) -> list[str]:
    """The host memory of each process, if the rank has children."""
    if len(rank.host_processes) < 2:
        return []
    each = [
        f"{format_bytes(one.held_bytes)} {one_line(one.name)} ({one.process.pid})"
        + (f" +{format_bytes(one.grown_bytes)}" if one.grown_bytes >= TOLD_GROWTH_BYTES else "")
        for one in rank.host_processes
    ]
    return [f"on the host: {', '.join(each)}"]


def _title(part: _Part, rank: RankLine, width: int) -> Line:
    """The current amount, its limit and its growth, in exactly ``width`` characters."""
    now = part.amounts[-1]
    cells = [Cell(f"{part.name} {'unknown' if now is None else format_bytes(now)}", Tone.STRONG)]
    if part.signal is not None and part.signal is rank.signal and rank.state is not LeakState.OK:
        speed = rate(rank.bytes_per_step)
        cells += [Cell(" "), Cell(f"+{speed}/step" if speed else "grows", Tone.ALARM)]
    limit = "" if part.signal is not None or not rank.limit_bytes else f" of {format_bytes(rank.limit_bytes)}"
    left = width - sum(len(cell.text) for cell in cells)
    if len(limit) <= left:
        cells.insert(1, Cell(limit, Tone.DIM))
        left -= len(limit)
    return [*cells, Cell(" " * left)]


def _picture(part: _Part, points: Sequence[MemoryPoint], *, width: int, height: int) -> list[Line]:
    """The chart with the ends of its scale on its left."""
    low, high = format_bytes_apart(part.scale.low, part.scale.low + part.scale.span)
    margin = max(len(low), len(high))
    columns = over_time(points, part.amounts, max(width - margin - 1, 1))
    ends = [high, *[""] * (height - 2), low]
    return [
        [Cell(f"{end:>{margin}} ", Tone.DIM), Cell(text, Tone.WATER)]
        for end, text in zip(ends, bars(columns, part.scale, height))
    ]


def _beside(pieces: Sequence[Line]) -> Line:
    cells: list[Cell] = []
    for piece in pieces:
        cells += [*([Cell(" " * GAP)] if cells else []), *piece]
    return cells
