"""``tidegauge diff``: keys, exit codes, what it says to people."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tidegauge.analysis.snapshots.reading import read_snapshot, write_packed
from tidegauge.cli.main import main
from trace_files import to_packed

DATA = Path(__file__).parents[2] / "data" / "snapshots"


def pair(name: str, sides: tuple[str, str] = ("early", "late")) -> list[str]:
    return [str(next(DATA.glob(f"{name}.{side}.*"))) for side in sides]


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["diff", "--json", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, list)
    return answer


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["diff", *arguments]) == 0
    return capsys.readouterr().out


def test_json_is_a_list_by_stack_the_largest_growth_first(capsys: pytest.CaptureFixture[str]) -> None:
    answer = rows(capsys, *pair("total_loss_graph"))
    assert all({"bytes", "blocks", "stack"} <= row.keys() for row in answer)
    assert [row["bytes"] for row in answer] == sorted((row["bytes"] for row in answer), reverse=True)
    assert answer[0]["line"] == {"filename": "train/scenarios.py", "line": 21, "function": "forward"}
    assert {"filename": "train/scenarios.py", "line": 83, "function": "total_loss_graph"} in answer[0]["stack"]


def test_json_by_line_and_by_size(capsys: pytest.CaptureFixture[str]) -> None:
    by_line = rows(capsys, *pair("total_loss_graph"), "--by", "line", "--top", "2")
    assert [(row["line"]["line"], row["stacks"]) for row in by_line] == [(21, 3), (48, 2)]
    by_size = rows(capsys, *pair("outputs_kept"), "--by", "size")
    assert by_size == [{"bytes": 553648128, "blocks": 33, "block_bytes": 16777216}]


def test_diff_lists_a_shrunk_line_with_negative_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    answer = rows(capsys, *pair("gc_sawtooth"))
    assert [(row["bytes"], row["blocks"], row["line"]["line"]) for row in answer] == [(-4801536, -6, 292)]


def test_the_page_names_the_line_its_caller_and_its_stack(capsys: pytest.CaptureFixture[str]) -> None:
    page = said(capsys, *pair("outputs_kept"))
    assert "Live memory grew by 528.0 MiB (441.3 MiB before, 969.3 MiB now)" in page
    assert "100 % of the growth was allocated by train/scenarios.py:34 in forward" in page
    assert "train/scenarios.py:90 in outputs_kept" in page
    assert "(3 library frames: site-packages/torch/nn/modules/linear.py:134 in forward ...)" in page


def test_a_graph_that_is_kept_is_told_by_the_line_that_called_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    page = said(capsys, *pair("total_loss_graph"))
    assert "comes from train/scenarios.py:83 in total_loss_graph, which calls the 7 lines that allocated it" in page


def test_steps_are_said_where_the_snapshots_know_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = []
    for file, step in zip(pair("outputs_kept"), (166, 499), strict=True):
        files.append(tmp_path / f"{step}.snap.zst")
        files[-1].write_bytes(write_packed(to_packed(read_snapshot(file), {"step": step})))
    assert "Live memory grew by 528.0 MiB after 333 steps (" in said(capsys, *map(str, files))


@pytest.mark.parametrize(
    ("name", "sides", "words"),
    [
        ("fragmentation_growth", ("early", "late"), "Reserved memory still grew from 2.4 GiB to 10.4 GiB"),
        (
            "untracked_cudamalloc",
            ("early", "late"),
            "the growth is outside the PyTorch allocator, where snapshots do not reach",
        ),
        (
            "ddp_comm_growth",
            ("rank0", "rank1"),
            "the growth is outside the PyTorch allocator, where snapshots do not reach",
        ),
    ],
)
def test_diff_says_so_if_no_line_grew(
    capsys: pytest.CaptureFixture[str], name: str, sides: tuple[str, str], words: str
) -> None:
    page = said(capsys, *pair(name, sides))
    assert page.startswith("Live memory did not grow")
    assert words in page
    assert "scenarios.py" not in page
    assert rows(capsys, *pair(name, sides)) == []


def test_a_total_below_the_growth_by_line_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    page = " ".join(said(capsys, *pair("slow_under_noise")).split())
    assert "Growth by line adds up to 15.2 MiB, because other lines hold 704.0 KiB less than before." in page
    assert "adds up" not in said(capsys, *pair("outputs_kept"))


def test_two_ranks_compare(capsys: pytest.CaptureFixture[str]) -> None:
    first = rows(capsys, *pair("ddp_rank1_leak", ("rank0", "rank1")))[0]
    assert (first["line"]["line"], first["blocks"]) == (30, 300)


def test_without_stacks_it_is_said_how_to_record_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = []
    for side in ("early", "late"):
        whole = pickle.loads(gzip.decompress((DATA / f"outputs_kept.{side}.pickle.gz").read_bytes()))
        for segment in whole["segments"]:
            for block in segment["blocks"]:
                block["frames"] = []
        files.append(tmp_path / f"{side}.pickle")
        files[-1].write_bytes(pickle.dumps(whole))
    page = said(capsys, *map(str, files))
    assert "16.0 MiB" in page
    assert "no stack recorded" in page
    assert 'To see lines: torch.cuda.memory._record_memory_history(context="alloc", stacks="python"' in page


def test_names_of_the_job_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    whole = pickle.loads(gzip.decompress((DATA / "outputs_kept.late.pickle.gz").read_bytes()))
    hostile = [{"name": "\x1b[31mf\n", "filename": "a\x07.py", "line": 1}]
    whole["segments"][0]["blocks"][0] |= {"frames": hostile, "state": "active_allocated"}
    late = tmp_path / "late.pickle"
    late.write_bytes(pickle.dumps(whole))
    for by in ("line", "stack", "size"):
        page = said(capsys, pair("outputs_kept")[0], str(late), "--by", by, "--top", "100")
        assert all(line.isprintable() for line in page.splitlines())


def test_diff_names_a_file_that_is_no_snapshot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    for late, words in (
        (__file__, "is neither a snapshot"),
        (tmp_path / "none", "cannot be read"),
        (nothing, "held nothing"),
    ):
        assert main(["diff", pair("outputs_kept")[0], str(late)]) == 2
        told = capsys.readouterr().err
        assert told.startswith(f"tidegauge diff: {late}: ")
        assert words in told


def test_a_device_is_chosen_where_there_are_several(capsys: pytest.CaptureFixture[str]) -> None:
    both = str(DATA.parent / "allocator" / "snapshots" / "two_devices.pickle.gz")
    assert main(["diff", both, both]) == 2
    assert "holds memory of devices 0, 1: choose one with --device" in capsys.readouterr().err
    assert main(["diff", both, both, "--device", "7"]) == 2
    assert "holds nothing of device 7" in capsys.readouterr().err
    assert rows(capsys, both, both, "--device", "1") == []
