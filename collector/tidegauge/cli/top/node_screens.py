"""The screens of ``tidegauge top`` about nodes: all of them, and one with its GPUs and who is on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType

from tidegauge.cli.top.nodes import (
    GpuRow,
    NodeRow,
    NodeSort,
    gpu_columns,
    gpu_rows,
    job_on,
    node_columns,
    node_headline,
    node_rows,
    nodes_headline,
)
from tidegauge.cli.top.page_screens import RankScreen
from tidegauge.cli.top.pages import Line
from tidegauge.cli.top.screens import RowsScreen
from tidegauge.cli.top.table import RowTable
from tidegauge.cluster.api.overview import NodePage
from tidegauge.core.units import format_count


class NodesScreen(RowsScreen[Mapping[str, Any], NodeRow]):
    """The screen of all nodes; ``seen`` is the API's answer, whose nodes are read where they are drawn."""

    REFRESH_S: ClassVar[float] = 5.0
    """Longer than for jobs: a thousand nodes are 2 MB."""
    KEYS = "Esc back  Enter open  o sort  / filter  e ended  l log  ? help  q quit"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("o", "next_order", show=False)]

    def __init__(self) -> None:
        super().__init__()
        self._order = NodeSort.FULLEST

    def ask(self) -> Mapping[str, Any]:
        return self.top.source.nodes_raw()

    def path(self) -> Sequence[str]:
        return ("nodes",)

    def about(self, seen: Mapping[str, Any]) -> Line:
        return nodes_headline([NodeRow(raw) for raw in seen["nodes"]])

    def figures_unix_s(self, seen: Mapping[str, Any]) -> float:
        return float(seen["now_unix_s"])

    def table(self) -> RowTable[NodeRow]:
        return RowTable(
            node_columns(), lambda row: row.node_id, id="rows", empty="no matching node; / changes the filter"
        )

    def rows(self, seen: Mapping[str, Any]) -> Sequence[NodeRow]:
        return node_rows(seen, self._order, self.top.choice.text)

    def rows_title(self, seen: Mapping[str, Any], rows: Sequence[NodeRow]) -> str:
        text = f", with {self.top.choice.text!r}" if self.top.choice.text else ""
        more = f", {seen['left_out']:,} more not shown" if seen["left_out"] else ""
        return f"{format_count(len(rows), 'node')} {self._order.value}{text}{more}"

    def opened(self, row: NodeRow) -> None:
        self.app.push_screen(NodeScreen(row.node_id, row.hostname))

    def action_next_order(self) -> None:
        self._order = self._order.next
        self.draw()


class NodeScreen(RowsScreen[NodePage, GpuRow]):
    """The screen of one node."""

    KEYS = "Esc back  Enter open the rank  / filter  ? help  q quit"

    def __init__(self, node_id: str, hostname: str) -> None:
        super().__init__()
        self._node_id, self._hostname = node_id, hostname

    def ask(self) -> NodePage:
        return self.top.source.node(self._node_id)

    def path(self) -> Sequence[str]:
        return "nodes", self._hostname

    def about(self, seen: NodePage) -> Line:
        return node_headline(seen.node)

    def figures_unix_s(self, seen: NodePage) -> float:
        return seen.now_unix_s

    def table(self) -> RowTable[GpuRow]:
        return RowTable(gpu_columns(), lambda row: row.key, id="rows", empty="no GPU reported")

    def rows(self, seen: NodePage) -> Sequence[GpuRow]:
        return gpu_rows(seen, self.top.choice.text)

    def rows_title(self, seen: NodePage, rows: Sequence[GpuRow]) -> str:  # noqa: ARG002 - they are in the headline
        more = f", {seen.left_out:,} more ranks not shown" if seen.left_out else ""
        return f"\u2588 watched ranks  \u2592 unattributed  \u00b7 free{more}"

    def opened(self, row: GpuRow) -> None:
        if row.on is None:
            self.top.say("no rank of yours on this GPU" if row.hidden else "no watched rank on this GPU")
            self.draw_lines()
        else:
            self.app.push_screen(RankScreen(job_on(row.on), row.on.rank.rank))
