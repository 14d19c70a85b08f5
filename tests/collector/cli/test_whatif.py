from __future__ import annotations

import argparse
import json
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidegauge.analysis.whatif.results import titled
from tidegauge.cli.errors import BAD_NEWS, FINE, USAGE, CommandError
from tidegauge.cli.offline import whatif
from tidegauge.core.allocator.trace import Action
from trace_files import write_npz_trace
from whatif_worlds import MIB, Event, alloc, free, trace_of

FIXED_KEYS = {
    "events", "peak_allocated_bytes", "peak_reserved_bytes", "address_mismatches", "alloc_retries", "ooms", "segments",
}  # fmt: skip


def growing_buffers() -> Iterator[Event]:
    """A buffer that is made anew, 4 MiB larger each time: no cached block ever fits, unless segments can grow."""
    base = 1 << 40
    for number in range(8):
        size = (20 + 4 * number) * MIB
        yield Event(Action.SEGMENT_ALLOC, base, size)
        yield from alloc(base, size)
        yield from free(base, size)
        base += 1 << 30


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "job; echo.npz"
    events = list(growing_buffers())
    trace = replace(trace_of(events), time_us=array("q", range(len(events))))
    path.write_bytes(write_npz_trace(trace))
    return path


def run(*argv: object) -> int:
    parser = argparse.ArgumentParser()
    whatif.prepare_parser(parser)
    return whatif.run(parser.parse_args(list(map(str, argv))))


def answer(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, object]]:
    run(*argv, "--json")
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


def test_the_settings_are_listed_best_first_with_the_fixed_keys(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, recording)
    assert all(row.keys() >= FIXED_KEYS for row in rows)
    peaks = [row["peak_reserved_bytes"] for row in rows]
    assert peaks == sorted(peaks, key=lambda peak: int(str(peak)))
    assert sum(row["today"] is True for row in rows) == 1
    (advised,) = (row for row in rows if row["recommended"])
    assert advised["alloc_conf"] == "expandable_segments:True"
    assert advised["peak_reserved_bytes"] == 60 * MIB


def test_addresses_are_compared_where_they_were_recorded_only(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, recording)
    assert [row["address_mismatches"] for row in rows if row["today"]] == [0]
    assert {row["address_mismatches"] for row in rows if not row["today"]} == {None}


def test_people_get_a_table_the_reasons_and_the_line_to_use(
    recording: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegauge.cli.offline.whatif.PROGRESS_EVERY_S", 0.0)
    assert run(recording) == FINE
    told, progress = capsys.readouterr()
    assert "expandable_segments:True <- best" in told
    assert "torch's defaults (today)" in told
    assert "    export PYTORCH_ALLOC_CONF=expandable_segments:True\n" in told
    assert "trying setting 2: " in progress


def test_a_cap_that_no_setting_survives_is_bad_news(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recording, "--cap", "30MiB") == BAD_NEWS
    told = capsys.readouterr().out
    assert "No setting helps: allocated memory itself is the problem" in told
    assert "export" not in told
    assert "<- best" not in told


def test_a_cap_is_fine_where_one_setting_survives_it(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recording, "--cap", "64MiB") == FINE
    assert "of 64.0 MiB allowed" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_the_plot_shows_today_and_the_two_best(
    recording: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / f"plot.{suffix}"
    assert run(recording, "--plot", plot) == FINE
    text = plot.read_text()
    assert "reserved, today: torch&#x27;s defaults" in text
    assert "reserved, best: expandable_segments:True" in text
    assert "reserved, next: " in text
    assert str(plot) in capsys.readouterr().err


def test_a_plot_that_cannot_be_drawn_is_refused_before_the_work(recording: Path) -> None:
    with pytest.raises(CommandError, match=r"must end in \.svg or \.html") as refused:
        run(recording, "--plot", "plot.png")
    assert refused.value.exit_code == USAGE


def test_whatif_refuses_a_file_that_is_no_trace_by_name(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("loss 0.1\n")
    with pytest.raises(CommandError, match=r"log\.txt") as refused:
        run(path)
    assert refused.value.exit_code == USAGE


def test_settings_that_this_torch_would_refuse_are_told(recording: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.npz"
    trace = trace_of(growing_buffers(), alloc_conf="large_segment_size_mb:64", torch_version="2.4.1")
    path.write_bytes(write_npz_trace(replace(trace, time_us=array("q", range(len(trace))))))
    with pytest.raises(CommandError, match=r"torch 2\.4\.1 has no allocator setting 'large_segment_size_mb'"):
        run(path)


def test_whatif_strips_control_characters_of_recorded_settings() -> None:
    assert titled("expandable_segments:True\x1b[2J\n") == "expandable_segments:True?[2J?"


def test_a_file_that_cannot_be_replayed_is_named_and_its_words_reach_no_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31mjob.npz"
    path.write_bytes(write_npz_trace(replace(trace_of(list(growing_buffers())), alloc_conf="\x1b]0;x\x07:1")))
    with pytest.raises(CommandError, match=r"job\.npz: ") as failed:
        run(path)
    assert str(failed.value).isprintable()
    assert failed.value.exit_code == USAGE
