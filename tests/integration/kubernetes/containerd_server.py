"""A containerd of a test's own, with NRI, and the part of a kubelet that makes pods by it (CRI: k8s.io/cri-api
runtime.v1). ``TIDEGAUGE_TEST_CONTAINERD`` names a folder with containerd and runc (scripts/containerd_release.sh), else
they are in ``PATH``.

An image is made of this machine's own Python, so that nothing is pulled. Pods are in the host's network."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.kubernetes.target import eventually
from integration.server_process import end
from tidegauge.core.protobuf import field, fields, integer, messages, text

BINARIES = ("containerd", "containerd-shim-runc-v2", "ctr", "runc")
PYTHON = os.path.realpath(sys.executable)
"""At the same place in the image."""
WITHIN_S = 60.0
RUNTIME = "/runtime.v1.RuntimeService/"
IMAGE_PYTHONPATH = "/image/lib"
"""``ENV PYTHONPATH`` of the image: a folder with the module ``of_the_image``."""
_HOST = 2
"""``NamespaceMode`` NODE."""
_EXITED = 2
"""``ContainerState``."""
_CONFIG = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
temp = "{folder}/tmp"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{folder}/nri/nri.sock"
  plugin_path = "{folder}/none"
  plugin_config_path = "{folder}/none"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{folder}/none"
"""


def binaries() -> str:
    """A ``PATH`` with everything that is needed; ends the test where there is none."""
    path = os.pathsep.join(filter(None, (os.environ.get("TIDEGAUGE_TEST_CONTAINERD"), os.environ.get("PATH"))))
    path += ":/usr/sbin:/sbin"
    lacking = [name for name in BINARIES if shutil.which(name, path=path) is None]
    if lacking:
        pytest.skip(f"no {', '.join(lacking)}: scripts/containerd_release.sh DIR, TIDEGAUGE_TEST_CONTAINERD=DIR/bin")
    if os.getuid() != 0:
        pytest.skip("containerd needs root")
    return path


class Containerd:
    """One server, which can be started again. Its folder is short: names of sockets are limited."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        self._environ = {**os.environ, "PATH": path}
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "config.toml").write_text(_CONFIG.format(folder=folder))

    @property
    def nri_socket(self) -> Path:
        return self.folder / "nri" / "nri.sock"

    def start(self) -> None:
        with (self.folder / "containerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["containerd", "-c", str(self.folder / "config.toml")], env=self._environ, stdout=log, stderr=log
            )
        eventually(lambda: self._ask("Version", b"") is not None)

    def stop(self) -> None:
        if self._process is not None:
            end(self._process)

    def load_images(self) -> None:
        file = self.folder / "images.tar"
        write_images(file)
        socket = str(self.folder / "containerd.sock")
        command = [
            "ctr",
            "-a",
            socket,
            "-n",
            "k8s.io",
            "images",
            "import",
            "--local",
            "--snapshotter",
            "native",
            str(file),
        ]
        subprocess.run(command, env=self._environ, check=True, stdout=subprocess.DEVNULL)
        file.unlink()

    @contextmanager
    def pod(self, name: str, *, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Iterator[Pod]:
        pod = Pod(self, name, labels, annotations)
        try:
            yield pod
        finally:
            self.ask("StopPodSandbox", field(1, pod.id))
            self.ask("RemovePodSandbox", field(1, pod.id))

    def ask(self, method: str, request: bytes) -> bytes:
        """Raises ``grpc.RpcError``: the server refuses."""
        found: bytes = self._call(method, request)
        return found

    def _ask(self, method: str, request: bytes) -> bytes | None:
        with suppress(grpc.RpcError):
            return self.ask(method, request)
        return None

    def _call(self, method: str, request: bytes) -> Any:
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"unix:{self.folder}/containerd.sock", options=options) as channel:
            return channel.unary_unary(RUNTIME + method)(request, timeout=WITHIN_S)


class Pod:
    """A pod whose containers are programs in Python."""

    def __init__(
        self, server: Containerd, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]
    ) -> None:
        self._server = server
        host_network = field(8, field(2, field(1, field(1, _HOST))))
        metadata = field(1, field(1, name) + field(2, f"uid-of-{name}") + field(3, "team"))
        self._config = metadata + field(3, str(server.folder / "logs"))
        self._config += fields(6, _entries(labels)) + fields(7, _entries(annotations)) + host_network
        self.id = text(server.ask("RunPodSandbox", field(1, self._config)), 1)

    def run(self, name: str, image: str, program: str, env: Mapping[str, str]) -> tuple[int, str]:
        """Exit code and what it printed, of a container that has ended."""
        log = f"{self.id[:8]}-{name}.log"
        command = fields(3, [PYTHON, "-c", program])
        config = field(1, field(1, name)) + field(2, field(1, f"localhost/{image}:1")) + command
        config += fields(6, [field(1, key) + field(2, value) for key, value in env.items()]) + field(11, log)
        made = self._server.ask("CreateContainer", field(1, self.id) + field(2, config) + field(3, self._config))
        request = field(1, text(made, 1))
        self._server.ask("StartContainer", request)

        def status() -> bytes | None:
            [found] = messages(self._server.ask("ContainerStatus", request), 1)
            return found if integer(found, 3) == _EXITED else None

        code = integer(eventually(status) or b"", 7)
        lines = (self._server.folder / "logs" / log).read_text().splitlines()
        return code, "\n".join(line.split(" ", 3)[3] for line in lines)


def _entries(entries: Mapping[str, str]) -> list[bytes]:
    return [field(1, name) + field(2, value) for name, value in entries.items()]


def write_images(file: Path) -> None:
    """An archive of images as Docker writes it: one layer, two configurations."""
    layer = _layer()
    diff_id = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    waits = [PYTHON, "-I", "-c", "import signal; signal.pause()"]
    configs = {
        "pause": {"Entrypoint": waits},
        "plain": {},
        "with-path": {"Env": [f"PYTHONPATH={IMAGE_PYTHONPATH}", "NVIDIA_VISIBLE_DEVICES=all"]},
    }
    manifest = []
    with tarfile.open(file, "w") as archive:
        _add(archive, "layer.tar", layer)
        for name, config in configs.items():
            whole = {"architecture": "amd64", "os": "linux", "config": config,
                     "rootfs": {"type": "layers", "diff_ids": [diff_id]}}  # fmt: skip
            _add(archive, f"{name}.json", json.dumps(whole).encode())
            manifest.append({"Config": f"{name}.json", "RepoTags": [f"localhost/{name}:1"], "Layers": ["layer.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer() -> bytes:
    """This Python with its standard library and what both are linked with."""
    library = Path(os.path.dirname(os.__file__))
    content = io.BytesIO()

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        unwanted = ("site-packages", "test", "idlelib", "ensurepip", "__pycache__")
        return None if any(part in unwanted or part.startswith("config-") for part in entry.name.split("/")) else entry

    with tarfile.open(fileobj=content, mode="w", dereference=True) as layer:
        layer.add(PYTHON)
        layer.add(library, filter=wanted)
        for linked in sorted(_linked([PYTHON, *map(str, (library / "lib-dynload").glob("*.so"))])):
            layer.add(linked)
        for folder in ("proc", "sys", "dev", "tmp", "run", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
        _add(layer, f"{IMAGE_PYTHONPATH[1:]}/of_the_image.py", b"HERE = True\n")
    return content.getvalue()


def _linked(programs: list[str]) -> set[str]:
    found = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(?:=> |\t)(/\S+) \(0x", found))


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))
