"""What is committed of the page's script is what its sources give, byte for byte.

Skipped, in CI too, where node or npm's registry is not there: tests/exporter compares the sources with a digest.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import tidegauge_exporter

ROOT = Path(__file__).parents[3]
BUILT = Path(tidegauge_exporter.__file__).parent / "report_page" / "built"


@pytest.mark.timeout(300)
def test_a_build_gives_what_is_committed(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("no node here")
    build = subprocess.run(
        [ROOT / "scripts" / "build_report_page.sh", tmp_path], capture_output=True, text=True, timeout=280, check=False
    )
    if build.returncode and "npm error" in build.stderr:
        pytest.skip(f"npm cannot install the packages of the report's page: {build.stderr[-300:]}")
    assert build.returncode == 0, build.stderr
    names = sorted(path.name for path in BUILT.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (BUILT / name).read_bytes(), name
