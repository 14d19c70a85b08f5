"""Files that commands write: private, whole, and nowhere but where they were said to be."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegauge.cli.main import main
from tidegauge.cli.output import write_own

SNAPSHOT = Path(__file__).parents[2] / "data" / "snapshots" / "outputs_kept.late.pickle.gz"


@pytest.fixture(params=["report", "export", "write_own"])
def write(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Ways to write a file: two commands, and the function behind all of them."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(path: Path) -> None:
        if request.param == "report":
            assert main(["report", str(SNAPSHOT), "--no-whatif", "-o", str(path)]) == 0
        elif request.param == "export":
            assert main(["export", str(SNAPSHOT), "--to", "folded", "-o", str(path)]) == 0
        else:
            write_own(path, b"stacks")

    return run


def test_own_file_is_readable_by_its_owner_only_at_any_umask(write: Callable[[Path], None], tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "out.html")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.html").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]


def test_a_link_of_that_name_is_replaced_and_what_it_leads_to_untouched(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    """In a folder that others may write to, they choose what such a link leads to."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "out.html").symlink_to(victim)
    write(tmp_path / "out.html")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "out.html").is_symlink()
    assert (tmp_path / "out.html").stat().st_size > 0


def test_another_name_of_somebodys_file_is_not_written_into(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    os.link(victim, tmp_path / "out")
    write_own(tmp_path / "out", b"stacks")
    assert victim.read_bytes() == b"precious"


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """Root's `-o /dev/null` must not make a file of it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    write_own(pipe, b"stacks")
    reader.join()
    assert heard == [b"stacks"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_to_a_device_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/dev/null")
    with pytest.raises(OSError, match="/dev/null"):
        write_own(tmp_path / "out", b"stacks")
    assert (tmp_path / "out").is_symlink()


def test_own_file_that_cannot_be_written_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_own(tmp_path / "out", b"stacks")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
