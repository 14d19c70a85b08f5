"""The truths of ``bench/fresh_programs`` can be read, and ``bench/watched_programs.py`` grades what is said by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fresh_leaks import HELPER, PROGRAMS, truth_of
from watched_programs import NOTHING, PARTLY, QUIET, RIGHT, SIN, WRONG, Result, Truth

from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.evidence.owners import CodeLine

TRUTHS = [truth_of(path) for path in sorted(PROGRAMS.glob("*.py")) if path.stem != HELPER]
TRUTH = Truth(
    "bank", False, frozenset({"bank.py:7"}), frozenset({"bank.py:9"}), ("Trainer.seen",), ("python_container",)
)
SAID = EvidenceBrief(
    "e1", 0, 1.0, line=CodeLine("/x/bank.py", 7, "step"), through=CodeLine("/x/bank.py", 9, "main"),
    holder="bank.py main(): trainer -> Trainer.seen (list, 9 items) -> Tensor[8] float32",
    cause=EvidenceCause.PYTHON_CONTAINER, confidence=Confidence.NAMED,
)  # fmt: skip
ELSEWHERE = CodeLine("/x/bank.py", 8, "step")


def result(*briefs: EvidenceBrief, truth: Truth = TRUTH) -> Result:
    return Result(truth, None, [], list(briefs), [], "leak", 0)


def test_enough_programs_leak_in_ways_that_the_causes_know() -> None:
    leaking = [truth for truth in TRUTHS if not truth.healthy]
    assert len(leaking) >= 32
    assert len(TRUTHS) - len(leaking) >= 10
    known = {cause.value for cause in EvidenceCause}
    assert [
        truth.name for truth in leaking if not (truth.lines and truth.holder and known.issuperset(truth.causes))
    ] == []


def test_what_is_marked_is_a_line_of_code() -> None:
    for truth in TRUTHS:
        lines = Path(PROGRAMS / f"{truth.name}.py").read_text("utf-8").splitlines()
        marked = [int(place.rpartition(":")[2]) for place in truth.lines | truth.callers]
        assert [at for at in marked if not lines[at - 1].split("#")[0].strip()] == [], truth.name


@pytest.mark.parametrize(
    ("brief", "word"),
    [
        (SAID, RIGHT),
        (SAID._replace(through=ELSEWHERE), RIGHT),
        (SAID._replace(line=ELSEWHERE), SIN),
        (SAID._replace(line=CodeLine("/x/loop.py", 7, "step"), confidence=Confidence.LIKELY), WRONG),
        (SAID._replace(cause=EvidenceCause.HOOK), SIN),
        (SAID._replace(holder="bank.py main(): bank -> Trainer.other (list, 9 items) -> Tensor[8] float32"), SIN),
        (SAID._replace(holder="tuple (2 items) -> Tensor[8] float32"), PARTLY),
        (SAID._replace(holder="no Python object found refers to 3 blocks, 1.0 MiB"), PARTLY),
        (SAID._replace(cause=EvidenceCause.UNKNOWN, confidence=Confidence.UNKNOWN), PARTLY),
        (SAID._replace(line=None), PARTLY),
    ],
)
def test_what_is_said_is_graded(brief: EvidenceBrief, word: str) -> None:
    assert result(brief).word() == word


def test_a_caller_is_graded_by_itself() -> None:
    assert result().grades(SAID)["caller"] is True
    assert result().grades(SAID._replace(through=ELSEWHERE))["caller"] is False
    assert result().grades(SAID._replace(through=SAID.line))["caller"] is None


def test_the_files_name_is_no_word_of_the_holder() -> None:
    truth = TRUTH._replace(holder=("bank",))
    assert result(truth=truth).grades(SAID)["holder"] is False


def test_one_wrong_and_named_piece_is_enough() -> None:
    assert result(SAID, SAID._replace(cause=EvidenceCause.HOOK)).word() == SIN


def test_no_evidence_is_nothing_and_a_healthy_program_is_quiet() -> None:
    assert result().word() == NOTHING
    assert result(truth=Truth("fine", healthy=True)).word() == QUIET
