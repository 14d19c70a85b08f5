"""Evidence and snapshots that earlier probes and agents wrote, read by this version; and such of a newer one."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

import upgrade_fixtures as fixtures
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.growth.diff import compare
from tidegauge.analysis.snapshots.reading import read_snapshot
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.evidence.rank_evidence import RankEvidence
from tidegauge.core.wire import from_wire
from upgrade_fixtures import WITH_EVIDENCE


@pytest.fixture(params=WITH_EVIDENCE)
def folder(request: pytest.FixtureRequest) -> Path:
    return fixtures.FOLDER / str(request.param) / "evidence"


def snapshots(folder: Path) -> tuple[Trace, Trace]:
    """The early and the late one, as the rank wrote them."""
    return trace_of(folder / "rank.early.snap"), trace_of(folder / "rank.late.snap")


def trace_of(path: Path) -> Trace:
    """Of the rank's first device."""
    return read_snapshot(path).traces[0]


def test_upgrade_reads_old_rank_evidence(folder: Path) -> None:
    evidence = from_wire(RankEvidence, json.loads((folder / "rank.evidence.json").read_text()))
    assert evidence.search is not None
    assert "kept" in evidence.search.holders[0].path


def test_its_snapshots_are_compared_and_name_the_line(folder: Path) -> None:
    early, late = snapshots(folder)
    comparison = compare(early, late)
    assert comparison.grown_bytes > 0
    line = comparison.lines[0].line
    assert line is not None
    assert Path(line.filename).name == "train.py"


def test_upgrade_reads_old_stored_snapshots(folder: Path) -> None:
    stored = sorted(folder.glob("*.snap.zst"))
    assert len(stored) >= 2
    for path in stored:
        assert trace_of(path).end


def test_upgrade_ignores_unknown_fields_of_newer_rank_evidence(folder: Path) -> None:
    raw = json.loads((folder / "rank.evidence.json").read_text())
    assert from_wire(RankEvidence, {**raw, "weather": {"sun": True}}) == from_wire(RankEvidence, raw)


def test_a_snapshot_of_a_newer_form_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    content = bytearray(zlib.decompress((folder / "rank.late.snap").read_bytes()))
    assert content[:8] == b"TGSNAP\x01\n"
    content[6] = 3
    newer = tmp_path / "newer.snap"
    newer.write_bytes(zlib.compress(bytes(content)))
    with pytest.raises(BadTraceError, match="version 3"):
        read_snapshot(newer)
