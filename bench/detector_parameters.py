"""Writes the tables of parameters and causes in docs/detector.md from the code (values, and docstrings as reasons).

python bench/detector_parameters.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

from tidegauge.core.detector import params
from tidegauge.core.detector.watch import CAUSES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "detector.md"


def reasons() -> dict[str, str]:
    """Attribute docstrings of `Params`, which Python itself does not keep."""
    (table,) = (node for node in ast.parse(inspect.getsource(params)).body if isinstance(node, ast.ClassDef))
    found = {}
    for field, below in zip(table.body, table.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def between(text: str, name: str, lines: list[str]) -> str:
    """`text` with what is between the markers of that name replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = text.split(begin)
    return "\n".join([before + begin, *lines, end + rest.split(end)[1]])


def main() -> None:
    why = reasons()
    fields = dataclasses.fields(params.Params)
    rows = [f"| `{field.name}` | {getattr(params.DEFAULT, field.name):g} | {why[field.name]} |" for field in fields]
    text = between(PAGE.read_text(), "parameters", ["| parameter | value | meaning, and why |", "|---|---|---|", *rows])
    causes = [f"| `{cause}` | {meaning} |" for cause, meaning in CAUSES.items()]
    PAGE.write_text(between(text, "causes", ["| cause | meaning |", "|---|---|", *causes]))


if __name__ == "__main__":
    main()
