"""``tidegauge oom`` on public error texts of all PyTorch versions since 1.0, against truth by hand.

tests/data/oom_texts/README.md says what the truth of a text consists of.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tidegauge.cli.errors import FINE, USAGE
from tidegauge.cli.main import main

TEXTS = json.loads((Path(__file__).parents[2] / "data" / "oom_texts" / "public.json").read_text())
NONE, UNKNOWN = "none", "unknown"
RIGHT_OR_UNKNOWN, RIGHT = 0.95, 0.9
CERTAIN_WRONG_KINDS = ("neighbour", "fragmentation", "cap")
"""Kinds that were asserted of texts that do not prove them."""


class Judged(NamedTuple):
    source: str
    kind: str
    right: bool
    problem: str


def judge(entry: dict[str, Any], directory: Path, capsys: pytest.CaptureFixture[str]) -> Judged:
    path = directory / "log"
    path.write_text(entry["text"] + "\n")
    code = main(["oom", str(path), "--json"])
    said = capsys.readouterr()
    assert code in (FINE, USAGE), said.err
    answer: dict[str, Any] = json.loads(said.out) if code == FINE else {"kind": NONE, "sentence": "", "advice": []}
    words = " ".join([answer["sentence"], *answer["advice"]])
    truth: dict[str, list[str]] = entry["truth"]
    problems = [f"is not {' or '.join(truth['kinds'])}"] if answer["kind"] not in truth["kinds"] else []
    problems += [f"does not say {part!r}" for part in truth["must"] if part not in words]
    problems += [f"says {part!r}" for part in truth["must_not"] if part in words]
    return Judged(entry["source"], answer["kind"], not problems, "; ".join(problems))


@pytest.fixture
def judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[Judged]:
    return [judge(entry, tmp_path, capsys) for entry in TEXTS]


def test_the_corpus_is_large_and_each_text_has_a_source() -> None:
    assert len(TEXTS) >= 100
    assert len({entry["source"] for entry in TEXTS}) == len(TEXTS)
    assert all(entry["source"].startswith("https://") for entry in TEXTS)


def test_public_texts_are_explained_rightly_or_not_at_all(judged: list[Judged]) -> None:
    wrong = [f"{one.source}: {one.kind}: {one.problem}" for one in judged if not one.right and one.kind != UNKNOWN]
    right = sum(one.right for one in judged)
    assert 1 - len(wrong) / len(judged) >= RIGHT_OR_UNKNOWN, "\n".join(wrong)
    assert right / len(judged) >= RIGHT, "\n".join(wrong)


def test_no_public_text_is_told_a_certainty_that_it_does_not_prove(judged: list[Judged]) -> None:
    wrong = [one for one in judged if not one.right and one.kind in CERTAIN_WRONG_KINDS]
    assert wrong == []
