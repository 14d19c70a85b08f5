"""The images of deploy/containers, built by buildah on Debian roots that stand for their bases: no registry is asked.

Packages come from where pip's own configuration says, by the secrets that the container files take.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration.chart.rendering import ROOT
from integration.needs import missing

BUILD_TIMEOUT_S = 1500
SUITE = "bookworm"
PYTHON_ROOT = ("usr-is-merged", "python3", "python3-venv")
"""As python:3-slim has it: Debian with apt, an interpreter and its venv, no compiler."""


class Images:
    """A store of buildah's. ``folder`` is an empty one, whose file system takes overlays."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        storage = folder / "storage.conf"
        storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
        self._environ = {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot"}

    def make_bases(self) -> None:
        """Skips, or fails in CI, where Debian cannot be reached."""
        python = self._debian("python-root", "apt", PYTHON_ROOT)
        (python / "usr" / "bin" / "python").symlink_to("python3")
        self._commit(python, "base-python")
        probe = self._debian("busybox-root", "extract", ("busybox-static",))
        (probe / "bin").mkdir(exist_ok=True)
        for name in ("sh", "mkdir", "chmod", "cp", "mv", "rm"):
            (probe / "bin" / name).hardlink_to(probe / "bin" / "busybox")
        self._commit(probe, "base-probe")

    def release(self, registry: str) -> None:
        """Have ``scripts/release_images.sh`` build them all and push them to ``registry``, which has no TLS. Nothing is
        signed: there is no cosign."""
        settings, folders = _pip_settings()
        configuration = self._folder / "pip.conf"
        configuration.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items()))
        authority = os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt")
        self._run(
            ROOT / "scripts" / "release_images.sh", registry,
            "--build-arg=BASE=localhost/base-python", "--build-arg=PROBE_BASE=localhost/base-probe", "--pull-never",
            f"--secret=id=pip_conf,src={configuration}", f"--secret=id=ca_bundle,src={authority}",
            *(f"--volume={folder}:{folder}:ro" for folder in folders),
            PLAIN_HTTP="1", SIGN="0", PYTHON=sys.executable,
        )  # fmt: skip

    def about(self, image: str) -> Any:
        """The image's configuration, as OCI has it."""
        return json.loads(self._buildah("inspect", "--type=image", image))["OCIv1"]

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """The root of a container of it."""
        container = self._buildah("from", "--pull-never", image).strip()
        try:
            yield Path(self._buildah("mount", container).strip())
        finally:
            self._buildah("rm", container)

    def close(self) -> None:
        self._buildah("rm", "--all")
        self._buildah("rmi", "--all", "--force")

    def _debian(self, name: str, variant: str, packages: Sequence[str]) -> Path:
        tree = self._folder / name
        done = subprocess.run(
            [
                "mmdebstrap", "--quiet", "--mode=root", f"--variant={variant}", f"--include={','.join(packages)}",
                "--aptopt=Acquire::Check-Valid-Until \"false\"", "--aptopt=APT::Install-Recommends \"false\"",
                *(f"--dpkgopt=path-exclude=/usr/share/{kind}/*" for kind in ("doc", "man", "locale")),
                *(["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"] if variant == "apt" else []),
                SUITE, str(tree),
            ],
            capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            missing(f"Debian's packages cannot be reached: {done.stderr.strip()[-300:]}")
        return tree

    def _commit(self, tree: Path, name: str) -> None:
        container = self._buildah("from", "scratch").strip()
        self._buildah("add", container, str(tree), "/")
        self._buildah("commit", "--rm", container, f"localhost/{name}")
        shutil.rmtree(tree)

    def _buildah(self, *words: str) -> str:
        return self._run("buildah", *words)

    def _run(self, *words: str | Path, **environ: str) -> str:
        done = subprocess.run(
            words, env=self._environ | environ, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout


def need_buildah() -> None:
    """Skip, or fail in CI, where images cannot be built."""
    if os.geteuid() != 0:
        missing("building images takes root")
    for tool in ("buildah", "mmdebstrap", "skopeo"):
        if shutil.which(tool) is None:
            missing(f"{tool} is missing")


def _pip_settings() -> tuple[Mapping[str, str], Sequence[str]]:
    """pip's configuration on this machine, and the folders of this machine that packages may come from: those that it
    names, with what lies beside them, since pages of an index point there."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    settings = {}
    for line in said.splitlines():
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = value.strip("'\"").replace("\\n", " ")
    kept = {name: value for name, value in settings.items() if name != "cert"}
    named = [Path(word.removeprefix("file://")) for value in kept.values() for word in value.split()]
    folders = [path.parent if len(path.parts) > 3 else path for path in named if path.is_absolute() and path.is_dir()]
    return kept, sorted({str(folder) for folder in folders})
