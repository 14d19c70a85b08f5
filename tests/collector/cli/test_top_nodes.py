"""Nodes and their GPUs in ``tidegauge top``: bars, who is on them, and a fleet that scrolls."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from sample_views import GIB, gpu_view, uuid_of
from tidegauge.cli.main import main
from tidegauge.cli.top.columns import fit, line
from tidegauge.cli.top.model import Selection
from tidegauge.cli.top.nodes import (
    GpuRow,
    NodeRow,
    NodeSort,
    gpu_bar,
    gpu_columns,
    gpu_rows,
    node_columns,
    node_rows,
    unattributed_bytes,
)
from tidegauge.cli.top.screens import LiveScreen
from tidegauge.cli.top.table import RowTable
from tidegauge.cluster.api.overview import GpuLine, NodeLine, NodePage, NodesPage
from tidegauge.cluster.views import NodeHealth
from tidegauge.core.wire import to_wire
from top_reader import Reader, read
from top_world import World, serving_world

GPU = GpuLine(0, 80 * GIB, 60 * GIB, 40 * GIB, 16 * GIB, 1)


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for screen in [LiveScreen, *LiveScreen.__subclasses__()]:
        monkeypatch.setattr(screen, "REFRESH_S", 3600.0)


def node(name: str, *gpus: GpuLine, health: NodeHealth = NodeHealth.OK, jobs: tuple[str, ...] = ()) -> NodeLine:
    return NodeLine(f"id-{name}", name, health, 190.0, 1, gpus, jobs)


def answer(*nodes: NodeLine, left_out: int = 0) -> Any:
    return json.loads(json.dumps(to_wire(NodesPage("lab", 5.0, nodes, left_out))))


def told(row: NodeRow, width: int = 110) -> str:
    return "".join(cell.text for cell in line(fit(node_columns(), width), row))


def test_a_bar_has_what_ranks_hold_what_else_is_used_and_what_is_free() -> None:
    assert gpu_bar(GPU, 16) == "\u2588" * 8 + "\u2592" * 4 + "\u00b7" * 4
    assert unattributed_bytes(GPU) == 20 * GIB
    assert gpu_bar(GPU._replace(used_bytes=None), 16) == "?"
    assert unattributed_bytes(GPU._replace(used_bytes=None)) is None
    over = GPU._replace(used_bytes=90 * GIB, watched_bytes=99 * GIB)
    assert (gpu_bar(over, 4), unattributed_bytes(over)) == ("\u2588" * 4, 0)


def test_a_nodes_line_has_one_bar_for_each_gpu_and_says_if_it_does_not_report() -> None:
    gpus = [GPU._replace(gpu=n, used_bytes=n * 40 * GIB) for n in range(3)]
    silent = node("n1", *gpus, GPU._replace(used_bytes=None), health=NodeHealth.STALE, jobs=("48211 ada", "9 bob"))
    (row,) = node_rows(answer(silent), NodeSort.NAME, "")
    assert told(row).split()[:6] == ["stale", "3.2", "min", "n1", "\u2581\u2585\u2588?", "100%"]
    assert told(row, 70).split()[:2] == ["stale", "n1"]
    assert "40.0 GiB" in told(row), "unattributed: 80 - 40 of the last, and nothing of the others"
    assert told(row).rstrip().endswith("48211 ada, 9 bob")


def test_nodes_are_sorted_and_filtered_by_what_they_say() -> None:
    full, waste = GPU._replace(used_bytes=79 * GIB, watched_bytes=79 * GIB), GPU
    raw = answer(
        node("a", waste), node("b", full, jobs=("48211 ada",)),
        node("c", GPU._replace(used_bytes=0), health=NodeHealth.GONE),
    )  # fmt: skip
    names = {order: [row.hostname for row in node_rows(raw, order, "")] for order in NodeSort}
    assert names == {
        NodeSort.FULLEST: ["b", "a", "c"], NodeSort.UNATTRIBUTED: ["a", "b", "c"], NodeSort.HEALTH: ["c", "a", "b"],
        NodeSort.NAME: ["a", "b", "c"],
    }  # fmt: skip
    assert [row.hostname for row in node_rows(raw, NodeSort.NAME, "ADA")] == ["b"]
    assert [row.hostname for row in node_rows(raw, NodeSort.NAME, "gone")] == ["c"]


def test_a_gpu_with_several_ranks_has_as_many_lines_and_names_no_rank_of_others() -> None:
    world = World().live(reports=3)
    page = world.service().node("id-06")
    rows = gpu_rows(page, "")
    assert [(row.gpu.gpu, row.is_first, row.on is not None) for row in rows[:4]] == [
        (0, True, True), (1, True, True), (2, True, True), (3, True, True),
    ]  # fmt: skip
    assert not [row for row in rows if row.on is not None and not row.on.rank.alive]
    shared = replace(page, ranks=(*page.ranks, page.ranks[0]._replace(rank=page.ranks[0].rank._replace(rank=7))))
    assert [row.is_first for row in gpu_rows(shared, "") if row.gpu.gpu == 0] == [True, False]
    hidden = gpu_rows(NodePage(1.0, node("n", GPU), ()), "")
    assert hidden == [GpuRow(GPU, True, None, 1)]
    text = "".join(cell.text for cell in line(fit(gpu_columns(), 80), hidden[0]))
    assert ("1 rank of\u2026" in text, "20.0 GiB" in text) == (True, True)


def test_c_shows_nodes_enter_its_gpus_and_their_ranks_and_escape_leads_back() -> None:
    async def story(reader: Reader) -> None:
        await reader.press("c")
        assert reader.screen()[0].startswith(" tidegauge  lab \u203a nodes")
        assert reader.screen()[1] == " 7 nodes   7.1 GiB of GPU memory unattributed"
        assert reader.screen()[4].split()[:2] == ["\u25b8ok", "gpu-node-03"]
        await reader.press("o")
        assert "7 nodes by unattributed memory" in reader.text()
        assert reader.screen()[4].split()[1] == "gpu-node-06"
        await reader.press("o", "o", "home", "down", "enter")
        assert "nodes \u203a gpu-node-01" in reader.screen()[0]
        assert "8 GPUs" in reader.screen()[1]
        await reader.press("down", "down", "down", "enter")
        assert "job 48211 \u203a rank 11" in reader.screen()[0]
        await reader.press("escape")
        assert "nodes \u203a gpu-node-01" in reader.screen()[0]
        await reader.press("escape", "escape")
        assert "nodes" not in reader.screen()[0]

    read(story, World().live(reports=40).tell_incidents())


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_screens_of_nodes_fit_and_have_what_matters(size: tuple[int, int]) -> None:
    async def story(reader: Reader) -> None:
        await reader.press("c")
        assert max(map(len, reader.screen())) <= size[0]
        assert {"node", "GPUs", "fullest", "unattributed", "jobs"} <= set(reader.screen()[3].split())
        await reader.press("enter")
        assert max(map(len, reader.screen())) <= size[0]
        assert {"GPU", "memory", "used", "unattributed", "job", "rank", "user"} <= set(reader.screen()[3].split())

    read(story, World().live(reports=3), size=size)


def test_a_fleet_of_1250_nodes_scrolls_and_only_lines_that_are_seen_are_read() -> None:
    world = World(()).live(reports=1)
    for number in range(1250):
        gpus = tuple(gpu_view(gpu, uuid=uuid_of(8 * number + gpu)) for gpu in range(8))
        world.report_one(node_id=f"{number:04d}", gpus=gpus)

    async def story(reader: Reader) -> None:
        await reader.press("c")
        await reader.press("o", "o", "o", "end", "pageup", "pagedown")
        rows = reader.app.screen.query_one("#rows", RowTable)._rows
        assert (len(rows), rows[-1].hostname) == (1250, "gpu-node-1249")
        assert "gpu-node-1249" in reader.text()
        read_rows = [row for row in rows if "line" in vars(row)]
        assert 0 < len(read_rows) < 200

    read(story, world)


def test_nodes_are_printed_once_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_world(World().live(reports=3).tell_incidents()) as url:

        def run(*arguments: str) -> tuple[int, list[str], str]:
            code = main(["top", *arguments, "--api", url])
            captured = capsys.readouterr()
            return code, captured.out.splitlines(), captured.err

        code, lines, _ = run("--nodes", "--once")
        assert (code, len(lines), lines[1].split()[:3]) == (0, 2 + 7, ["state", "node", "GPUs"])
        assert lines[0].startswith("lab   7 nodes")
        code, lines, _ = run("--node", "gpu-node-01", "--once")
        assert (code, len(lines)) == (0, 2 + 8)
        assert lines[0].startswith("node gpu-node-01   ok   8 GPUs")
        assert "48211" in lines[2]
        assert len(json.loads(" ".join(run("--nodes", "--json")[1]))["nodes"]) == 7
        assert len(json.loads(" ".join(run("--node", "gpu-node-01", "--json")[1]))["ranks"]) == 8
        code, _, err = run("--node", "nowhere", "--once")
        assert (code, "no node 'nowhere'; `tidegauge top --nodes --once`" in err) == (2, True)
        code, _, err = run("--nodes", "--job", "48211")
        assert (code, "--job cannot be combined" in err) == (2, True)


def test_top_begins_with_the_node_that_was_asked_for() -> None:
    world = World().live(reports=3)
    found = NodeRow(world.service().nodes_raw()["nodes"][2]).line

    async def story(reader: Reader) -> None:
        assert "nodes \u203a gpu-node-02" in reader.screen()[0]

    read(story, world, choice=Selection(), node=found)
