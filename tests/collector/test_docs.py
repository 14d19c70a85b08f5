"""The pages tell the truth that a machine can check: generated pages are current, links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("*", "deploy/**", "examples/*", "helm/*", "tests/*")
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(page for at in FOLDERS for page in ROOT.glob(f"{at}/README.md"))}
)
MAX_LINE_CHARS = 120
"""As of a line of code (pyproject.toml)."""
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")


def test_the_settings_page_is_up_to_date() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "generate_docs.py"))["settings_page"]()
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page, "run: make docs"


def test_the_table_of_causes_is_up_to_date() -> None:
    written = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(ROOT / "scripts" / "generate_docs.py"))["evidence_page"](written)
    assert written == page, "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert dead == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/kubernetes_*.md")), ids=lambda page: page.name)
def test_paragraphs_are_no_wider_than_code(page: Path) -> None:
    """Tables and examples are as wide as they are."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    assert [line for line in prose.splitlines() if len(line) > MAX_LINE_CHARS and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"\b((?:bench|scripts|tests/gpu)/[\w./-]+\.(?:py|sh))\b", text))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    targets = set(re.findall(r"`make (\w+)`", text))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [target for target in sorted(targets) if not re.search(rf"^{target}:", makefile, re.M)] == []
