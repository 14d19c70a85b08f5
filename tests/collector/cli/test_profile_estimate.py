"""``tidegauge profile FILE --estimate FILE``: an estimate beside the profile of the same job, in one vocabulary."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from estimates import BREAKDOWN, ESTIMATE, MIB
from rank_profiles import STEADY, steady_profile
from tidegauge.cli.main import main
from tidegauge.cli.profile.estimated import FREE, OUTSIDE, against_estimate, categories_of
from tidegauge.core.profile.categories import Category
from tidegauge.core.wire import to_wire


@pytest.fixture
def estimate(tmp_path: Path) -> str:
    file = tmp_path / "estimate.json"
    file.write_text(json.dumps(to_wire(ESTIMATE)), encoding="utf-8")
    return str(file)


def test_every_part_of_an_estimate_is_told_once() -> None:
    parts = {name: at + 1 for at, name in enumerate(BREAKDOWN._fields)}
    numbered = BREAKDOWN._replace(**parts)
    assert sum(categories_of(numbered).values()) == sum(numbered) - sum(numbered[-3:])
    words = [category.value.replace(" ", "_") for category in categories_of(numbered)]
    assert words == list(BREAKDOWN._fields[:-3]), "the same words"


def test_the_parts_add_up_to_both_reserved_peaks() -> None:
    profile = steady_profile()
    found = against_estimate(ESTIMATE, profile)
    assert sum(one.estimate_bytes for one in found) == ESTIMATE.peak_reserved_bytes
    assert sum(one.profile_bytes for one in found) == profile.reserved_bytes
    by_part = {one.part: one for one in found}
    assert by_part["optimizer state"].estimate_bytes == 1000 * MIB
    assert by_part["optimizer state"].profile_bytes == profile.peak.by_category[Category.OPTIMIZER_STATE]
    assert by_part[FREE].difference_bytes == by_part[FREE].profile_bytes - 335 * MIB
    assert OUTSIDE not in by_part


def test_memory_outside_pytorch_is_compared_where_it_is_known() -> None:
    *_, last = against_estimate(ESTIMATE, steady_profile(), 700 * MIB)
    assert (last.part, last.estimate_bytes, last.profile_bytes) == (OUTSIDE, 762 * MIB, 700 * MIB)


def test_buffers_count_to_parameters_where_the_profile_does_not_tell_them() -> None:
    with_buffers = replace(ESTIMATE, breakdown=BREAKDOWN._replace(buffers=8 * MIB, allocator=327 * MIB))
    found = {one.part: one.estimate_bytes for one in against_estimate(with_buffers, steady_profile())}
    assert (found["parameters"], "buffers" in found) == (508 * MIB, False)
    held = {**steady_profile().peak.by_category, Category.BUFFERS: 0}
    told = replace(steady_profile(), peak=steady_profile().peak._replace(by_category=held))
    found = {one.part: one.estimate_bytes for one in against_estimate(with_buffers, told)}
    assert (found["parameters"], found["buffers"]) == (500 * MIB, 8 * MIB)


def test_a_table_has_both_side_by_side(estimate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(STEADY), "--estimate", estimate]) == 0
    printed = capsys.readouterr().out
    table = [" ".join(row.split()) for row in printed[printed.index("Estimate and profile") :].splitlines()]
    assert table[1:3] == ["part estimate profile difference", "parameters 500.0 MiB 22.1 MiB -477.9 MiB"]
    assert table[-1] == "peak reserved 3.9 GiB 308.0 MiB -3.6 GiB"


def test_as_json_it_has_both(estimate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(STEADY), "--estimate", estimate, "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["estimate"]
    assert parts[0] == {
        "part": "parameters",
        "estimate_bytes": 500 * MIB,
        "profile_bytes": steady_profile().peak.by_category[Category.PARAMETERS],
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (
            "{}",
            "this is no estimate; --estimate takes what `tidegauge estimate --json` prints: it has no 'breakdown'\n",
        ),
        ('{"trials": []}', "takes what `tidegauge estimate --json` prints: it has no 'breakdown'\n"),
        ("[[", "this is no estimate"),
        ("[" * 9999, "no estimate"),
    ],
)
def test_what_is_no_estimate_is_refused(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main(["profile", str(STEADY), "--estimate", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_an_estimate_goes_beside_one_profile(estimate: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "diff", str(STEADY), str(STEADY), "--estimate", estimate]) == 2
    assert "--estimate goes beside one profile" in capsys.readouterr().err
