"""``changelog.d``: each fragment has a name that towncrier reads, and is an entry of one or two lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FRAGMENTS = Path(__file__).parents[1] / "changelog.d"
NO_FRAGMENTS = {"README.md", "template.md"}
NAME = re.compile(r"\d+\.(added|changed|fixed|removed)(\.\d+)?\.md")
MAX_CHARACTERS = 240


def complaints(folder: Path) -> list[str]:
    """What is wrong with the fragments of a folder, by file."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name in NO_FRAGMENTS:
            continue
        if not NAME.fullmatch(path.name):
            found.append(f"{path.name}: not ISSUE.KIND[.N].md, kind added, changed, fixed or removed")
            continue
        characters = len(path.read_text("utf-8").strip())
        if not 1 <= characters <= MAX_CHARACTERS:
            found.append(f"{path.name}: {characters} characters, not 1 to {MAX_CHARACTERS}")
    return found


def test_fragments_have_a_known_kind_and_a_line_or_two() -> None:
    assert complaints(FRAGMENTS) == []


@pytest.mark.parametrize("name", ["19.fixed.md", "20.added.12.md", "3.changed.1.md", "7.removed.md"])
def test_fragment_of_each_kind_is_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x" * MAX_CHARACTERS + "\n", "utf-8")
    assert complaints(tmp_path) == []


@pytest.mark.parametrize("name", ["19.md", "19.broken.md", "fixed.md", "+.fixed.md", "19.fixed.1", "19.fixed.a.md"])
def test_fragment_with_another_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("Agent: fewer polls.\n", "utf-8")
    assert complaints(tmp_path) == [f"{name}: not ISSUE.KIND[.N].md, kind added, changed, fixed or removed"]


@pytest.mark.parametrize("characters", [0, MAX_CHARACTERS + 1])
def test_fragment_that_is_empty_or_long_is_refused(tmp_path: Path, characters: int) -> None:
    (tmp_path / "19.fixed.md").write_text("x" * characters + "\n", "utf-8")
    assert complaints(tmp_path) == [f"19.fixed.md: {characters} characters, not 1 to 240"]
