from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tidegauge.cli.offline.step_series import MAX_LINE_CHARS, BadSeriesError, read_step_series

TEXT = "step,allocated,reserved\n1,10,20\n"


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("text", ["\ufeff" + TEXT, TEXT.replace("\n", "\r\n")], ids=["byte order mark", "CRLF"])
def test_files_as_spreadsheets_write_them_are_read(tmp_path: Path, text: str, zipped: bool) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    (row,) = read_step_series(path)
    assert (row.step, row.allocated_bytes, row.reserved_bytes) == (1, 10, 20)


@pytest.mark.parametrize("name", ["peak_alocated", "inactive_split_bytes", "nvml_proces", "host_rrs"])
def test_an_optional_column_that_is_misspelt_is_not_passed_over(tmp_path: Path, name: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"step,allocated,reserved,{name}\n1,10,20,15\n")
    with pytest.raises(BadSeriesError, match=rf"unknown column {name}; did you mean (peak|inactive|nvml|host)_"):
        list(read_step_series(path))


def test_columns_of_other_names_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("step,allocated,reserved,loss,time,lr,gpu_util\n1,10,20,0.5,3,0.1,90\n")
    assert len(list(read_step_series(path))) == 1


def test_a_line_without_an_end_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(gzip.compress(bytes(MAX_LINE_CHARS + 1)))
    with pytest.raises(BadSeriesError, match="a line of more than 1,048,576 characters"):
        list(read_step_series(path))
