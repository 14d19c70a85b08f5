"""Every answer that a real server once gave is asked for by a test of the contract suite."""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
RECORD = json.loads((FOLDER.parents[1] / "data" / "kubernetes" / "real_answers.json").read_text(encoding="utf-8"))


@cache
def names_in(module: str) -> frozenset[str]:
    parsed = ast.parse((FOLDER / module).read_text(encoding="utf-8"))
    return frozenset(each.name for each in parsed.body if isinstance(each, ast.FunctionDef))


@pytest.mark.parametrize("answer", RECORD["answers"], ids=lambda answer: answer["asked"])
def test_a_recorded_answer_is_asked_for(answer: dict[str, str]) -> None:
    module, _, name = answer["test"].partition("::")
    assert name in names_in(module)
