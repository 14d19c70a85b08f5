"""The prolog's records: their text, and files that somebody else may have put in their place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.agent.slurm.records import MAX_RECORD_BYTES, SlurmRecords, parse_record
from tidegauge.core.ids import JobId
from tidegauge.core.jobs.slurm import SlurmJobRecord

FULL = b"""\
JOB_ID=124
UID=5001
RESTART_COUNT=2
ARRAY_JOB_ID=123
ARRAY_TASK_ID=4
PARTITION=gpu
ACCOUNT=physics
GPUS=0,3
"""
BARE = b"JOB_ID=124\nUID=5001\nRESTART_COUNT=0\nARRAY_JOB_ID=\nARRAY_TASK_ID=\nPARTITION=\nGPUS=\n"
JOB = JobId("124")


def write(run_dir: Path, content: bytes = FULL, *, name: str = "124", mode: int = 0o644) -> Path:
    path = run_dir / "slurm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_record_says_whose_the_job_is_and_how_often_it_was_restarted(tmp_path: Path) -> None:
    write(tmp_path)
    record = SlurmRecords([tmp_path]).record_of(JOB)
    assert record == SlurmJobRecord(JOB, 5001, 2, 123, 4, "gpu", ("0", "3"), "physics")


def test_an_empty_value_is_unknown() -> None:
    assert parse_record(BARE, JOB) == SlurmJobRecord(JOB, 5001, 0)


def test_a_record_of_an_older_prolog_has_no_account() -> None:
    record = parse_record(FULL.replace(b"ACCOUNT=physics\n", b""), JOB)
    assert (record.account, record.partition) == (None, "gpu")


def test_a_node_without_the_prolog_has_no_records(tmp_path: Path) -> None:
    assert SlurmRecords([tmp_path, tmp_path / "nowhere"]).record_of(JOB) is None
    write(tmp_path)
    assert SlurmRecords([tmp_path]).record_of(JobId("125")) is None


def test_every_run_directory_is_looked_into(tmp_path: Path) -> None:
    write(tmp_path / "b")
    assert SlurmRecords([tmp_path / "a", tmp_path / "b"]).record_of(JOB) is not None


def test_a_requeued_job_has_another_record(tmp_path: Path) -> None:
    records = SlurmRecords([tmp_path])
    for restarts in (0, 1):
        write(tmp_path, BARE.replace(b"COUNT=0", f"COUNT={restarts}".encode()))
        record = records.record_of(JOB)
        assert record is not None
        assert record.restarts == restarts


@pytest.mark.parametrize(
    "content",
    [
        b"",
        FULL[:-1],  # cut while it was written
        FULL + b"\n",
        FULL + b"UID=0\n",
        FULL + b"HOME=/root\n",
        FULL.replace(b"=124", b"=125"),
        FULL.replace(b"UID=5001\n", b""),
        FULL.replace(b"UID=5001", b"UID="),
        FULL.replace(b"COUNT=2", b"COUNT="),
        FULL.replace(b"COUNT=2", b"COUNT=-2"),
        FULL.replace(b"COUNT=2", b"COUNT=2e3"),
        FULL.replace(b"COUNT=2", b"COUNT= 2"),
        FULL.replace(b"COUNT=2", b"COUNT=99999999999"),
        FULL.replace(b"COUNT=2", "COUNT=٢".encode()),
        FULL.replace(b"gpu", b"g pu"),
        FULL.replace(b"0,3", b"0,/dev/null"),
        FULL.replace(b"0,3", b"0" * MAX_RECORD_BYTES),
    ],
)
def test_a_record_that_the_prolog_does_not_write_is_none(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, content)
    assert SlurmRecords([tmp_path]).record_of(JOB) is None
    with pytest.raises(ValueError, match=r"\w"):
        parse_record(content, JOB)


@given(st.binary(max_size=300))
def test_any_other_bytes_are_refused_in_words(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_record(content, JOB)


def test_slurm_records_ignore_files_that_others_can_write(tmp_path: Path) -> None:
    path = write(tmp_path)
    for where, mode in ((path, 0o664), (path, 0o646), (path.parent, 0o775), (path.parent, 0o1777)):
        where.chmod(mode)
        assert SlurmRecords([tmp_path]).record_of(JOB) is None
        where.chmod(0o755)
        assert SlurmRecords([tmp_path]).record_of(JOB) is not None


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
def test_slurm_records_ignore_files_owned_by_others(tmp_path: Path) -> None:
    path = write(tmp_path)
    for where in (path, path.parent):
        os.chown(where, 5001, -1)
        assert SlurmRecords([tmp_path]).record_of(JOB) is None
        os.chown(where, 0, -1)
        assert SlurmRecords([tmp_path]).record_of(JOB) is not None


def test_links_and_what_is_no_file_are_not_followed(tmp_path: Path) -> None:
    path = write(tmp_path)
    os.link(path, tmp_path / "another name")
    assert SlurmRecords([tmp_path]).record_of(JOB) is None
    path.unlink()
    path.symlink_to(tmp_path / "another name")
    assert SlurmRecords([tmp_path]).record_of(JOB) is None
    path.unlink()
    os.mkfifo(path)
    assert SlurmRecords([tmp_path]).record_of(JOB) is None
    path.unlink()
    path.mkdir()
    assert SlurmRecords([tmp_path]).record_of(JOB) is None


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere")
    (tmp_path / "slurm").symlink_to(tmp_path / "elsewhere/slurm")
    assert SlurmRecords([tmp_path]).record_of(JOB) is None


def test_a_refused_record_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, mode=0o666)
    SlurmRecords([tmp_path]).record_of(JOB)
    assert f"{tmp_path}/slurm/124: the file is writable by others" in caplog.text
