"""``tidegauge profile``: what fills the GPU at the peak, for people and as JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tidegauge
from tidegauge.analysis.traces import near_peak
from tidegauge.cli.main import main

DATA = Path(__file__).parents[2] / "data"
RECORDED = str(DATA / "snapshots" / "steady_lm.late.snap.zst")
FRAGMENTED = str(DATA / "snapshots" / "fragmentation_growth.early.snap.zst")
TWO_DEVICES = str(DATA / "allocator" / "snapshots" / "two_devices.pickle.gz")
WITHOUT_STACKS = str(DATA / "allocator" / "mixed_cnn_s1_c0.npz")


def test_profile_shows_the_peak_by_category_phase_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", RECORDED]) == 0
    printed = capsys.readouterr().out
    assert "Device 0, torch 2.10 or later: 4 backward passes" in printed  # by the snapshot's keys
    assert "Peak: 271.5 MiB allocated in the forward pass" in printed
    for words in ("activations      82.1 MiB  30%", "optimizer  175.3 MiB", "train/scenarios.py:21 in forward"):
        assert words in printed


def test_of_a_long_recording_the_profile_is_of_the_events_around_the_peak(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_peak, "MAX_PROFILED_EVENTS", 2_000)
    assert main(["profile", RECORDED]) == 0
    told = capsys.readouterr()
    assert "2,000 events.\nPeak: 271.5 MiB allocated in the forward pass, at event 379" in told.out
    assert "has 3,000 events; the profile is of 2,000 around its peak" in told.err


def test_memory_that_is_never_allocated_is_named_where_no_category_has_as_much(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", FRAGMENTED]) == 0
    assert (
        "; 2.4 GiB reserved at most, of which 2.1 GiB were not allocated even then: more than any category.\n"
        in capsys.readouterr().out
    )
    assert main(["profile", RECORDED]) == 0
    assert "; 308.0 MiB reserved at most.\n" in capsys.readouterr().out


def test_of_several_devices_the_one_that_holds_most_is_shown_and_the_others_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", TWO_DEVICES]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("Device 0, ")
    assert re.fullmatch(
        rf"tidegauge profile: {TWO_DEVICES} has events of several devices: 0 \([0-9]+ events\), 1 \([0-9]+ events\); "
        "this is device 0, which holds most; --device N shows another\n",
        told.err,
    )
    assert main(["profile", TWO_DEVICES, "--device", "1"]) == 0
    told = capsys.readouterr()
    assert (told.out[:10], told.err) == ("Device 1, ", "")
    assert main(["profile", "diff", TWO_DEVICES, TWO_DEVICES]) == 2
    assert "choose one with --device: 0 (" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["snapshto.pickle"],
            "snapshto.pickle: no such file, and no job has a name like this; there is snapshot.pickle",
        ),
        (["other.pickle"], "other.pickle: no such file, and no job has a name like this"),
        (["diff", RECORDED, "snapshto.pickle"], "snapshto.pickle: no such file; there is snapshot.pickle"),
    ],
)
def test_a_file_that_is_not_there_is_told_with_files_of_a_close_name(
    command: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "snapshot.pickle").touch()
    (tmp_path / "snapshots.pickle").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *command]) == 2
    assert capsys.readouterr().err == f"tidegauge profile: {said}\n"


def test_profile_shows_as_many_lines_as_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--top", "1", RECORDED]) == 0
    assert "(14 more; --top 15 or --json shows all)" in capsys.readouterr().out


def test_profile_as_json_has_the_whole_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--json", RECORDED]) == 0
    profile = json.loads(capsys.readouterr().out)
    assert (profile["file"], profile["version"], profile["backward_passes"]) == (RECORDED, 1, 4)
    assert sum(profile["peak"]["by_category"].values()) == profile["peak"]["allocated_bytes"]
    assert len(profile["lines"]) == 15


def test_profile_tells_what_would_help_and_what_the_card_has_room_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--limit", "80GiB", "--world-size", "4", RECORDED]) == 0
    printed = capsys.readouterr().out
    assert "- Checkpoint the 4 blocks (scenarios.py:32): the peak falls from 271.5 MiB to " in printed
    assert "The batch can be more than 100 times as large: PyTorch has 79.3 GiB.\n" in printed
    assert "A smaller card would do: MIG 1g.5gb" in printed


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["profile", RECORDED, "--estimate="], "argument --estimate: the name is empty"),
        (["profile", ""], "argument SNAPSHOT: the name is empty"),
        (["profile", "diff", "", RECORDED], "argument SNAPSHOT: the name is empty"),
        (["profile", RECORDED, "--html", "-"], "a page goes to a file"),
    ],
)
def test_a_name_that_is_empty_is_refused_before_anything_is_read(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["profile", "mine.snap.zst", "--html", "mine.snap.zst"],
        ["profile", "mine.snap.zst", "--html", "link.html"],
        ["profile", "diff", RECORDED, "mine.snap.zst", "--html", "./mine.snap.zst"],
        ["report", "mine.snap.zst", "-o", "mine.snap.zst"],
        ["export", "mine.snap.zst", "--to", "torch", "-o", "mine.snap.zst"],
        ["whatif", "mine.snap.zst", "--plot", "link.html"],
        ["profile", "4711", "--estimate", "mine.snap.zst", "--html", "link.html"],
    ],
)
def test_no_output_goes_over_a_file_that_it_is_made_of_which_is_not_even_read(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.snap.zst"
    mine.write_bytes(b"no snapshot")
    (tmp_path / "link.html").symlink_to(mine)
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert "is what is read; give the output another name" in capsys.readouterr().err
    assert mine.read_bytes() == b"no snapshot"


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "utf-8"}])
def test_output_that_cannot_be_written_is_not_bad_news(environ: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tidegauge", "profile", "diff", RECORDED, RECORDED, "--fail-if-peak-grows", "2%"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env={**os.environ, **environ}, check=False)
    assert done.returncode == 3
    assert done.stderr == (
        b"tidegauge profile: cannot write the output to /dev/full: No space left on device; free space there, then run "
        b"this again\n"
    )


def test_names_that_the_locale_does_not_have_are_escaped(tmp_path: Path) -> None:
    page = tmp_path / "schl\u00fcssel.html"
    command = [sys.executable, "-m", "tidegauge", "report", RECORDED, "--no-whatif", "-o", str(page)]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run(command, capture_output=True, env=environ, check=False)
    assert done.returncode == 0
    assert b"schl\\xfcssel.html: self-contained report" in done.stdout
    assert page.exists()


def test_a_limit_below_what_stays_says_that_no_batch_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--limit", "800MiB", RECORDED]) == 0
    assert "such as parameters and optimizer state, does not fit safely by itself" in capsys.readouterr().out


def test_profile_as_json_has_every_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--json", "--world-size", "4", RECORDED]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    measures = {one["measure"]: one for one in advice["measures"]}
    assert {"activation checkpointing", "sharded optimizer state (ZeRO-1)"} <= measures.keys()
    assert all(one["peak_bytes"] + one["saved_bytes"] == advice["peak_bytes"] for one in measures.values())
    assert advice["room"] is None


def test_profile_of_a_recording_without_stacks_says_how_to_record_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", WITHOUT_STACKS]) == 0
    printed = capsys.readouterr().out
    assert "_record_memory_history(context=" in printed
    assert "Highest in each phase" not in printed


def test_profile_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.html"
    assert main(["profile", RECORDED, "--html", str(file)]) == 0
    assert "mostly activations" in file.read_text(encoding="utf-8")
    assert "Peak: 271.5 MiB" in capsys.readouterr().out


def test_profile_refuses_a_file_that_is_no_snapshot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text("import torch\n")
    assert main(["profile", str(file)]) == 2
    assert "is neither a snapshot" in capsys.readouterr().err


CURRICULUM = str(DATA / "snapshots" / "curriculum.late.snap.zst")


def test_profile_diff_tells_what_the_higher_peak_is_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "diff", RECORDED, CURRICULUM]) == 0
    printed = capsys.readouterr().out
    assert "The peak is 228.2 MiB higher (+84.0%): 271.5 MiB before, 499.7 MiB after." in printed
    assert "activations      82.1 MiB  246.5 MiB  +164.4 MiB" in printed


def test_profile_diff_writes_a_page_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "diff.html"
    assert main(["profile", "diff", RECORDED, CURRICULUM, "--html", str(file)]) == 0
    assert "The peak is 228.2 MiB higher" in file.read_text(encoding="utf-8")
    assert "The peak is 228.2 MiB higher" in capsys.readouterr().out


@pytest.mark.parametrize(("most", "code"), [("-40%", 0), ("-45.6%", 0), ("-45.7%", 1), ("-100%", 1)])
def test_profile_diff_can_want_a_lower_peak(most: str, code: int) -> None:
    assert main(["profile", "diff", CURRICULUM, RECORDED, f"--fail-if-peak-grows={most}"]) == code
    assert main(["profile", "diff", RECORDED, CURRICULUM, f"--fail-if-peak-grows={most}"]) == 1


@pytest.mark.parametrize(("most", "code"), [("2%", 1), ("84%", 1), ("85%", 0)])
def test_profile_diff_fails_where_the_peak_grows_more_than_allowed(most: str, code: int) -> None:
    assert main(["profile", "diff", RECORDED, CURRICULUM, "--fail-if-peak-grows", most]) == code
    assert main(["profile", "diff", CURRICULUM, RECORDED, "--fail-if-peak-grows", most]) == 0


def test_profile_diff_as_json_names_both_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "diff", "--json", RECORDED, CURRICULUM]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert (compared["before"], compared["after"]) == (RECORDED, CURRICULUM)
    gap = compared["after_peak_bytes"] - compared["before_peak_bytes"]
    assert sum(one["after_bytes"] - one["before_bytes"] for one in compared["categories"]) == gap


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([RECORDED, CURRICULUM], "to compare two: tidegauge profile diff"),
        (["diff", RECORDED], "diff compares two snapshots, and got 1"),
        ([RECORDED, "--fail-if-peak-grows", "2%"], "needs two snapshots"),
        (
            ["diff", RECORDED, CURRICULUM, "--limit", "80GiB"],
            "--world-size and --limit are for the advice on one snapshot",
        ),
    ],
)
def test_profile_says_how_to_compare(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_profile_refuses_a_share_that_is_no_percentage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "diff", RECORDED, CURRICULUM, "--fail-if-peak-grows", "2"])
    assert "'2' is not a percentage, such as 2%" in capsys.readouterr().err


def test_a_profiled_block_without_torch_says_so_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with tidegauge.profile() as p:
        pass
    assert p.problem == str(p) == "no profile: this process has no GPU that PyTorch can use"
    with pytest.raises(RuntimeError, match="no GPU"):
        _ = p.peak


def test_a_profiled_block_that_cannot_record_leaves_the_job_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True)))
    with tidegauge.profile() as p:
        trained = True
    assert trained
    assert p.problem is not None
    assert "AttributeError" in p.problem


def test_a_recording_that_lost_its_first_events_says_that_a_higher_peak_may_lie_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", RECORDED]) == 0
    assert "A higher peak may lie before it." in capsys.readouterr().out
