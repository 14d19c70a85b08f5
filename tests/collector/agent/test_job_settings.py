"""`JobSettingsFiles` in real folders: what it writes, what it removes, and whose folders it uses."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Collection
from pathlib import Path

import pytest

import tidegauge.agent.job_settings as under_test
from fake_node import FakeClock
from tidegauge.agent.job_settings import LOOK_AGAIN_S, JobSettingsFiles, open_job_settings
from tidegauge.core.jobs.settings import JobSettings, digest, encode
from tidegauge.settings import Settings

ONE = JobSettings("4711", 1001, 1, alloc_conf={"expandable_segments": "True"})
OTHER = JobSettings("4712", 1002, 3, environ={"TIDEGAUGE_MEMORY_FRACTION": "0.5"})
SOMEBODY = 12345
COLLECTOR = Path(under_test.__file__).parents[2]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away and become another user")


class Node:
    """Two run directories and the files in them."""

    def __init__(self, scratch: Path) -> None:
        self.first, self.second = scratch / "first", scratch / "second"
        for run_dir in (self.first, self.second):
            run_dir.mkdir()
            run_dir.chmod(0o1777)
        self.clock = FakeClock()
        self.files = JobSettingsFiles([self.first, self.second], monotonic_s=self.clock.monotonic_s)

    @property
    def folder(self) -> Path:
        return self.first / "jobs"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def has(self, *settings: JobSettings) -> None:
        """Exactly these lie there, and the agent says so."""
        assert {path.name: path.read_bytes() for path in self.folder.iterdir()} == {
            f"{one.job_id}.json": encode(one) for one in settings
        }
        assert self.files.digest() == digest(settings)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_wanted_settings_are_written_for_all_to_read_and_nobody_to_write(node: Node) -> None:
    before = os.umask(0o077)
    try:
        node.files.write([ONE, OTHER])
    finally:
        os.umask(before)
    node.has(ONE, OTHER)
    assert node.folder.stat().st_mode & 0o7777 == 0o755
    assert {path.stat().st_mode & 0o7777 for path in node.folder.iterdir()} == {0o644}


def test_job_settings_files_remove_entries_no_longer_wanted(node: Node) -> None:
    node.files.write([ONE, OTHER])
    node.files.write([OTHER])
    node.has(OTHER)
    node.files.write([])
    node.has()


def test_a_changed_setting_takes_the_place_of_the_old_one_and_the_others_are_left_alone(node: Node) -> None:
    node.files.write([ONE, OTHER])
    untouched = (node.folder / "4712.json").stat().st_ino
    changed = JobSettings("4711", 1001, 2)
    node.files.write([changed, OTHER])
    node.has(changed, OTHER)
    assert (node.folder / "4712.json").stat().st_ino == untouched


def test_the_same_set_again_touches_nothing(node: Node) -> None:
    node.files.write([ONE])
    before = (node.folder.stat().st_mtime_ns, (node.folder / "4711.json").stat().st_ino)
    node.files.write([ONE])
    assert (node.folder.stat().st_mtime_ns, (node.folder / "4711.json").stat().st_ino) == before


def test_job_settings_files_create_no_folder_if_empty(node: Node) -> None:
    node.files.write([])
    assert node.files.digest() == digest(())
    assert not node.folder.exists()


def test_an_agent_that_begins_knows_what_lies_there(node: Node) -> None:
    node.files.write([ONE, OTHER])
    assert JobSettingsFiles([node.first, node.second]).digest() == digest([ONE, OTHER])


def test_a_crash_between_writing_and_renaming_leaves_nothing_that_counts_and_is_tidied_up(node: Node) -> None:
    node.files.write([ONE])
    (node.folder / ".new-deadbeef").write_bytes(encode(OTHER)[:20])
    assert JobSettingsFiles([node.first]).digest() == digest([ONE])
    node.files.write([ONE, OTHER])
    node.has(ONE, OTHER)


def test_somebody_cleared_the_folder(node: Node) -> None:
    node.files.write([ONE])
    assert node.files.digest() == digest([ONE])
    (node.folder / "4711.json").unlink()
    node.folder.rmdir()
    assert node.files.digest() == digest(())
    node.files.write([ONE])
    node.has(ONE)


@pytest.mark.parametrize("content", [b"", b"{}", encode(OTHER), encode(ONE)[:-9]])
def test_a_file_that_was_written_to_is_noticed_a_little_later(node: Node, content: bytes) -> None:
    node.files.write([ONE])
    assert node.files.digest() == digest([ONE])
    (node.folder / "4711.json").write_bytes(content)
    node.clock.pass_s(LOOK_AGAIN_S)
    assert node.files.digest() == digest(())
    node.files.write([ONE])
    node.has(ONE)


def test_links_in_the_folder_are_replaced_not_followed(node: Node, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(encode(ONE))
    node.files.write([OTHER])
    (node.folder / "4711.json").symlink_to(precious)
    assert node.files.digest() == digest([OTHER])
    changed = JobSettings("4711", 1001, 9)
    node.files.write([changed, OTHER])
    node.has(changed, OTHER)
    assert precious.read_bytes() == encode(ONE)


def test_a_file_that_a_probe_would_refuse_is_written_anew(node: Node) -> None:
    node.files.write([ONE])
    (node.folder / "4711.json").chmod(0o666)
    node.clock.pass_s(LOOK_AGAIN_S)
    assert node.files.digest() == digest(())
    node.files.write([ONE])
    node.has(ONE)


def test_a_folder_of_ours_that_others_may_write_is_closed_to_them(node: Node) -> None:
    node.folder.mkdir()
    node.folder.chmod(0o777)
    node.files.write([ONE])
    assert node.folder.stat().st_mode & 0o7777 == 0o755


def test_a_run_directory_that_is_not_there_is_made(tmp_path: Path) -> None:
    files = JobSettingsFiles([tmp_path / "run"])
    assert files.digest() == digest(())
    files.write([ONE])
    assert (tmp_path / "run" / "jobs" / "4711.json").exists()


def test_job_settings_files_skip_a_run_directory_that_others_can_rename(node: Node) -> None:
    node.first.chmod(0o777)
    node.files.write([ONE])
    assert not node.folder.exists()
    assert (node.second / "jobs" / "4711.json").exists()
    assert node.files.digest() == digest([ONE])


def test_a_link_for_the_run_directory_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    files = JobSettingsFiles([tmp_path / "run"])
    files.write([ONE])
    assert files.digest() is None
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_of_our_own_for_the_folder_is_said_and_not_followed(
    node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for run_dir in (node.first, node.second):
        (run_dir / "jobs").symlink_to(tmp_path / "elsewhere")
    for _ in range(3):
        node.files.write([ONE])
    assert node.files.digest() is None
    assert [record.getMessage() for record in caplog.records] == [
        f"later attempts of jobs on this node will start without their settings: {node.folder} is not a folder"
    ]
    node.folder.unlink()
    with caplog.at_level("INFO"):
        node.files.write([ONE])
    assert "can be written again" in caplog.text
    node.has(ONE)


def test_a_job_that_no_file_can_be_named_for_is_said(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.files.write([JobSettings("../x", 1001)])
    assert node.files.digest() is None
    assert "'../x' is not a job id" in caplog.text


@as_root
@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_as_root_somebody_elses_thing_in_our_place_is_moved_aside_and_kept(
    node: Node, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "folder":
        node.folder.mkdir()
        (node.folder / "4711.json").write_text("theirs")
    elif what == "file":
        node.folder.write_text("theirs")
    else:
        node.folder.symlink_to(tmp_path)
    os.chown(node.folder, SOMEBODY, -1, follow_symlinks=False)
    assert node.files.digest() == digest(())
    node.files.write([ONE])
    node.has(ONE)
    assert node.folder.stat().st_uid == 0
    (aside,) = node.first.glob("jobs.of-12345-*")
    assert aside.lstat().st_uid == SOMEBODY
    assert f"belonged to uid {SOMEBODY}" in caplog.text


@as_root
def test_as_a_plain_user_somebody_elses_folder_is_left_alone_and_the_reason_is_clear() -> None:
    with tempfile.TemporaryDirectory() as scratch:  # pytest's own are closed to other users
        Path(scratch).chmod(0o755)
        run_dir = Path(scratch) / "run"
        run_dir.mkdir()
        run_dir.chmod(0o1777)
        (run_dir / "jobs").mkdir(mode=0o755)
        result = as_a_plain_user(run_dir)
        assert list((run_dir / "jobs").iterdir()) == []
    assert result.stdout == "None\n"
    assert f"{run_dir}/jobs belongs to uid 0" in result.stderr


def as_a_plain_user(run_dir: Path) -> subprocess.CompletedProcess[str]:
    """An agent of uid 5001 writes settings, and says what lies there."""
    code = """
        import os, sys, logging
        from pathlib import Path
        from tidegauge.agent.job_settings import JobSettingsFiles
        from tidegauge.core.jobs.settings import JobSettings
        logging.basicConfig(format="%(message)s")
        os.setgid(5001); os.setuid(5001)
        files = JobSettingsFiles([Path(sys.argv[1])])
        files.write([JobSettings("4711", 5001)])
        print(files.digest())
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), run_dir],
        env={"PYTHONPATH": str(COLLECTOR)}, capture_output=True, text=True, check=True,
    )  # fmt: skip


def test_job_settings_files_log_an_unwritable_folder_once_and_retry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = JobSettingsFiles([tmp_path / "missing" / "run"])
    for _ in range(3):
        files.write([ONE])
        assert files.digest() is None
    assert len(caplog.records) == 1
    (tmp_path / "missing").mkdir()
    files.write([ONE])
    assert files.digest() == digest([ONE])


@pytest.mark.parametrize("wanted", [[], [ONE]])
def test_job_settings_files_prefer_the_configured_run_directory_to_the_environment(
    tmp_path: Path, wanted: Collection[JobSettings]
) -> None:
    (tmp_path / "chosen").mkdir()
    open_job_settings(Settings(run_dir=tmp_path / "chosen")).write([ONE])
    assert (tmp_path / "chosen" / "jobs" / "4711.json").exists()
    (tmp_path / "given").mkdir()
    open_job_settings(Settings(), {"TIDEGAUGE_RUN_DIR": str(tmp_path / "given")}).write(wanted)
    assert (tmp_path / "given" / "jobs").exists() == bool(wanted)
