"""``bench/public_programs.py`` plants leaks where it says, or not at all; no public program is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest
from public_programs import CASES, COMMIT, REPOSITORIES, Edit, Spot, bring, edit, places_of
from watched_programs import FAILED, QUIET, Result, Truth

from tidegauge.core.evidence.brief import EvidenceCause

PROGRAM = "def main():\n    for batch in data:\n        step(batch)\n        log(loss.item())\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    return tmp_path


def changed(folder: Path, one: Edit) -> str:
    edit(folder, one)
    return (folder / "train.py").read_text(encoding="utf-8")


def test_enough_programs_run_healthy_and_enough_leak() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.healthy for case in CASES) >= 10
    assert sum(not case.healthy for case in CASES) >= 14


@pytest.mark.parametrize("case", [case for case in CASES if not case.healthy], ids=lambda case: case.name)
def test_of_a_leak_the_truth_is_known(case: object) -> None:
    assert isinstance(case, type(CASES[0]))
    known = {cause.value for cause in EvidenceCause}
    assert case.host_process or (case.holder and case.causes and known.issuperset(case.causes))
    assert case.seconds is not None


def test_a_leak_gets_the_indentation_of_its_anchor(folder: Path) -> None:
    one = Edit("train.py", r"^ +step\(", "\n            if batch:\n                kept.append(batch)  # LEAK\n")
    assert changed(folder, one) == PROGRAM.replace(
        "step(batch)\n", "step(batch)\n        if batch:\n            kept.append(batch)  # LEAK\n"
    )
    assert places_of(folder, [Spot("train.py", r"step\(")], "LEAK") == {"train.py:3", "train.py:5"}


def test_a_leak_may_stand_before_its_anchor_or_replace_a_part_of_it(folder: Path) -> None:
    assert changed(folder, Edit("train.py", "^def main", "kept = []", how="before")) == "kept = []\n" + PROGRAM
    swapped = changed(folder, Edit("train.py", r"loss\.item\(\)", "loss", how="swap"))
    assert swapped == "kept = []\n" + PROGRAM.replace("loss.item()", "loss")


@pytest.mark.parametrize("anchor", ["no such line", r"\("])
def test_nothing_runs_where_an_anchor_matches_otherwise(folder: Path, anchor: str) -> None:
    with pytest.raises(SystemExit, match="matches"):
        edit(folder, Edit("train.py", anchor, "kept = []"))
    with pytest.raises(SystemExit, match="matches"):
        places_of(folder, [Spot("train.py", anchor)], "LEAK")


def test_carried_sources_are_of_the_pinned_commit(tmp_path: Path) -> None:
    carried = tmp_path / "nanoGPT"
    carried.mkdir()
    (carried / COMMIT).write_text(REPOSITORIES["nanoGPT"].commit + "\n", encoding="utf-8")
    bring("nanoGPT", tmp_path, tmp_path / "into")
    assert (tmp_path / "into" / COMMIT).is_file()
    (carried / COMMIT).write_text("0" * 40, encoding="utf-8")
    with pytest.raises(SystemExit, match="not of"):
        bring("nanoGPT", tmp_path, tmp_path / "again")


def result(truth: Truth, *, own: int | None = None, steps: dict[int, int] | None = None, late: int = 0) -> Result:
    said = None if own is None else {"steps": own}
    return Result(truth, said, [], [], [], "ok", 0, steps or {}, late)


def test_steps_are_compared_with_the_programs_own() -> None:
    healthy = Truth("fine", healthy=True)
    assert result(healthy).steps_right is None
    assert result(healthy, own=7, steps={0: 7, 1: 7}).steps_right is True
    assert result(healthy, own=7, steps={0: 7, 1: 6}).steps_right is False
    assert result(healthy, own=7).steps_right is False
    assert result(healthy, own=7, steps={0: 8}, late=1).steps_right is True


def test_a_healthy_program_that_fails_is_not_quiet() -> None:
    healthy = result(Truth("fine", healthy=True))
    assert healthy.word() == QUIET
    assert healthy._replace(code=1).word() == FAILED
    assert healthy._replace(code=-15, asked_to_end=True).word() == QUIET
