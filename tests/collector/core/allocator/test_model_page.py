"""The demonstrations in docs/allocator_model.md run, and print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

PAGE = Path(__file__).parents[4] / "docs" / "allocator_model.md"
CODE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_demonstrations_print_what_the_page_says() -> None:
    blocks = CODE.findall(PAGE.read_text(encoding="utf-8"))
    printed = io.StringIO()
    names: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        for kind, text in blocks:
            if kind == "python":
                exec(compile(text, PAGE.name, "exec"), names)
    told = [text for kind, text in blocks if kind == "text"]
    assert len(told) == 3
    assert printed.getvalue() == "".join(told)
