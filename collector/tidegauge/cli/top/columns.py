"""Tables of ``tidegauge top``: cells, the fitting of columns to a line, and the columns of each table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size

from tidegauge.cli.output import squeezed
from tidegauge.cli.timeline import last_action
from tidegauge.cli.top.model import IncidentRow, JobRow
from tidegauge.cluster.api.overview import JobLine, RankLine
from tidegauge.core.ids import JobKey, short_job_name
from tidegauge.core.incidents.wording import list_ranks, ranks_besides, time_left
from tidegauge.core.memory_history import ChartScale
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import SEVERITY_MARKS, Band, LeakState, Severity, state_word
from tidegauge.core.views import NEARLY_FULL

T = TypeVar("T")

BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""Bars from empty to full, in eighths."""
CUT = "\u2026"
LUXURY = 9
"""Rank of columns that are shown only if all others have their full width."""
SOON_S = 3600.0
"""Predicted time to OOM, seconds, below which it is red."""
MAX_NAME_CHARS = 32
"""Width of a job's name on a screen, characters."""
MIN_ID_CHARS = 6
"""Characters of a job id that are never cut to make room for the group."""


class Tone(str, Enum):
    """The emphasis of a cell. It only repeats what the text says, because a terminal may have no colours."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    WATER = "water"
    """The colour of memory charts."""
    GOOD = "good"
    WARNING = "warning"
    ALARM = "alarm"


class Cell(NamedTuple):
    """A piece of a line with its emphasis."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table about ``T``."""

    title: str
    cell: Callable[[T, int], Cell]
    """The function that makes the cell of a row for a width in characters; a longer text is cut."""
    least: int
    """The minimum width, characters."""
    most: int = 0
    """The useful width, characters; 0: ``least`` is enough."""
    rank: int = 0
    """Columns of a higher rank are dropped first if the line is too short."""
    right: bool = False
    """True if the text is right-aligned, as figures are."""

    @property
    def wanted(self) -> int:
        """The width that the column takes if there is room, characters."""
        return max(self.least, self.most)


Fitted = tuple[Column[T], int]
"""A column and its width, characters."""


def fit(columns: Sequence[Column[T]], width: int) -> tuple[Fitted[T], ...]:
    """The columns, in their order and with their widths, that fit a line of ``width`` characters.

    One character separates them. Columns are taken by rank, then from left to right, until one does not fit. The space
    that is left widens them, one character each in turn.
    """
    taken: list[int] = []
    for place in sorted(range(len(columns)), key=lambda place: columns[place].rank):
        column = columns[place]
        others = sum((columns[each].wanted if column.rank >= LUXURY else columns[each].least) + 1 for each in taken)
        if taken and others + column.least > width:
            break
        taken.append(place)
    widths = {place: columns[place].least for place in sorted(taken)}
    left = width - sum(widths.values()) - len(widths) + 1
    while left > 0:
        growing = [place for place, now in widths.items() if now < columns[place].wanted]
        if not growing:
            break
        for place in growing[:left]:
            widths[place] += 1
        left -= len(growing)
    return tuple((columns[place], now) for place, now in widths.items())


def line(columns: Sequence[Fitted[T]], row: T) -> list[Cell]:
    """A row of the table as cells that fill the widths of the columns, with one character between them."""
    pieces: list[Cell] = []
    for column, width in columns:
        text, tone = column.cell(row, width)
        shown = cut(text, width)
        space = Cell(" " * (width - cell_len(shown)))
        pieces += [Cell(" ")] if pieces else []
        pieces += [space, Cell(shown, tone)] if column.right else [Cell(shown, tone), space]
    return pieces


