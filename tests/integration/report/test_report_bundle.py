"""What is committed of the page's script is what its sources give, byte for byte.

Skipped, in CI too, where node or npm's registry was not there (`make report-packages`): tests/exporter compares the
sources with a digest.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tidegauge_exporter

ROOT = Path(__file__).parents[3]
PACKAGES = ROOT / "build" / "report_page" / "installed-lock.json"
BUILT = Path(tidegauge_exporter.__file__).parent / "reports" / "report_page" / "built"


@pytest.mark.timeout(300)
def test_a_build_gives_what_is_committed(tmp_path: Path) -> None:
    if not PACKAGES.exists():
        pytest.skip("the packages of the report's page are not here: make report-packages")
    build = subprocess.run(
        [ROOT / "scripts" / "build_report_page.sh", tmp_path], capture_output=True, text=True, timeout=280, check=False
    )
    assert build.returncode == 0, build.stderr
    names = sorted(path.name for path in BUILT.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (BUILT / name).read_bytes(), name
