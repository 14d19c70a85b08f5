"""A Slurm box whose admin has built the SPANK plugin and configures it anew for each test."""

from __future__ import annotations

from pathlib import Path

from integration.needs import missing
from integration.slurm import task_environ
from integration.slurm.box import SlurmBox

SOURCE = Path(__file__).resolve().parents[3] / "deploy/slurm/spank"
PLUGIN = "/etc/slurm/tidegauge.so"


class Site:
    """A box with the plugin, and its ``plugstack.conf``, which Slurm reads anew for each command and each step."""

    def __init__(self, box: SlurmBox) -> None:
        self.box = box
        self.probe = box.work / "probe"
        self.probe.mkdir()
        task_environ.install(box)
        build_plugin(box)

    def configure(self, arguments: str = "", *, plugin: str = PLUGIN) -> SlurmBox:
        self.box.write_file("plugstack.conf", f"optional {plugin} {arguments}\n")
        return self.box

    def refused(self, *command: str) -> str:
        """What a command says that Slurm must not accept."""
        done = self.box.run(*command, user="alice", check=False, stdin="#!/bin/sh\n")
        assert done.returncode != 0
        assert "Submitted" not in done.stdout
        return done.stderr


def build_plugin(box: SlurmBox) -> None:
    """As an admin does, with the headers of the Slurm in the box; it is ``PLUGIN`` then. Skips where it cannot be."""
    if any(box.run("which", tool, check=False).returncode for tool in ("cc", "make")):
        missing("no C compiler or no make: the plugin cannot be built")
    words = ["make", "-C", str(SOURCE), f"BUILD={box.work / 'build'}", "PLUGIN_DIR=/etc/slurm", "install"]
    build = box.run(*words, check=False, timeout_s=120)
    if "there is no slurm/spank.h" in build.stderr:
        missing("Slurm's headers (libslurm-dev) are not installed: the plugin cannot be built")
    assert build.returncode == 0, build.stderr