def header(columns: Sequence[Fitted[T]]) -> str:
    return " ".join(f"{column.title:{'>' if column.right else '<'}{width}}" for column, width in columns)


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters, with ``CUT`` where the rest is missing.

    Line breaks and control characters are removed: the name of a job or host must not move the cursor.
    """
    text = one_line(text, None)
    if cell_len(text) <= width:
        return text
    return "" if width < 1 else set_cell_size(text, width - 1).rstrip() + CUT


MIN_SCALED_BARS, MIN_BARS = 6, 3
"""With fewer bars than this beside it, the range gives way to its size, and that to more bars."""


def sparkline(amounts: Sequence[float], width: int) -> str:
    """``amounts``, oldest first, as at most ``width`` bars over their ``ChartScale``.

    A bar is the highest of its stretch of amounts, and is never empty for an amount above 0.
    """
    if not amounts or width < 1:
        return ""
    scale = ChartScale.of(amounts)
    return "".join(
        BLOCKS[1 + round(scale.share(amount) * 7) if amount > 0 else 0] for amount in squeezed(amounts, width)
    )


def scaled_sparkline(amounts: Sequence[int], width: int) -> str:
    """``amounts`` of bytes as a sparkline and the range that it covers, "▁▃█ 0.9–1.3 GiB", or on a narrow line how
    much that is, "▁▃█ +374M"."""
    if not amounts:
        return ""
    scale = ChartScale.of(amounts)
    for words, least in ((scale.range_words, MIN_SCALED_BARS), (scale.growth_word, MIN_BARS)):
        if (room := width - len(words) - 1) >= least:
            return f"{sparkline(amounts, room)} {words}"
    return sparkline(amounts, width)


def bars(amounts: Sequence[float], scale: ChartScale, height: int) -> list[str]:
    """``amounts`` as bars over ``scale``, as ``height`` lines from the top."""
    eighths = [max(round(scale.share(amount) * height * 8), 1 if amount > 0 else 0) for amount in amounts]
    return ["".join(BLOCKS[min(max(each - low * 8, 0), 8)] for each in eighths) for low in reversed(range(height))]


_TONES = {"ok": Tone.GOOD, "no steps": Tone.DIM, "leak": Tone.ALARM}


def state_cell(
    state: LeakState, severity: Severity | None, *, alive: bool, stale: bool, has_steps: bool = True
) -> Cell:
    """The state "leak !!!", "growing !!", "suspected", "ok", "no steps" or "ended"; the marks show the severity.

    "stale" has the last known severity of a rank whose node is not reporting.
    """
    if not alive:
        return Cell("ended", Tone.DIM)
    marks = f" {SEVERITY_MARKS[severity]}" if state is LeakState.LEAK and severity is not None else ""
    if stale:
        return Cell(f"stale{marks}", Tone.WARNING)
    word = state_word(state, severity, has_steps=has_steps)
    return Cell(f"{word}{marks}", _TONES.get(word, Tone.WARNING))


def name_job_shortly(job: JobKey, array: str | None = None, *, width: int | None = None) -> str:
    """The name "4711", "4711 (2)", "4711 (123_4)" or "4711 (step 1)", where ``job.group`` is the displayed group.

    If ``width`` is too small, the id is cut and the group and attempt stay: "local-gpu-no… (step 1)".
    """
    name = short_job_name(job.job_id, job.attempt, array, group=job.group)
    more = name.removeprefix(job.job_id)
    left = len(name) if width is None else width - cell_len(more)
    return cut(job.job_id, left) + more if left >= MIN_ID_CHARS else name


def share_cell(share: float | None) -> Cell:
    if share is None:
        return Cell("-", Tone.DIM)
    return Cell(f"{share:.0%}", Tone.WARNING if share >= NEARLY_FULL else Tone.PLAIN)


def end_cell(seconds_to_oom: Band | None, steps_to_oom: Band | None = None) -> Cell:
    """The predicted time to OOM: "14–22 min", or "33 min+" without an upper bound."""
    left = time_left(seconds_to_oom, steps_to_oom)
    if left is None:
        return Cell("-", Tone.DIM)
    soon = seconds_to_oom is not None and seconds_to_oom.likely < SOON_S
    return Cell(left.replace(" or more", "+"), Tone.ALARM if soon else Tone.STRONG)


def bytes_cell(count: float | None) -> Cell:
    return Cell("-", Tone.DIM) if count is None else Cell(format_bytes(count))


def job_columns(most_of_name: int = MAX_NAME_CHARS) -> Sequence[Column[JobRow]]:
    """The columns of the table of jobs; ``most_of_name`` is the useful width of a name, characters."""
    return (
        Column("state", lambda row, _: _job_state(row.job), 10),
        Column(
            "job",
            lambda row, width: Cell(name_job_shortly(row.called, row.job.array, width=width), Tone.STRONG),
            12,
            most_of_name,
        ),
        Column("name", lambda row, _: Cell("-" if row.is_called_by_name else row.job.job_name or "-"), 14, 28, rank=4),
        Column("user", lambda row, _: Cell(row.job.user_name), 7, 12, rank=2),
        Column("ranks", lambda row, _: _ranks(row.job), 7, 9, rank=3),
        Column("nodes", lambda row, _: Cell(str(row.job.nodes)), 5, rank=LUXURY, right=True),
        Column("step", lambda row, _: Cell(f"{row.job.step:,}"), 9, rank=LUXURY, right=True),
        Column("memory", lambda row, width: _memory(row.job.first, width), 12, 32, rank=1),
        Column("used", lambda row, _: share_cell(row.job.used_share), 4, right=True),
        Column("of a GPU", lambda row, _: bytes_cell(row.job.used_bytes), 9, rank=LUXURY, right=True),
        Column("rank", lambda row, _: _first_rank(row.job), 5, 6, rank=4, right=True),
        Column("per step", lambda row, _: _growth(row.job.first), 8, 9, rank=1, right=True),
        Column("OOM in", lambda row, _: _job_end(row.job), 10, 13, right=True),
        Column("incident", lambda row, _: _incident(row), 8, rank=4, right=True),
    )


def rank_columns() -> Sequence[Column[RankLine]]:
    return (
        Column("state", lambda rank, _: rank_state(rank), 10),
        Column("rank", lambda rank, _: Cell(str(rank.rank), Tone.STRONG), 5, right=True),
        Column("host", lambda rank, _: Cell(rank.hostname), 10, 28),
        Column("GPU", lambda rank, _: Cell("-" if rank.gpu is None else str(rank.gpu)), 3, rank=1, right=True),
        Column("pid", lambda rank, _: Cell(str(rank.pid)), 8, rank=LUXURY, right=True),
        Column("step", lambda rank, _: Cell(f"{rank.step:,}"), 9, rank=LUXURY, right=True),
        Column("memory", _memory, 9, 32, rank=1),
        Column("used", lambda rank, _: share_cell(rank.used_share), 4, right=True),
        Column("allocated", lambda rank, _: bytes_cell(rank.allocated_bytes), 9, rank=2, right=True),
        Column("reserved", lambda rank, _: bytes_cell(rank.reserved_bytes), 9, rank=4, right=True),
        Column("nontorch", lambda rank, _: bytes_cell(rank.nontorch_bytes), 8, 9, rank=4, right=True),
        Column("limit", lambda rank, _: bytes_cell(rank.limit_bytes), 9, rank=LUXURY, right=True),
        Column("host mem", lambda rank, _: bytes_cell(rank.host_rss_bytes), 9, rank=LUXURY, right=True),
        Column("per step", lambda rank, _: _growth(rank), 8, 9, rank=1, right=True),
        Column("OOM in", lambda rank, _: _end(rank), 10, 13, right=True),
    )


def incident_columns(most_of_name: int = MAX_NAME_CHARS) -> Sequence[Column[IncidentRow]]:
    return (
        Column("incident", lambda line, _: Cell(f"#{line.incident.number}", Tone.STRONG), 8),
        Column("severity", lambda line, _: _severity(line), 8),
        Column("job", lambda line, width: Cell(name_job_shortly(line.incident.called, width=width)), 10, most_of_name),
        Column("cause", lambda line, _: Cell(line.incident.key.cause.value), 13, 17),
        Column("ranks", _incident_ranks, 12, 24, rank=3),
        Column("OOM in", lambda line, _: end_cell(line.incident.seconds_to_oom), 10, 13, rank=1, right=True),
        Column("last action", lambda line, _: _last(line), 16, 48, rank=2),
    )


def rank_state(rank: RankLine) -> Cell:
    return state_cell(rank.state, rank.severity, alive=rank.alive, stale=rank.stale, has_steps=rank.step > 0)


def _job_state(job: JobLine) -> Cell:
    return state_cell(job.state, job.severity, alive=job.running, stale=bool(job.stale), has_steps=job.has_steps)


def _ranks(job: JobLine) -> Cell:
    missing = job.running and job.alive < job.world_size
    return Cell(f"{job.alive}/{job.world_size}", Tone.WARNING if missing else Tone.PLAIN)


def _memory(rank: RankLine, width: int) -> Cell:
    """The used memory over time as bars, and the range that they cover."""
    return Cell(scaled_sparkline(rank.line, width), Tone.WATER if rank.alive else Tone.DIM)


def _first_rank(job: JobLine) -> Cell:
    if job.common:
        return Cell("alike")
    return Cell("-", Tone.DIM) if not job.suspects else Cell(str(job.first.rank))


def _growth(rank: RankLine) -> Cell:
    return bytes_cell(None if rank.bytes_per_step is None else rank.bytes_per_step.likely)


def _job_end(job: JobLine) -> Cell:
    return _end(job.first) if job.running else Cell("-", Tone.DIM)


def _end(rank: RankLine) -> Cell:
    if rank.alive and rank.bound is not None and rank.bound.holds:
        return Cell(f"ends {format_bytes(rank.bound.end_bytes.likely)}", Tone.DIM)
    return end_cell(rank.seconds_to_oom, rank.steps_to_oom) if rank.alive else Cell("-", Tone.DIM)


def _incident(row: JobRow) -> Cell:
    if not row.incidents:
        return Cell("-", Tone.DIM)
    more = len(row.incidents) - 1
    return Cell(f"#{row.incidents[0].incident.number}" + (f" +{more}" if more else ""))


def _severity(line: IncidentRow) -> Cell:
    incident = line.incident
    if incident.stale:
        return Cell("stale", Tone.WARNING)
    return Cell(incident.severity.value, Tone.ALARM if incident.severity is Severity.CRITICAL else Tone.WARNING)


def _incident_ranks(line: IncidentRow, width: int) -> Cell:
    besides = ranks_besides(line.incident, line.ranks)
    return Cell(cut(list_ranks(line.ranks, common=line.incident.common, left_out=besides), width))


def _last(line: IncidentRow) -> Cell:
    if line.last is None:
        return Cell("none", Tone.DIM)
    return Cell(last_action([line.last]))
