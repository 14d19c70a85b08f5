"""The rig's environment is looked after by one process at a time, also where shards have equal process ids."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from fakegpu import build
from fakegpu.rig import Rig


def test_one_process_at_a_time_writes_into_the_rigs_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(venv=tmp_path / "rig" / "venv", libraries=tmp_path / "rig" / "lib")
    built: list[Path] = []

    def build_alone(out: Path, venv: Path) -> bool:
        with venv.with_name("venv.lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        built.append(out)
        return False

    monkeypatch.setattr(build, "torch_folder", lambda venv: venv)
    monkeypatch.setattr(build, "build", build_alone)
    assert rig.available() is None
    assert built == [rig.libraries]


def test_where_there_is_no_rig_nothing_is_made(tmp_path: Path) -> None:
    rig = Rig(venv=tmp_path / "rig" / "venv", libraries=tmp_path / "rig" / "lib")
    assert "no torch in" in str(rig.available())
    assert not list(tmp_path.iterdir())
