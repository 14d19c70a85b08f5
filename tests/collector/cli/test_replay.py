"""``tidegauge replay``: keys, exit codes, what it says to people."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tidegauge.cli.main import main

FOLDER = Path(__file__).parents[2] / "data" / "allocator"
DEFAULT = str(FOLDER / "mixed_cnn_s1_c0.npz")
SNAPSHOTS = FOLDER / "snapshots"
KEYS = {
    "events", "peak_allocated_bytes", "peak_reserved_bytes", "address_mismatches", "alloc_retries", "ooms", "segments",
}  # fmt: skip
MIB = 1 << 20


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["replay", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["replay", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_recording_is_replayed_under_its_own_settings(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = replay(capsys, DEFAULT)
    assert code == 0
    assert set(answer) >= KEYS
    assert answer["events"] == 34_654
    assert answer["address_mismatches"] == 0
    assert answer["recorded_settings"]
    assert answer["complete"]
    assert answer["segments"] == 37


def test_other_settings_predict_their_own_recording(capsys: pytest.CaptureFixture[str]) -> None:
    _, default = replay(capsys, DEFAULT)
    _, predicted = replay(capsys, DEFAULT, "--alloc-conf", "max_split_size_mb:64")
    _, recorded = replay(capsys, str(FOLDER / "mixed_cnn_s1_c1.npz"))
    assert predicted["peak_reserved_bytes"] == recorded["peak_reserved_bytes"] > default["peak_reserved_bytes"]
    assert predicted["address_mismatches"] is None, "addresses of other settings were never recorded"
    assert predicted["recorded_address_mismatches"] == 0
    assert not predicted["recorded_settings"]


def test_the_recorded_settings_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = replay(capsys, str(FOLDER / "mixed_cnn_s1_c1.npz"), "--alloc-conf", "max_split_size_mb:64")
    assert answer["recorded_settings"]


def test_a_cap_that_the_program_does_not_fit_is_bad_news(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = replay(capsys, DEFAULT, "--cap-bytes", str(1100 * MIB))
    assert code == 1
    assert answer["ooms"] > 0
    assert answer["failed"][0]["rounded_bytes"] > answer["failed"][0]["largest_free_bytes"]
    code, text, _ = said(capsys, DEFAULT, "--cap", "1100MiB")
    assert code == 1
    assert "cap 1.1 GiB" in text
    assert "ran out of memory" in text
    assert "largest usable free block" in text


def test_a_cap_that_the_recording_kept_is_taken_for_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer = replay(capsys, DEFAULT, "--cap", "100GiB")
    assert code == 0
    assert answer["recorded_settings"]
    assert answer["cap_bytes"] == 100 << 30


def test_people_read_a_table_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = said(capsys, DEFAULT, "--alloc-conf", "expandable_segments:True")
    assert code == 0
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["settings", "peak", "allocated", "peak"]
    assert lines[1].startswith("as recorded: torch's defaults")
    assert lines[2].startswith("expandable_segments:True")
    assert "34,654 events of torch 2.11.0+cu130 replayed as recorded: every address matches." in text
    assert "The second row is a simulation" in text


def test_a_lost_beginning_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = said(capsys, str(SNAPSHOTS / "expandable_ring.pickle.gz"))
    assert "The beginning of the recording is missing" in text
    _, answer = replay(capsys, str(SNAPSHOTS / "expandable_ring.pickle.gz"))
    assert not answer["complete"]


def test_addresses_find_the_torch_that_nobody_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A snapshot without the keys that tell 2.12 from 2.13: under the wrong rule its addresses do not come back."""
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / "stacks.pickle.gz").read_bytes()))
    for key in ("max_round_threshold", "max_cached_size"):
        snapshot["allocator_settings"].pop(key, None)
    path = tmp_path / "unnamed.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    code, answer = replay(capsys, str(path), "--torch-version", "2.12.0")
    assert code == 1
    assert answer["address_mismatches"] > 0
    code, answer = replay(capsys, str(path))
    assert code == 0
    assert answer["address_mismatches"] == 0
    assert answer["torch_version"] == "2.13"
    assert "inferred from the addresses" in said(capsys, str(path))[1]


def test_a_model_that_lost_the_track_is_bad_news(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = said(capsys, str(SNAPSHOTS / "stacks.pickle.gz"), "--torch-version", "2.11.0")
    assert code == 1
    assert "addresses do not match, the first at event" in text
    assert "--torch-version" in text


def changed(tmp_path: Path, name: str, action: str) -> str:
    """A snapshot with the first event of an action renamed to one that nobody knows."""
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / f"{name}.pickle.gz").read_bytes()))
    next(entry for entry in snapshot["device_traces"][0] if entry["action"] == action)["action"] = "teleport"
    path = tmp_path / "changed.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return str(path)


def test_an_unknown_event_that_moves_no_address_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / "stacks.pickle.gz").read_bytes()))
    history = snapshot["device_traces"][0]
    history.insert(5, {**history[5], "action": "teleport"})
    path = tmp_path / "more.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    code, text, _ = said(capsys, str(path))
    assert code == 0
    assert "Ignored: 1 events of the unknown kind 'teleport'; every address matched without them." in text
    assert replay(capsys, str(path))[1]["skipped"] == {"events of the unknown kind 'teleport'": 1}


def test_no_figure_rests_on_an_unknown_event_that_matters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = said(capsys, changed(tmp_path, "stacks", "free_completed"))
    assert code == 2
    assert out == ""
    assert "does not fit" in err


def test_no_figure_rests_on_unknown_events_that_moved_addresses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The whole life of a block is told in words that nobody knows: nothing contradicts itself."""
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / "stacks.pickle.gz").read_bytes()))
    history = snapshot["device_traces"][0]
    address = next(entry["addr"] for entry in history if entry["action"] == "free_requested")
    for action in ("alloc", "free_requested", "free_completed"):
        entry = next(entry for entry in history if entry["action"] == action and entry["addr"] == address)
        entry["action"] = f"tele_{action}"
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    code, out, err = said(capsys, str(path))
    assert code == 2
    assert out == ""
    assert "1 events of the unknown kind 'tele_alloc'" in err
    assert "no figure would be worth anything" in err


@pytest.mark.parametrize(
    ("arguments", "said_of_it"),
    [
        ([DEFAULT, "--alloc-conf", "time_travel:True"], "time_travel"),
        ([DEFAULT, "--alloc-conf", "max_split_size_mb:1"], "max_split_size_mb"),
        ([str(SNAPSHOTS / "two_devices.pickle.gz")], "choose one with --device: 0 ("),
        ([str(SNAPSHOTS / "record.py")], "is neither a snapshot"),
        ([str(SNAPSHOTS / "missing")], "No such file"),
        ([str(SNAPSHOTS)], "Is a directory"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said_of_it: str
) -> None:
    code, out, err = said(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("tidegauge replay: ")
    assert said_of_it in err


def test_a_device_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [replay(capsys, str(SNAPSHOTS / "two_devices.pickle.gz"), "--device", str(n))[1] for n in (0, 1)]
    assert [answer["device"] for answer in answers] == [0, 1]
    assert answers[0]["events"] != answers[1]["events"]


def test_hostile_settings_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    snapshot = pickle.loads(gzip.decompress((SNAPSHOTS / "stacks.pickle.gz").read_bytes()))
    snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] = "pinned_use_background_threads:\x1b[2J"
    path = tmp_path / "hostile.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    _, out, err = said(capsys, str(path))
    assert "\x1b" not in out + err
