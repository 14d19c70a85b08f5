"""``tests/examples.py``: which examples a property test is given."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import PROFILE


@pytest.mark.skipif(not settings.get_profile(PROFILE).derandomize, reason="this profile thinks of new examples")
def test_examples_do_not_depend_on_which_modules_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []

    @settings(max_examples=300)
    @given(st.integers(), st.floats())
    def collect(number: int, fraction: float) -> None:
        seen.append((number, fraction))

    collect()
    before = list(map(repr, seen))
    seen.clear()
    (tmp_path / "many_constants.py").write_text(f"NUMBERS = {list(range(10**6, 10**6 + 500))}\nPART = 0.123456789\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("many_constants")
    try:
        collect()
    finally:
        del sys.modules["many_constants"]
    assert list(map(repr, seen)) == before
