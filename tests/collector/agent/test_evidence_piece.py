"""Whoever puts evidence together, nothing in it commands a terminal: names, causes, problems."""

from __future__ import annotations

import argparse
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from evidence_values import evidence as some_evidence
from fake_node import PID
from rank_windows import MIB, compressed, packed, put, window
from tidegauge.agent.evidence.piece import Whose, evidence_of
from tidegauge.analysis.growth.diff import compare
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.reading import read_bytes
from tidegauge.cli.report.files import content_of_files
from tidegauge.core import wire
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.evidence import MAX_FRAMES, MAX_GROWTHS, Evidence, PrivatePools, brief_of
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.owners import CodeLine, CodeRoots
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS, Holder, HolderKind, HolderSearch
from tidegauge.core.evidence.words import evidence_sentence, holder_sentence
from tidegauge.core.ids import JobKey
from tidegauge.core.verdicts import LeakState, Signal, Verdict

EVIL = "/home/ada/\x1b]0;owned\x07\u202e\r\ntrain.py"
LONG = "f" * 5000
HOSTILE = (CodeLine(EVIL, 41, LONG), *(CodeLine(EVIL, line, "g") for line in range(200)))


def piece_of(*stack: CodeLine, roots: CodeRoots | None = None) -> Evidence:
    """Evidence of a list that gained 39 blocks from one stack."""
    traces = [from_packed(packed([(MIB, stack)] * n, step=n)).traces[0] for n in (1, 40)]
    whose = Whose(JobKey("job-1", 0, 1001), 0, "node-a", PID)
    found = replace(window(PID), roots=roots)
    return evidence_of(whose, found, compare(*traces, roots=roots), early_step=104, late_step=134, at_unix_s=1.0)


def test_the_caller_of_the_line_that_allocates_everything_is_named() -> None:
    forward, main = CodeLine("/home/ada/dcgan.py", 158, "forward"), CodeLine("/home/ada/dcgan.py", 261, "main")
    piece = piece_of(forward, main)
    assert (piece.growth[0].line, piece.through) == (forward, main)
    assert brief_of(piece).through == main
    assert piece_of(main).through == main


def test_lines_of_a_source_checkout_are_not_the_users_where_the_probe_said_so() -> None:
    trainer = CodeLine("/opt/transformers/src/transformers/trainer.py", 2164, "compute_loss")
    script = CodeLine("/home/ada/torch/train.py", 11, "compute_loss")
    roots = CodeRoots(libraries=("/opt/transformers/",), own=("/home/ada/torch/",))
    assert piece_of(trainer, script, roots=roots).growth[0].line == script
    assert piece_of(trainer, script).growth[0].line == trainer


def two_lines(holder: Holder) -> Evidence:
    """Evidence of 30 steps, each of which leaves 4 MiB of one line and a MiB of another behind."""
    stacks = [(4 * MIB, (LARGE,)), (MIB, (SMALL,))]
    traces = [from_packed(packed(stacks * n, step=n)).traces[0] for n in (1, 31)]
    found = replace(window(PID), search=HolderSearch((NATIVE, holder), 150 * MIB, 30 * MIB, problem="cut short"))
    whose = Whose(JobKey("job-1", 0, 1001), 0, "node-a", PID)
    return evidence_of(whose, found, compare(*traces), early_step=1, late_step=31, at_unix_s=1.0)


LARGE, SMALL = CodeLine("/home/ada/train.py", 9, "forward"), CodeLine("/home/ada/train.py", 41, "step")
NATIVE = Holder(HolderKind.NATIVE, "no Python object found refers to 30 blocks", 120 * MIB, 30)


def test_the_line_that_is_told_allocated_what_the_holder_holds() -> None:
    early = from_packed(packed([(4 * MIB, (LARGE,)), (MIB, (SMALL,))] * 31, step=31)).traces[0]
    small = [block.address for segment in early.end or () for block in segment.blocks if block.size_bytes == MIB]
    losses = Holder(HolderKind.CONTAINER, "train.py: losses (list, 114 items) -> Tensor[8]", 30 * MIB, 30,
                    "losses", container="list", items=114, blocks=tuple(small[1:]))  # fmt: skip
    piece = two_lines(losses)
    assert piece.growth[0].line == SMALL
    assert piece.search is not None
    assert piece.search.holders == (losses._replace(blocks=()), NATIVE)
    assert (piece.cause.cause, piece.cause.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)
    assert (brief_of(piece).line, brief_of(piece).holder) == (SMALL, losses.path)
    assert "held by train.py: losses" in evidence_sentence(piece)


def test_what_nothing_of_pythons_holds_is_no_holder() -> None:
    piece = two_lines(NATIVE._replace(held_bytes=30 * MIB))
    assert (piece.growth[0].line, brief_of(piece).holder) == (LARGE, None)
    assert "it is held by" not in evidence_sentence(piece)
    assert "no Python object found refers to 30 blocks" in evidence_sentence(piece)
    assert piece.search is not None
    assert holder_sentence(piece.search) == "No Python object found refers to 30 blocks."


def test_a_search_that_did_not_end_says_so_beside_what_it_found() -> None:
    assert "the holder search is incomplete: cut short" in two_lines(NATIVE).problems


