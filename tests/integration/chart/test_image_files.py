"""The container files, as far as they can be looked at without a builder: what they copy is there, and is enough."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.chart.rendering import ROOT, render, with_registry
from tidegauge_scheduler_hooks.kubernetes.injection.names import INSTALL_COMMAND, PYTHONPATH_ENTRY

CONTAINERS = ROOT / "deploy" / "containers"
FILES = sorted(CONTAINERS.glob("*.Dockerfile"))
EVERY_MODULE = """
import importlib, pkgutil, sys
import tidegauge.core, tidegauge.probe
assert tidegauge.__file__.startswith(sys.argv[1]), tidegauge.__file__
for package in (tidegauge.core, tidegauge.probe):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if "pythonpath" not in module.name:
            importlib.import_module(module.name)
"""


def instructions(path: Path) -> list[list[str]]:
    text = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def ignored_but_for(path: Path) -> list[str]:
    lines = path.with_name(f"{path.name}.dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "*"
    return [line[1:] for line in lines if line.startswith("!")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_image_copies_only_existing_files_sent_to_the_builder(path: Path) -> None:
    sources = [
        s for line in instructions(path) if line[0] == "COPY" and not line[1].startswith("--from=") for s in line[1:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == kept or source.startswith(f"{kept}/") for kept in ignored_but_for(path)), source


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_images_are_not_root_and_their_base_is_a_version(path: Path) -> None:
    lines = instructions(path)
    for line in lines:
        if line[0] == "USER":
            assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", line[1])
    assert any(line[0] == "USER" for line in lines)
    arguments = dict(line[1].split("=") for line in reversed(lines) if line[0] == "ARG")
    stages = {line[3] for line in lines if line[0] == "FROM" and len(line) > 3}
    bases = {line[1] for line in lines if line[0] == "FROM"} - stages
    assert bases
    for base in bases:
        for name, value in arguments.items():
            base = base.replace(f"${{{name}}}", value)
        assert re.search(r":\d+\.\d+[\w.-]*$", base), base


@pytest.mark.parametrize(("kind", "place"), [("DaemonSet", 0), ("StatefulSet", 1)])
def test_the_chart_runs_the_service_as_the_images_users(kind: str, place: int) -> None:
    users = [line[1] for line in instructions(CONTAINERS / "service.Dockerfile") if line[0] == "USER"]
    context = render(with_registry()).one(kind)["spec"]["template"]["spec"]["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == users[place]


def test_the_probe_image_holds_all_that_the_probe_imports(tmp_path: Path) -> None:
    """Its COPY lines are carried out, and its install script run; a Python without Tidegauge then finds the probe."""
    image, volume = tmp_path / "image", tmp_path / "volume"
    for line in instructions(CONTAINERS / "probe.Dockerfile"):
        if line[0] == "COPY":
            _copy([ROOT / source for source in line[1:-1]], image / line[-1].lstrip("/"), into=line[-1].endswith("/"))
    volume.mkdir()
    script, _ = INSTALL_COMMAND
    subprocess.run([image / script.lstrip("/"), volume], check=True, timeout=60)
    entry = Path(PYTHONPATH_ENTRY).relative_to("/tidegauge")
    done = subprocess.run(
        [Path(sys.executable).resolve(), "-c", EVERY_MODULE, volume],
        env={"PYTHONPATH": str(volume / "probe" / entry), "TIDEGAUGE_PROFILE": "stats", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def _copy(sources: list[Path], target: Path, *, into: bool) -> None:
    """As COPY does: of a folder what is in it."""
    for source in sources:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            place = target / source.name if into else target
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place)
