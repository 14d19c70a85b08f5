"""install-probe.sh, the one program of the probe's image: what it leaves in the volume, and that no pod fails by it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidegauge_scheduler_hooks.kubernetes.injection.names import INSTALL_COMMAND, PROBE_FOLDER, PYTHONPATH_ENTRY

CONTAINERS = Path(__file__).parents[3] / "deploy" / "containers"
PACKAGE = Path(__file__).parents[3] / "collector" / "tidegauge"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The script and a package beside it, as in the image."""
    folder = tmp_path / "image"
    (folder / "tidegauge").mkdir(parents=True)
    shutil.copy(CONTAINERS / "install-probe.sh", folder)
    (folder / "tidegauge" / "module.py").write_text("first")
    return folder


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """As the kubelet makes an emptyDir."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def install(image: Path, *arguments: str | Path, path: str = os.defpath) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", str(image / "install-probe.sh"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": path})


def test_the_volume_has_the_probe_and_run_directories_for_all_users(image: Path, volume: Path) -> None:
    (image / "tidegauge" / "module.py").chmod(0o666)
    done = install(image, volume, "main", "side-car-2")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(one.name for one in volume.iterdir()) == ["probe", "run"]
    assert (volume / "run").stat().st_mode & 0o7777 == 0o755
    folders = {one.name: one.stat().st_mode & 0o7777 for one in (volume / "run").iterdir()}
    assert folders == {"main": 0o1777, "side-car-2": 0o1777}
    assert (volume / "probe" / "tidegauge" / "module.py").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "/etc", "a/b", "-m", "--", "*", "A", "a b", "a\nb", "$(touch x)", "\u00e9", "a_b"]
)
def test_injection_install_creates_no_path_for_an_invalid_container_name(image: Path, volume: Path, name: str) -> None:
    before = set(volume.parent.iterdir())
    done = install(image, volume, name, "main")
    assert done.returncode == 0
    assert "not a container name" in done.stderr
    assert [one.name for one in (volume / "run").iterdir()] == ["main"]
    assert sorted(one.name for one in volume.iterdir()) == ["probe", "run"]
    assert set(volume.parent.iterdir()) == before


def test_a_second_start_brings_a_new_probe_and_leaves_the_rings(image: Path, volume: Path) -> None:
    install(image, volume, "main")
    (volume / "run" / "main" / "5001").mkdir()
    (volume / "probe.new").mkdir()  # a start that was cut off
    (volume / "probe" / "tidegauge" / "gone.py").touch()
    (image / "tidegauge" / "module.py").write_text("second")
    assert install(image, volume, "main").stderr == ""
    assert [one.name for one in (volume / "probe" / "tidegauge").iterdir()] == ["module.py"]
    assert (volume / "probe" / "tidegauge" / "module.py").read_text() == "second"
    assert (volume / "run" / "main" / "5001").is_dir()
    assert not (volume / "probe.new").exists()


@pytest.mark.parametrize("arguments", [[], [""], ["/nowhere"]])
def test_without_a_volume_the_pod_starts_all_the_same(image: Path, arguments: list[str]) -> None:
    done = install(image, *arguments)
    assert done.returncode == 0
    assert "runs unwatched" in done.stderr


def test_without_the_probe_the_pod_starts_all_the_same_and_finds_no_half_of_it(image: Path, volume: Path) -> None:
    shutil.rmtree(image / "tidegauge")
    done = install(image, volume)
    assert done.returncode == 0
    assert "the probe cannot be copied" in done.stderr
    assert [one.name for one in volume.iterdir()] == ["run"]


def test_without_any_tool_the_pod_starts_all_the_same(image: Path, volume: Path) -> None:
    assert install(image, volume, path="/nowhere").returncode == 0


def test_the_image_has_the_script_where_the_init_container_runs_it() -> None:
    text = (CONTAINERS / "probe.Dockerfile").read_text()
    assert f"COPY deploy/containers/install-probe.sh {INSTALL_COMMAND[0]}\n" in text
    assert f" {Path(INSTALL_COMMAND[0]).parent}/tidegauge/probe\n" in text


def test_an_interpreter_with_that_folder_on_its_path_imports_the_probe(image: Path, volume: Path) -> None:
    shutil.rmtree(image / "tidegauge")
    shutil.copytree(
        PACKAGE, image / "tidegauge", ignore=shutil.ignore_patterns("__pycache__", "agent", "cluster", "cli")
    )
    install(image, volume)
    entry = str(volume / "probe") + PYTHONPATH_ENTRY.removeprefix(PROBE_FOLDER)
    script = "import sys; print(sys.modules['tidegauge.probe.activation.boot'].__file__)"
    environ = {"PYTHONPATH": entry, "TIDEGAUGE_PROFILE": "dormant"}
    command = [sys.executable, "-S", "-c", f"import sitecustomize; {script}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert said.stdout.startswith(str(volume)), said
