"""The page of one rank in ``tidegauge top``: what is the matter, and how each part of its memory went. Values in, text
out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tidegauge.cli.times import moment
from tidegauge.cli.top.cells import Cell, Tone, bars, cut
from tidegauge.cli.top.columns import rank_state
from tidegauge.cli.top.pages import Line
from tidegauge.cluster.api.overview import RankLine
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.words import brief_sentences, end_words
from tidegauge.core.host_memory import TOLD_GROWTH_BYTES, grown_most
from tidegauge.core.incidents import CAUSE_OF_SIGNAL, IncidentCause
from tidegauge.core.incidents.wording import does, hint, host_growth, outlook, rate, since
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes, format_duration
from tidegauge.core.verdicts import LeakState, Signal

LOWEST_BARS, HIGHEST_BARS = 2, 12
"""Lines of one picture; a taller one tells no more."""
TWO_COLUMNS = 70
"""Width from which on pictures stand side by side."""
GAP = 2
MAX_EVIDENCE_CHARS = 600
"""Characters: the words are the job's, and pictures are to have room."""


@dataclass(frozen=True)
class _Part:
    """A part of a rank's memory over time."""

    name: str
    amounts: tuple[int | None, ...]
    """One a point; ``None``: not known."""
    height_bytes: int
    """What the full height of the picture stands for."""
    signal: Signal | None = None
    """As the detector calls it."""


def rank_page(
    rank: RankLine,
    points: Sequence[MemoryPoint],
    *,
    width: int,
    height: int,
    evidence: EvidenceBrief | None = None,
) -> list[Line]:
    """The page in ``height`` lines or fewer, if its words leave room for pictures of ``LOWEST_BARS`` lines."""
    known = [_where(rank), *_in_pod(rank), _also(rank), *_on_host(rank)]
    lines: list[Line] = [
        *_verdict(rank, width),
        *_evidence(evidence, width),
        *([Cell(cut(text, width))] for text in known),
        [],
    ]
    if not points:
        return [*lines, [Cell("no readings since the coordinator started", Tone.DIM)]]
    parts = _parts(rank, points)
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
    """``amounts`` of ``points`` in ``width`` equal stretches of time: the highest of each, and as before where there
    is none. What is not known counts as nothing."""
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


def _parts(rank: RankLine, points: Sequence[MemoryPoint]) -> tuple[_Part, ...]:
    """They add up: used is allocated, cached and outside of PyTorch. The small ones are drawn four times as high."""
    used = tuple(point.used_bytes for point in points)
    allocated = tuple(point.allocated_bytes for point in points)
    cached = tuple(max(point.reserved_bytes - point.allocated_bytes, 0) for point in points)
    nontorch = tuple(point.nontorch_bytes for point in points)
    most = max(rank.limit_bytes or 0, *used, 1)
    outside = [amount for amount in nontorch if amount is not None]
    return (
        _Part("used", used, most),
        _Part("allocated", allocated, most, Signal.ALLOCATED),
        _Part("cached", cached, max(most // 4, 1, *cached), Signal.RESERVED),
        _Part("nontorch", nontorch, max(most // 4, 1, *outside), Signal.NONTORCH),
    )


def _verdict(rank: RankLine, width: int) -> list[Line]:
    """What is the matter, in a sentence, and where to look."""
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
    """For ``kubectl``, on a line of its own: names in Kubernetes are long."""
    if rank.pod is None:
        return []
    return [f"in pod {rank.pod}" + (f", container {rank.container}" if rank.container else "")]


def _also(rank: RankLine) -> str:
    """What else is known."""
    limit = "limit unknown" if rank.limit_bytes is None else f"limit {format_bytes(rank.limit_bytes)}"
    cap = f" (capped at {rank.cap_fraction:.0%} of the GPU)" if rank.cap_fraction is not None else ""
    host = "" if rank.host_rss_bytes is None else f", host memory {format_bytes(rank.host_rss_bytes)}"
    oom = "" if rank.oom_at_unix_s is None else f", ran out of memory at {moment(rank.oom_at_unix_s)}"
    return f"{limit}{cap}{host}{oom}"


def _on_host(rank: RankLine) -> list[str]:
    """Who holds its host memory, if it has children."""
    if len(rank.host_processes) < 2:
        return []
    each = [
        f"{format_bytes(one.held_bytes)} {one_line(one.name)} ({one.process.pid})"
        + (f" +{format_bytes(one.grown_bytes)}" if one.grown_bytes >= TOLD_GROWTH_BYTES else "")
        for one in rank.host_processes
    ]
    return [f"on the host: {', '.join(each)}"]


def _title(part: _Part, rank: RankLine, width: int) -> Line:
    """In exactly so many characters: what it is now, whether it is this that grows, and the picture's height."""
    now = part.amounts[-1]
    cells = [Cell(f"{part.name} {'unknown' if now is None else format_bytes(now)}", Tone.STRONG)]
    if part.signal is not None and part.signal is rank.signal and rank.state is not LeakState.OK:
        speed = rate(rank.bytes_per_step)
        cells += [Cell(" "), Cell(f"+{speed}/step" if speed else "grows", Tone.ALARM)]
    height = f" of {format_bytes(part.height_bytes)}"
    left = width - sum(len(cell.text) for cell in cells)
    if len(height) <= left:
        cells.insert(1, Cell(height, Tone.DIM))
        left -= len(height)
    return [*cells, Cell(" " * left)]


def _picture(part: _Part, points: Sequence[MemoryPoint], *, width: int, height: int) -> list[Line]:
    columns = over_time(points, part.amounts, width)
    return [[Cell(text, Tone.WATER)] for text in bars(columns, part.height_bytes, height)]


def _beside(pieces: Sequence[Line]) -> Line:
    cells: list[Cell] = []
    for piece in pieces:
        cells += [*([Cell(" " * GAP)] if cells else []), *piece]
    return cells
