"""Whoever puts evidence together, nothing in it commands a terminal: names, causes, problems."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from evidence_values import evidence as some_evidence
from fake_node import PID
from rank_windows import MIB, compressed, packed, put, window
from tidegauge.agent.evidence_piece import Whose, evidence_of
from tidegauge.analysis.diff import compare
from tidegauge.analysis.packed_snapshots import from_packed
from tidegauge.cli.report_files import content_of_files
from tidegauge.core import wire
from tidegauge.core.evidence import MOST_FRAMES, MOST_GROWTHS, Evidence
from tidegauge.core.incidents import JobKey
from tidegauge.core.owners import CodeLine
from tidegauge.core.rank_evidence import MOST_TEXT

EVIL = "/home/ada/\x1b]0;owned\x07\u202e\r\ntrain.py"
LONG = "f" * 5000
HOSTILE = (CodeLine(EVIL, 41, LONG), *(CodeLine(EVIL, line, "g") for line in range(200)))


def hostile(blocks: int, step: int, kinds: int = 1) -> bytes:
    """A snapshot in which so many kinds of blocks come from lines of which every name is an attack."""
    stacks = [(MIB, (CodeLine(EVIL, 1000 + kind, LONG), *HOSTILE)) for kind in range(kinds)]
    return compressed(packed([one for one in stacks for _ in range(blocks)], step=step))


def check_tame(evidence: Evidence) -> None:
    text = wire.to_json(evidence).decode()
    assert "train.py" in text
    assert [mark for mark in MARKS if mark in text] == []
    assert max((len(one.stack) for one in evidence.growth), default=0) <= MOST_FRAMES
    assert LONG[:MOST_TEXT] not in text
    for sentence in (evidence.cause.advice or "", *evidence.problems):
        assert sentence.isprintable()


MARKS = ("\\u001b", "\\u0007", "\\u202e", "\\r", "\\n", "\x1b", "\u202e")


def test_lines_of_a_comparison_are_tamed_wherever_it_is_made_to_evidence() -> None:
    traces = [from_packed(packed([(MIB, HOSTILE)] * n, step=n)).traces[0] for n in (1, 40)]
    whose = Whose(JobKey("job-1", 0, 1001), 0, "node-a", PID)
    piece = evidence_of(
        whose, window(PID), compare(*traces), early_step=104, late_step=134, at_unix_s=1.0, problems=[EVIL]
    )  # fmt: skip
    assert piece.through is not None
    assert piece.cause != some_evidence().cause
    check_tame(piece)


def test_a_report_of_files_is_made_of_tame_names(tmp_path: Path) -> None:
    early = put(tmp_path, "early.snap", hostile(1, 104, kinds=30))
    late = put(tmp_path, "late.snap", hostile(9, 134, kinds=30))
    found = put(tmp_path, "rank.evidence.json", wire.to_json(replace(window(PID), problem=EVIL)))
    args = argparse.Namespace(device=None, capacity_bytes=None, no_whatif=True)
    content = content_of_files([early, late, found], args, now_unix_s=1.7e9)
    assert content.evidence is not None
    assert len(content.evidence.growth) > MOST_GROWTHS, "of files all is shown"
    check_tame(content.evidence)
