"""Fixtures for tests that use a real Slurm cluster (``box.py``)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.needs import missing
from integration.slurm.box import SlurmBox, why_no_box
from integration.slurm.site import HOOKS, SLURM_CONF, Site

StartBox = Callable[..., SlurmBox]


@pytest.fixture(scope="module")
def reachable_folder() -> Iterator[Path]:
    """An empty folder that every user can reach; pytest's own are for the user alone who runs it."""
    folder = Path(tempfile.mkdtemp(prefix="tidegauge-slurm-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def slurm_tree() -> Path | None:
    """A Debian tree with another release (``TIDEGAUGE_SLURM_TREE``); ``None`` is this machine's Slurm."""
    named = os.environ.get("TIDEGAUGE_SLURM_TREE")
    return Path(named) if named else None


@pytest.fixture(scope="module")
def start_box(reachable_folder: Path, slurm_tree: Path | None) -> Iterator[StartBox]:
    """Starts a box with the options of ``SlurmBox``; it ends with the module. Skips where there cannot be one."""
    with ExitStack() as boxes:

        def start(**options: object) -> SlurmBox:
            reason = why_no_box(
                slurm_tree, accounting=bool(options.get("accounting")), cgroup=bool(options.get("cgroup"))
            )
            if reason is not None:
                missing(reason)
            folder = Path(tempfile.mkdtemp(prefix="box-", dir=reachable_folder))
            folder.chmod(0o755)
            return boxes.enter_context(SlurmBox(folder, **{"root": slurm_tree, **options}))  # type: ignore[arg-type]

        yield start


@pytest.fixture(scope="module")
def box(start_box: StartBox) -> SlurmBox:
    """Three nodes with two GPUs each; the users are alice, bob and tidegauge."""
    return start_box(nodes=3, gpus=2)


@pytest.fixture(scope="module")
def site(start_box: StartBox, rig: Rig) -> Iterator[Site]:
    """A watched cluster of three nodes whose policy acts."""
    box = start_box(nodes=3, gpus=2, memory_mib=8000, accounting=True, files=HOOKS, slurm_conf=SLURM_CONF)
    box.make_operator("tidegauge")
    folder = box.folder / "s"
    folder.mkdir(mode=0o755)
    one = Site(box, rig, folder)
    one.set_mode("act")
    try:
        one.up(nodes=["n1", "n2", "n3"])
        yield one
    finally:
        print(one.story())  # shown with a failure
        one.close()
