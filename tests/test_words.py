"""``docs/glossary.md`` and the code: one word has one meaning, and retired names stay retired."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("collector", "exporter", "scheduler_hooks")
GLOSSARY = ROOT / "docs" / "glossary.md"
HOMONYMS = frozenset({"TidegaugeCallback"})
"""Two callbacks of two frameworks, each the one of its integration."""
KEPT = {"tidegauge/integrations/callback_guard.py", "tidegauge/probe/holders/looks.py"}


def modules() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def retired() -> set[str]:
    """The names in the first column of the last table."""
    table = GLOSSARY.read_text("utf-8").partition("## Retired names")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def classes(path: Path) -> list[str]:
    return [node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]


def test_glossary_names_retired_words() -> None:
    assert {"Told", "sightings", "OrderDesk", "Notebook"} <= retired()


def test_retired_names_are_the_name_of_no_class_and_no_module() -> None:
    names = retired()
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules()
        for name in (path.stem, path.parent.name, *classes(path))
        if name.lstrip("_") in names and not str(path).endswith(tuple(KEPT))
    ]
    assert found == []


def test_public_class_names_stand_for_one_class() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for name in classes(path):
            if not name.startswith("_") and name not in HOMONYMS:
                homes[name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_folders_show_at_most_two_dozen_modules() -> None:
    counts: dict[Path, int] = defaultdict(int)
    for path in modules():
        counts[path.parent.relative_to(ROOT)] += 1
    assert {str(folder): count for folder, count in counts.items() if count > 24} == {}


def test_bounds_are_named_max_or_min() -> None:
    bounds = {
        f"{path.relative_to(ROOT)}: {name.id}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    assert bounds, "no assignment was found"
    superlative = re.compile(r": _?(\w+_)?(MOST|LONGEST|LEAST|FEWEST|SHORTEST|SMALLEST)(_\w+)?$")
    assert [name for name in sorted(bounds) if superlative.search(name)] == []


def test_pages_name_no_class_or_module_by_a_retired_name() -> None:
    names = {name for name in retired() if name[0].isupper() or "_" in name} | {"beginnings", "sightings"}
    pages = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != GLOSSARY)]
    found = [
        f"{page.name}: {name}"
        for page in pages
        for quoted in re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))
        for name in re.findall(r"\w+", quoted)
        if name in names
    ]
    assert found == []
