from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tidegauge.cli.step_series import read_step_series

TEXT = "step,allocated,reserved\n1,10,20\n"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("text", ["\ufeff" + TEXT, TEXT.replace("\n", "\r\n")], ids=["byte order mark", "CRLF"])
def test_files_as_spreadsheets_write_them_are_read(tmp_path: Path, text: str, zipped: bool) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    (row,) = read_step_series(path)
    assert (row.step, row.allocated_bytes, row.reserved_bytes) == (1, 10, 20)
