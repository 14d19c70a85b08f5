"""A node without a kubelet: runs the pods that are bound to it as processes of this machine.

In tests: ``StandInNode``. By hand, until the standard input ends::

    python -m kube_standins.node --kubeconfig FILE --name NAME --folder DIR
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from fakegpu.rig import Rig
from kube_standins import images
from kube_standins.api import Api
from kube_standins.cgroups import hierarchies
from kube_standins.containers import Mount
from kube_standins.images import Image
from kube_standins.kubelet import NODE_LABEL, Kubelet, NodeOptions
from kube_standins.process import TESTS, StandInProcess, log_to_stderr, say_ready_and_wait

GPUS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-00000000-0000-4000-8000-000000000001")


def why_no_node() -> str | None:
    """Why there cannot be a stand-in node on this machine, for people; ``None`` where there can."""
    if os.geteuid() != 0:
        return "running pods as processes of this machine takes root"
    if shutil.which("unshare") is None:
        return "unshare (util-linux) is missing"
    if not hierarchies():
        return "no hierarchy of cgroups is mounted here that may be written to"
    return None


class StandInNode:
    """A node of the cluster of ``kubeconfig`` until the block ends. What its pods write is below ``folder``."""

    def __init__(
        self,
        kubeconfig: Path,
        name: str,
        folder: Path,
        *,
        gpus: Sequence[str] = GPUS,
        labels: Mapping[str, str] | None = None,
        image_map: Mapping[str, Image] | None = None,
        visible: Sequence[Path] = (),
        pod_resources: Path | None = None,
    ) -> None:
        """``gpus``: device ids as its device plugin names them. ``visible``: folders and files of this machine that
        are in every container under the same name, writable. ``pod_resources``: where the kubelet's socket shall be.
        The checkout and the interpreters (this one, the rig's) are there in any case, to be read.
        """
        self.name = name
        self.folder = folder.resolve()
        self._arguments = ["--kubeconfig", str(kubeconfig), "--name", name, "--folder", str(self.folder)]
        self._arguments += ["--gpus", ",".join(gpus), "--labels", json.dumps(dict(labels or {}))]
        self._arguments += ["--images", json.dumps(images.to_json(image_map or {}))]
        self._arguments += ["--visible", json.dumps([str(path.resolve()) for path in visible])]
        if pod_resources is not None:
            self._arguments += ["--pod-resources", str(pod_resources)]
        self._process: StandInProcess | None = None

    def __enter__(self) -> StandInNode:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Mounts of its own, which end with it and its containers.
        unshare = ["unshare", "--mount", "--propagation", "private"]
        self._process = StandInProcess("node", self._arguments, self.folder / "node.log", before=unshare)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.end()

    @property
    def pid(self) -> int:
        """Of the process that stands in for the kubelet."""
        assert self._process is not None
        return self._process.pid

    @property
    def placement(self) -> dict[str, Any]:
        """What a pod's spec needs, to run here and nowhere else: ``nodeSelector`` and ``tolerations``."""
        return {
            "nodeSelector": {NODE_LABEL: self.name},
            "tolerations": [{"key": NODE_LABEL, "operator": "Equal", "value": self.name, "effect": "NoSchedule"}],
        }

    def log_of(self, pod_uid: str, container: str) -> str:
        """What a container has printed so far, restarts included; also when the pod is gone."""
        path = self._pod_folder(pod_uid) / f"{container}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def pid_of(self, pod_uid: str, container: str) -> int:
        """Of the first process of a container that has begun, as the machine counts."""
        return int((self._pod_folder(pod_uid) / f"{container}.pid").read_text())

    def empty_dir_of(self, pod_uid: str, volume: str) -> Path:
        """An emptyDir on this machine's disk, while the pod is there; one in memory is seen by the containers alone."""
        return self._pod_folder(pod_uid) / "volumes/kubernetes.io~empty-dir" / volume

    def _pod_folder(self, pod_uid: str) -> Path:
        return self.folder / "pods" / pod_uid


def read_only_folders() -> list[Path]:
    """The checkout and what its interpreters are, none in another of them and nothing of /usr, which is there."""
    interpreters = [Path(sys.executable), Rig().python]
    installed = {path.resolve().parent.parent for path in interpreters if path.exists()}
    folders = {TESTS.parent, Path(sys.prefix), *installed} - {Path("/usr")}
    return sorted(folder for folder in folders if not any(other in folder.parents for other in folders))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run pods as processes of this machine until the standard input ends.")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--name", required=True, help="of the node")
    parser.add_argument("--folder", type=Path, required=True, help="for logs and volumes")
    parser.add_argument("--gpus", default=",".join(GPUS), help="device ids, separated by commas")
    parser.add_argument("--labels", type=json.loads, default={}, help="of the node, as JSON")
    parser.add_argument("--images", type=json.loads, default={}, help="JSON: name to command, folder, at")
    parser.add_argument("--visible", type=json.loads, default=[], help="JSON: paths that pods see as they are")
    parser.add_argument("--pod-resources", type=Path, help="where to serve the kubelet's socket")
    told = parser.parse_args()
    log_to_stderr()
    read_only = [Mount(str(path), str(path), read_only=True, open_way=True) for path in read_only_folders()]
    writable = [Mount(path, path, open_way=True) for path in told.visible]
    options = NodeOptions(
        told.name, told.folder, tuple(filter(None, told.gpus.split(","))), told.labels, images.from_json(told.images),
        sorted([*read_only, *writable], key=lambda mount: mount.target), told.pod_resources,
    )  # fmt: skip
    kubelet = Kubelet(Api(told.kubeconfig), options)
    try:
        kubelet.start()
        say_ready_and_wait()
    finally:
        kubelet.close()


if __name__ == "__main__":
    main()
