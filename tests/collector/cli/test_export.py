"""``tidegauge export``: forms, endings, files."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

from tidegauge.cli.main import main
from tidegauge.cli.offline.export import ENDINGS, format_of

DATA = Path(__file__).parents[2] / "data" / "snapshots"
EARLY, LATE = (str(DATA / f"outputs_kept.{side}.pickle.gz") for side in ("early", "late"))
COMPACT = str(DATA / "total_loss_graph.late.snap.zst")
BEGINNINGS = {
    "torch": b"\x80\x04", "folded": b"<module> (train/record.py:41);", "speedscope": b'{"$schema"',
    "pprof": b"\x1f\x8b", "json": b'{"frames"',
}  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_ending_says_the_form(tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"out{ending}"
    assert main(["export", COMPACT, "-o", str(file)]) == 0
    assert file.read_bytes().startswith(BEGINNINGS[ENDINGS[ending]])


def test_the_longer_ending_wins() -> None:
    assert format_of("a.SPEEDSCOPE.json") == "speedscope"
    assert format_of("a.pb.gz") == "pprof"
    assert format_of("a.gz") is None


def test_the_form_may_be_said(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert main(["export", COMPACT, "--to", "folded", "-o", str(file)]) == 0
    assert file.read_bytes().startswith(BEGINNINGS["folded"])


def test_text_goes_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", COMPACT, "--to", "folded"]) == 0
    assert "total_loss_graph (train/scenarios.py:83);" in capfd.readouterr().out


def test_a_snapshot_of_tidegauges_becomes_torchs(tmp_path: Path) -> None:
    file = tmp_path / "out.pickle"
    assert main(["export", COMPACT, "-o", str(file)]) == 0
    whole = pickle.loads(file.read_bytes())
    assert len(whole["device_traces"][0]) == 3000
    assert {"frames", "action", "addr", "size", "stream", "time_us"} <= whole["device_traces"][0][0].keys()


def test_other_commands_read_tidegauges_own_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", COMPACT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"] == 3000
    assert main(["oom", COMPACT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["owners"][0]["line"]["filename"] == "train/scenarios.py"


def test_growth_between_two_is_written_for_flame_graphs(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["export", EARLY, LATE, "--to", "folded"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith(" 553648128")
    assert main(["export", EARLY, LATE, "--to", "json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["blocks"] == 33
    speedscope, pprof = tmp_path / "x.speedscope.json", tmp_path / "x.pprof"
    assert main(["export", EARLY, LATE, "-o", str(speedscope)]) == 0
    profile = json.loads(speedscope.read_text())["profiles"][0]
    assert (profile["name"], profile["weights"]) == ("growth of live bytes by stack", [553648128])
    assert main(["export", EARLY, LATE, "-o", str(pprof)]) == 0
    assert b"inuse_space" in gzip.decompress(pprof.read_bytes())
    assert b"alloc_space" not in gzip.decompress(pprof.read_bytes())


def test_a_profile_has_what_is_in_use_and_what_was_allocated(tmp_path: Path) -> None:
    file = tmp_path / "x.pprof"
    assert main(["export", COMPACT, "-o", str(file)]) == 0
    content = gzip.decompress(file.read_bytes())
    assert all(name in content for name in (b"inuse_space", b"inuse_objects", b"alloc_space", b"alloc_objects"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([EARLY], 2, "use --to torch|folded|speedscope|pprof|json"),
        ([EARLY, LATE, "--to", "torch"], 2, "a PyTorch pickle holds one snapshot"),
        ([__file__, "--to", "json"], 2, "is neither a snapshot"),
        ([EARLY, "--to", "folded", "--device", "3"], 2, "outputs_kept.early.pickle.gz: holds nothing of device 3"),
    ],
)
def test_export_explains_a_request_it_cannot_fulfil(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(["export", *arguments]) == code
    assert words in capsys.readouterr().err