def test_a_search_that_was_cut_short_or_failed_is_worth_another_try() -> None:
    cut = HolderSearch((NATIVE,), 150 * MIB, 30 * MIB, problem="cut short", unfinished=True)
    whose, base = Whose(JobKey("job-1", 0, 1001), 0, "node-a", PID), window(PID)
    tries = [replace(base, search=cut), replace(base, search_failed=True), replace(base, search=HolderSearch())]
    pieces = [evidence_of(whose, found, None, at_unix_s=1.0) for found in tries]
    assert [(piece.unfinished, brief_of(piece).unfinished) for piece in pieces] == [
        (True,) * 2,
        (True,) * 2,
        (False,) * 2,
    ]


def hostile(blocks: int, step: int, kinds: int = 1) -> bytes:
    """A snapshot in which so many kinds of blocks come from lines of which every name is an attack."""
    stacks = [(MIB, (CodeLine(EVIL, 1000 + kind, LONG), *HOSTILE)) for kind in range(kinds)]
    return compressed(packed([one for one in stacks for _ in range(blocks)], step=step))


def check_tame(evidence: Evidence) -> None:
    text = wire.to_json(evidence).decode()
    assert "train.py" in text
    assert [mark for mark in MARKS if mark in text] == []
    assert max((len(one.stack) for one in evidence.growth), default=0) <= MAX_FRAMES
    assert LONG[:MAX_TEXT_CHARS] not in text
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


def torchs_snapshot(graphs: int, pieces: int = 0, *, expandable: bool = False) -> Trace:
    """As torch writes it of a job that has recorded so many CUDA graphs, each with a pool of its own, of which nothing
    but the result is in use; and so many free pieces beside them."""
    pools = [(0, 0)] * (1 + pieces) + [(number + 1, 0) for number in range(graphs)]
    segments, events = [], []
    for number, pool in enumerate(pools):
        address, live = number * 64 * MIB + 4096, 18 * MIB if number == 0 else MIB
        frames = [{"name": "step", "filename": "/home/ada/train.py", "line": 41}]
        blocks = [
            {"address": address, "size": live, "requested_size": live, "state": "active_allocated", "frames": frames},
            {
                "address": address + live,
                "size": 20 * MIB - live,
                "requested_size": 1,
                "state": "inactive",
                "frames": [],
            },
        ]
        segments.append({
            "device": 0, "address": address, "total_size": 20 * MIB, "allocated_size": live, "active_size": live,
            "requested_size": live, "stream": 0, "segment_type": "large", "segment_pool_id": pool,
            "is_expandable": expandable, "frames": [], "blocks": blocks,
        })  # fmt: skip
        line = {"name": "f", "filename": "/home/ada/data.py", "line": 7}
        if pool != (0, 0):
            line = {"name": "capture", "filename": f"/home/ada/{EVIL}", "line": 18 + number % 3 // 2}
        events.append({
            "action": "segment_map" if expandable else "segment_alloc", "addr": address, "size": 20 * MIB, "stream": 0,
            "time_us": number, "frames": [line],
        })  # fmt: skip
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": expandable}
    whole = {
        "segments": segments,
        "device_traces": [events],
        "allocator_settings": settings,
        "external_annotations": [],
    }
    return read_bytes(pickle.dumps(whole)).traces[0]


GROWS = CauseInput(verdict=Verdict(LeakState.LEAK, signal=Signal.RESERVED, grown_bytes=400 * MIB))


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize(
    ("early", "late", "cause"),
    [
        ((20, 3), (28, 4), EvidenceCause.CUDA_GRAPHS),
        ((28, 3), (28, 3), EvidenceCause.CUDA_GRAPHS),
        ((3, 20), (4, 28), EvidenceCause.FRAGMENTATION),
        ((0, 20), (0, 28), EvidenceCause.FRAGMENTATION),
        ((28, 28), (28, 28), EvidenceCause.UNKNOWN),
    ],
    ids=["graphs", "graphs, none within the window", "pieces beside graphs", "pieces", "either"],
)
def test_growth_in_private_pools_is_never_called_fragmentation(
    early: tuple[int, int], late: tuple[int, int], cause: EvidenceCause, expandable: bool
) -> None:
    traces = [torchs_snapshot(*one, expandable=expandable) for one in (early, late)]
    whose = Whose(JobKey("job-1", 0, 1001), 0, "node-a", PID)
    piece = evidence_of(
        whose, window(PID), compare(*traces), beside=GROWS, early_step=104, late_step=134, at_unix_s=1.0
    )  # fmt: skip
    assert piece.cause.cause is cause
    assert piece.late_pools == PrivatePools(late[0], late[0] * 20 * MIB, late[0] * MIB)
    if cause is EvidenceCause.CUDA_GRAPHS:
        assert "train.py:18 in capture" in (piece.cause.advice or "")
        check_tame(piece)
    assert wire.from_wire(Evidence, json.loads(wire.to_json(piece))) == piece


def test_a_report_of_files_is_made_of_tame_names(tmp_path: Path) -> None:
    early = put(tmp_path, "early.snap", hostile(1, 104, kinds=30))
    late = put(tmp_path, "late.snap", hostile(9, 134, kinds=30))
    found = put(tmp_path, "rank.evidence.json", wire.to_json(replace(window(PID), problem=EVIL)))
    args = argparse.Namespace(device=None, capacity_bytes=None, no_whatif=True)
    content = content_of_files([early, late, found], args, now_unix_s=1.7e9)
    assert content.evidence is not None
    assert len(content.evidence.growth) > MAX_GROWTHS, "of files all is shown"
    check_tame(content.evidence)
