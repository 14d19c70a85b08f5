"""The tables of ``tidegauge top``: what each column says of a job, a rank or an incident, and which give way first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from tidegauge.cli.jobs.names import short_job_name
from tidegauge.cli.timeline import last_action
from tidegauge.cli.top.cells import LUXURY, Cell, Column, Tone, cut, sparkline
from tidegauge.cli.top.model import IncidentRow, JobRow
from tidegauge.cluster.api.overview import JobLine, RankLine
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.wording import list_ranks, ranks_besides, time_left
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import Band, LeakState, Severity, state_word

SOON_S = 3600.0
"""Out of memory within the hour is red."""
MAX_NAME_CHARS = 32
"""Characters of a job's name, on a screen."""
MIN_ID_CHARS = 6
"""Characters of it by which a job is known beside the name of its group."""
NEARLY_FULL = 0.9
"""As the alert TidegaugeMemoryNearlyFull: not yet wrong, but worth a look."""
_TONES = {"ok": Tone.GOOD, "no steps": Tone.DIM, "leak": Tone.ALARM}
_MARKS = {None: "", Severity.NOTE: " !", Severity.WARNING: " !!", Severity.CRITICAL: " !!!"}


def state_cell(
    state: LeakState, severity: Severity | None, *, alive: bool, stale: bool, has_steps: bool = True
) -> Cell:
    """ "leak !!!", "growing !!", "suspected", "ok", "no steps"; the marks say how grave it is. "stale": the node does
    not report, and this was how grave it was last."""
    if not alive:
        return Cell("ended", Tone.DIM)
    marks = _MARKS[severity] if state is LeakState.LEAK else ""
    if stale:
        return Cell(f"stale{marks}", Tone.WARNING)
    word = state_word(state, severity, has_steps=has_steps)
    return Cell(f"{word}{marks}", _TONES.get(word, Tone.WARNING))


def name_job_shortly(job: JobKey, array: str | None = None, *, width: int | None = None) -> str:
    """ "4711", "4711 (2)", "4711 (123_4)", "4711 (step 1)": ``job.group`` as people call it. In less ``width`` than it
    takes the id is cut, not what tells groups and attempts apart: "local-gpu-no… (step 1)"."""
    name = short_job_name(job.job_id, job.attempt, array, group=job.group)
    more = name.removeprefix(job.job_id)
    left = len(name) if width is None else width - cell_len(more)
    return cut(job.job_id, left) + more if left >= MIN_ID_CHARS else name


def share_cell(share: float | None) -> Cell:
    """ "93%"."""
    if share is None:
        return Cell("-", Tone.DIM)
    return Cell(f"{share:.0%}", Tone.WARNING if share >= NEARLY_FULL else Tone.PLAIN)


def end_cell(seconds_to_oom: Band | None, steps_to_oom: Band | None = None) -> Cell:
    """ "14–22 min", "33 min+" without an upper end."""
    left = time_left(seconds_to_oom, steps_to_oom)
    if left is None:
        return Cell("-", Tone.DIM)
    soon = seconds_to_oom is not None and seconds_to_oom.likely < SOON_S
    return Cell(left.replace(" or more", "+"), Tone.ALARM if soon else Tone.STRONG)


def bytes_cell(count: float | None) -> Cell:
    """ "12.0 MiB"."""
    return Cell("-", Tone.DIM) if count is None else Cell(format_bytes(count))


def job_columns(most_of_name: int = MAX_NAME_CHARS) -> Sequence[Column[JobRow]]:
    """The cluster's table. ``most_of_name``: characters of a job's name above which the column gains nothing."""
    return (
        Column("state", lambda row, _: _job_state(row.job), 10),
        Column(
            "job",
            lambda row, width: Cell(name_job_shortly(row.called, row.job.array, width=width), Tone.STRONG),
            12,
            most_of_name,
        ),
        Column("name", lambda row, _: Cell(row.job.job_name or "-"), 14, 28, rank=4),
        Column("user", lambda row, _: Cell(row.job.user_name), 7, 12, rank=2),
        Column("ranks", lambda row, _: _ranks(row.job), 7, 9, rank=3),
        Column("nodes", lambda row, _: Cell(str(row.job.nodes)), 5, rank=LUXURY, right=True),
        Column("step", lambda row, _: Cell(f"{row.job.step:,}"), 9, rank=LUXURY, right=True),
        Column("memory", lambda row, width: _memory(row.job.first, width), 9, 32, rank=1),
        Column("used", lambda row, _: share_cell(row.job.used_share), 4, right=True),
        Column("of a GPU", lambda row, _: bytes_cell(row.job.used_bytes), 9, rank=LUXURY, right=True),
        Column("rank", lambda row, _: _first_rank(row.job), 5, 6, rank=4, right=True),
        Column("per step", lambda row, _: _growth(row.job.first), 8, 9, rank=1, right=True),
        Column("OOM in", lambda row, _: _job_end(row.job), 10, 13, right=True),
        Column("incident", lambda row, _: _incident(row), 8, rank=4, right=True),
    )


def rank_columns() -> Sequence[Column[RankLine]]:
    """One job's table."""
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
    """The pane of open incidents."""
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
    """The state of one rank."""
    return state_cell(rank.state, rank.severity, alive=rank.alive, stale=rank.stale, has_steps=rank.step > 0)


def _job_state(job: JobLine) -> Cell:
    return state_cell(job.state, job.severity, alive=job.running, stale=bool(job.stale), has_steps=job.step > 0)


def _ranks(job: JobLine) -> Cell:
    missing = job.running and job.alive < job.world_size
    return Cell(f"{job.alive}/{job.world_size}", Tone.WARNING if missing else Tone.PLAIN)


def _memory(rank: RankLine, width: int) -> Cell:
    """Between nothing and what it may take: how full it is, and which way it goes."""
    return Cell(sparkline(rank.line, rank.limit_bytes or 0, width), Tone.WATER if rank.alive else Tone.DIM)


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
