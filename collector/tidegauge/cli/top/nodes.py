"""Nodes and their GPUs in ``tidegauge top``: rows, their order, and the columns of both tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tidegauge.cli.service_api import read
from tidegauge.cli.top.columns import (
    BLOCKS,
    LUXURY,
    Cell,
    Column,
    Tone,
    bytes_cell,
    end_cell,
    name_job_shortly,
    rank_state,
    share_cell,
)
from tidegauge.cli.top.model import RowOrder, has_text
from tidegauge.cluster.api.overview import GpuLine, NodeLine, NodePage, RankOnGpu
from tidegauge.cluster.views import NodeHealth
from tidegauge.core.ids import JobKey, known_as
from tidegauge.core.units import format_bytes, format_count, format_duration
from tidegauge.core.views import NEARLY_FULL

WATCHED, UNATTRIBUTED, FREE = "\u2588", "\u2592", "\u00b7"
"""A bar of a GPU: what watched ranks hold, what else is used, and what is free."""
UNKNOWN_GPU = "?"
SEVERAL = 12
"""Characters of a table's column of GPUs at most, one each."""


class NodeSort(RowOrder):
    """The order of nodes."""

    FULLEST = "by fullest GPU"
    UNATTRIBUTED = "by unattributed memory"
    HEALTH = "by state"
    NAME = "by name"


class NodeRow:
    """A node of the API's answer; only rows that are drawn are read, as a page has up to 4000 nodes with 8 GPUs."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.node_id = str(raw["node_id"])
        self.hostname = str(raw["hostname"])
        shares = [gpu["used_bytes"] / gpu["total_bytes"] for gpu in raw["gpus"] if _is_known(gpu)]
        self.fullest = max(shares, default=0.0)
        """The share of the fullest GPU that is used; 0: unknown."""
        self.unattributed_bytes = sum(
            max(gpu["used_bytes"] - gpu["watched_bytes"], 0) for gpu in raw["gpus"] if gpu["used_bytes"] is not None
        )
        self.reports = raw["health"] == NodeHealth.OK.value

    @cached_property
    def line(self) -> NodeLine:
        return read(NodeLine, self._raw)

    def says(self, text: str) -> bool:
        """Whether the node has ``text`` in its name, state, or the jobs and users on it."""
        return has_text(text, (self.hostname, str(self._raw["health"]), *self._raw["jobs"]))


class GpuRow(NamedTuple):
    """A line of a node's page: a GPU and a rank on it; a GPU with several ranks has as many lines."""

    gpu: GpuLine
    is_first: bool
    """The line has the figures of the GPU."""
    on: RankOnGpu | None
    hidden: int = 0
    """Ranks on it that this viewer may not see."""

    @property
    def key(self) -> tuple[object, ...]:
        return (self.gpu.gpu, None if self.on is None else (job_on(self.on), self.on.rank.rank))


def node_rows(raw: Mapping[str, Any], order: NodeSort, text: str) -> list[NodeRow]:
    """The nodes of the API's answer that have ``text``, sorted."""
    keys: Mapping[NodeSort, Callable[[NodeRow], float]] = {
        NodeSort.FULLEST: lambda row: -row.fullest,
        NodeSort.UNATTRIBUTED: lambda row: -row.unattributed_bytes,
        NodeSort.HEALTH: lambda row: row.reports,
        NodeSort.NAME: lambda _: 0,
    }
    rows = [row for row in map(NodeRow, raw["nodes"]) if row.says(text)]
    return sorted(rows, key=lambda row: (keys[order](row), row.hostname, row.node_id))


def gpu_rows(page: NodePage, text: str) -> list[GpuRow]:
    """The GPUs of a node with the ranks on them, by GPU, then ranks that name no GPU."""
    rows = []
    for gpu in page.node.gpus:
        there = [one for one in page.ranks if one.rank.gpu == gpu.gpu]
        hidden = max(gpu.ranks - len(there), 0)
        rows += [GpuRow(gpu, place == 0, one, 0) for place, one in enumerate(there)]
        rows += [GpuRow(gpu, not there, None, hidden)] if hidden or not there else []
    known = {gpu.gpu for gpu in page.node.gpus}
    nowhere = GpuLine(-1, None, None, 0, None, 0)
    rows += [GpuRow(nowhere, False, one) for one in page.ranks if one.rank.gpu not in known]
    return [row for row in rows if has_text(text, _said_of_gpu(row))]


