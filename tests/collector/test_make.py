"""``make`` itself: what its recipes do once everything that they need is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.mark.parametrize(
    ("has_rig", "said"),
    [
        pytest.param(True, "layers, fast tests, smoke.", id="with a rig"),
        pytest.param(False, "layers, fast tests, but not smoke, for want of a rig.", id="without one"),
    ],
)
def test_make_test_ends_with_what_passed_and_the_further_tiers(has_rig: bool, said: str, tmp_path: Path) -> None:
    (rig := tmp_path / "rig").mkdir()
    if has_rig:
        (rig / ".made").touch()
    # ``-o`` takes the tests themselves as made.
    result = subprocess.run(
        ["make", "-o", "check", "-o", "smoke", f"RIG={rig}", "test"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert said in result.stdout
    assert "make test-all" in result.stdout