def job_on(one: RankOnGpu) -> JobKey:
    """The key that identifies the job of a rank in the next answer."""
    return JobKey(one.job_id, one.attempt, one.uid, one.group)


def unattributed_bytes(gpu: GpuLine) -> int | None:
    """What is used and held by no watched rank: other processes, and the driver's own memory; ``None``: unknown."""
    return None if gpu.used_bytes is None else max(gpu.used_bytes - gpu.watched_bytes, 0)


def gpu_bar(gpu: GpuLine, width: int) -> str:
    """A bar of what watched ranks hold, what else is used, and what is free: "████▒▒····"."""
    if not gpu.total_bytes or gpu.used_bytes is None:
        return UNKNOWN_GPU
    used = min(round(gpu.used_bytes / gpu.total_bytes * width), width)
    watched = min(round(min(gpu.watched_bytes, gpu.used_bytes) / gpu.total_bytes * width), used)
    return WATCHED * watched + UNATTRIBUTED * (used - watched) + FREE * (width - used)


def node_columns() -> Sequence[Column[NodeRow]]:
    return (
        Column("state", lambda row, width: _health(row.line, width), 10, 14),
        Column("node", lambda row, _: Cell(row.hostname, Tone.STRONG), 12, 32),
        Column("GPUs", lambda row, _: _cards(row), 8, SEVERAL),
        Column("fullest", lambda row, _: share_cell(row.fullest or None), 7, right=True),
        Column("used", lambda row, _: bytes_cell(_sum(row.line.gpus, "used_bytes")), 9, rank=2, right=True),
        Column("of", lambda row, _: bytes_cell(_sum(row.line.gpus, "total_bytes")), 9, rank=LUXURY, right=True),
        Column("unattributed", lambda row, _: _unattributed(row.unattributed_bytes), 12, rank=1, right=True),
        Column("ranks", lambda row, _: Cell(str(row.line.ranks)), 5, rank=3, right=True),
        Column("jobs", lambda row, _: _jobs(row.line), 12, 60, rank=1),
    )


def gpu_columns() -> Sequence[Column[GpuRow]]:
    return (
        Column("GPU", lambda row, _: Cell(str(row.gpu.gpu) if row.is_first else "", Tone.STRONG), 3, right=True),
        Column("memory", lambda row, width: _of_gpu(row, gpu_bar(row.gpu, width)), 10, 40),
        Column("used", lambda row, _: _share(row), 4, right=True),
        Column("of", lambda row, _: _of_gpu(row, _size(row.gpu.total_bytes)), 9, rank=1, right=True),
        Column("unattributed", lambda row, _: _free_of_ranks(row), 12, rank=1, right=True),
        Column("others", lambda row, _: _others(row), 9, rank=LUXURY, right=True),
        Column("job", _job, 10, 32),
        Column("rank", lambda row, _: Cell("-" if row.on is None else str(row.on.rank.rank)), 5, right=True),
        Column("user", lambda row, _: Cell("-" if row.on is None else row.on.user_name), 7, 12),
        Column("holds", lambda row, _: _holds(row), 9, rank=3, right=True),
        Column("state", lambda row, _: Cell("") if row.on is None else rank_state(row.on.rank), 10, rank=2),
        Column("OOM in", lambda row, _: _end(row), 10, 13, rank=4, right=True),
    )  # fmt: skip


def nodes_headline(rows: Sequence[NodeRow]) -> list[Cell]:
    """How many nodes and GPUs there are, and which do not report."""
    silent = sum(not row.reports for row in rows)
    cells = [Cell(format_count(len(rows), "node"))]
    cells += [Cell(", "), Cell(f"{silent} not reporting", Tone.WARNING)] if silent else []
    held = sum(row.unattributed_bytes for row in rows)
    return [*cells, Cell(f"   {format_bytes(held)} of GPU memory unattributed")]


def node_headline(node: NodeLine) -> list[Cell]:
    """The state of one node, its GPUs and what is used of them."""
    used, total = _sum(node.gpus, "used_bytes"), _sum(node.gpus, "total_bytes")
    state = _health(node, 80)
    cells = [Cell(state.text, state.tone), Cell(f"   {format_count(len(node.gpus), 'GPU')}")]
    if used is not None and total:
        cells.append(Cell(f", {format_bytes(used)} of {format_bytes(total)} used ({used / total:.0%})"))
    return [*cells, Cell(f"   {format_count(node.ranks, 'rank')}")]


def _is_known(gpu: Mapping[str, Any]) -> bool:
    return gpu["used_bytes"] is not None and bool(gpu["total_bytes"])


def _health(node: NodeLine, width: int) -> Cell:
    """ "ok", or, where there is room, for how long a node has not reported: "stale 3.2 min"."""
    if node.health is NodeHealth.OK:
        return Cell("ok", Tone.GOOD)
    age = "" if node.last_report_age_s is None else f" {format_duration(node.last_report_age_s)}"
    text = f"{node.health.value}{age}"
    return Cell(text if len(text) <= width else node.health.value, Tone.WARNING)


def _cards(row: NodeRow) -> Cell:
    """One bar for each GPU, as high as its share in use."""
    drawn = ""
    for gpu in row.line.gpus:
        known = gpu.total_bytes and gpu.used_bytes is not None
        share = gpu.used_bytes / gpu.total_bytes if known else 0.0  # type: ignore[operator]  # both are known
        drawn += BLOCKS[1 + round(min(share, 1.0) * 7)] if known else UNKNOWN_GPU
    return Cell(drawn or "-", Tone.WARNING if row.fullest >= NEARLY_FULL else Tone.WATER)


def _unattributed(count: int) -> Cell:
    return bytes_cell(count) if count else Cell("-", Tone.DIM)


def _jobs(node: NodeLine) -> Cell:
    more = f", {node.more_jobs} more" if node.more_jobs else ""
    return Cell(", ".join(node.jobs) + more) if node.jobs else Cell("-", Tone.DIM)


def _of_gpu(row: GpuRow, text: str) -> Cell:
    return Cell(text if row.is_first else "", Tone.WATER)


def _others(row: GpuRow) -> Cell:
    return bytes_cell(row.gpu.other_processes_bytes) if row.is_first else Cell("")


def _holds(row: GpuRow) -> Cell:
    return bytes_cell(None if row.on is None else row.on.rank.used_bytes)


def _size(count: int | None) -> str:
    return "-" if count is None else format_bytes(count)


def _share(row: GpuRow) -> Cell:
    if not row.is_first:
        return Cell("")
    known = row.gpu.total_bytes and row.gpu.used_bytes is not None
    return share_cell(row.gpu.used_bytes / row.gpu.total_bytes if known else None)  # type: ignore[operator]


def _free_of_ranks(row: GpuRow) -> Cell:
    return bytes_cell(unattributed_bytes(row.gpu)) if row.is_first else Cell("")


def _job(row: GpuRow, width: int) -> Cell:
    if row.on is not None:
        called = known_as(row.on.job_id, row.on.job_name)
        key = job_on(row.on)._replace(job_id=called, group=row.on.group_name)
        return Cell(name_job_shortly(key, row.on.array, width=width), Tone.STRONG)
    if row.hidden:
        return Cell(f"{format_count(row.hidden, 'rank')} of others", Tone.DIM)
    return Cell("-", Tone.DIM)


def _end(row: GpuRow) -> Cell:
    rank = None if row.on is None else row.on.rank
    return Cell("") if rank is None else end_cell(rank.seconds_to_oom, rank.steps_to_oom)


def _sum(gpus: Sequence[GpuLine], name: str) -> int | None:
    """The sum over all GPUs; ``None`` if it is not known of each."""
    amounts = [getattr(gpu, name) for gpu in gpus]
    return None if not amounts or None in amounts else sum(amounts)


def _said_of_gpu(row: GpuRow) -> Sequence[str | None]:
    on = row.on
    return (f"GPU {row.gpu.gpu}", *(() if on is None else (on.job_id, on.job_name, on.user_name, on.rank.state.value)))
