"""A pod's volumes as folders of this machine, named as the kubelet's are, and what a container mounts of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kube_standins.api import Api, ApiError, Object
from kube_standins.containers import Mount
from kube_standins.pod_environ import Here, UnsupportedError, field_of

SHM_BYTES = 1 << 30


class PodVolumes:
    """Made below ``folder``, which is one pod's."""

    def __init__(self, pod: Object, folder: Path, api: Api, here: Here) -> None:
        self._pod = pod
        self._folder = folder
        self._api = api
        self._here = here
        self._mounted: list[Path] = []
        self._paths: dict[str, Path] = {}
        self.shm = folder / "shm"
        """The /dev/shm that the containers of the pod share."""

    def make(self) -> None:
        """Raises ``UnsupportedError`` and ``ApiError``; may then be called again."""
        if not self.shm.exists():
            self._mount_tmpfs(self.shm, 0o1777, f"size={SHM_BYTES}")
        for volume in self._pod["spec"].get("volumes") or ():
            if volume["name"] not in self._paths:
                self._paths[volume["name"]] = self._make(volume)

    def remove(self) -> None:
        """When no container is left."""
        for path in reversed(self._mounted):
            subprocess.run(["umount", "--lazy", path], check=False)
        for folder in (self.shm, self._folder / "volumes"):
            shutil.rmtree(folder, ignore_errors=True)
        self._mounted.clear()
        self._paths.clear()

    def mounts_of(self, container: Object) -> list[Mount]:
        """Outer folders first. Raises ``UnsupportedError`` for a ``subPath`` that leads out of its volume."""
        mounts = [self._mount(each) for each in container.get("volumeMounts") or ()]
        return sorted(mounts, key=lambda mount: mount.target)

    def _mount(self, wanted: Object) -> Mount:
        volume = self._paths[wanted["name"]]
        source = volume / (wanted.get("subPath") or "")
        # Whoever may write to the volume could have put a link there.
        if not Path(os.path.realpath(source)).is_relative_to(volume.resolve()):
            raise UnsupportedError(f"subPath {wanted['subPath']!r} leads out of volume {wanted['name']}")
        if not source.exists():
            source.mkdir(parents=True)
        return Mount(str(source), os.path.normpath(wanted["mountPath"]), bool(wanted.get("readOnly")))

    def _make(self, volume: Object) -> Path:
        name = volume["name"]
        if "emptyDir" in volume:
            return self._empty_dir(name, volume["emptyDir"] or {})
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        makers: Mapping[str, Callable[[Any], dict[str, str]]] = {
            "downwardAPI": self._downward,
            "configMap": self._config_map,
            "projected": self._projected,
        }
        for kind, make in makers.items():
            if kind in volume:
                files = make(volume[kind])
                return self._write(self._of_kind(name, kind), files)
        raise UnsupportedError(f"volume {name} is none of emptyDir, hostPath, {', '.join(makers)}")

    def _of_kind(self, name: str, kind: str) -> Path:
        return self._folder / "volumes" / f"kubernetes.io~{kind.lower()}" / name

    def _empty_dir(self, name: str, spec: Mapping[str, Any]) -> Path:
        path = self._folder / "volumes/kubernetes.io~empty-dir" / name
        if spec.get("medium") == "Memory":
            self._mount_tmpfs(path, 0o777)
        else:
            path.mkdir(parents=True, exist_ok=True)
        group = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is not None:
            os.chown(path, -1, group)
        path.chmod(0o777 if group is None else 0o2777)
        return path

    def _mount_tmpfs(self, path: Path, mode: int, *options: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        joined = ",".join([f"mode={mode:o}", *options])
        subprocess.run(["mount", "-t", "tmpfs", "-o", joined, "tmpfs", path], check=True)
        self._mounted.append(path)

    def _write(self, path: Path, files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            file = path / os.path.normpath("/" + name).lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _downward(self, spec: Mapping[str, Any]) -> dict[str, str]:
        files = {}
        for item in spec.get("items") or ():
            if "fieldRef" not in item:
                raise UnsupportedError(f"downward API file {item['path']} is not from a fieldRef")
            files[item["path"]] = field_of(item["fieldRef"]["fieldPath"], self._pod, self._here)
        return files

    def _config_map(self, spec: Mapping[str, Any]) -> dict[str, str]:
        namespace, name = self._pod["metadata"]["namespace"], spec["name"]
        try:
            data = self._api.call("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}").get("data") or {}
        except ApiError as error:
            if error.status != 404:
                raise
            if name == "kube-root-ca.crt":  # where there is no controller that makes it
                data = {"ca.crt": self._api.certificate_authority}
            elif spec.get("optional"):
                data = {}
            else:
                raise
        items = spec.get("items")
        return data if not items else {item["path"]: data[item["key"]] for item in items if item["key"] in data}

    def _projected(self, spec: Mapping[str, Any]) -> dict[str, str]:
        files: dict[str, str] = {}
        for source in spec.get("sources") or ():
            if "downwardAPI" in source:
                files |= self._downward(source["downwardAPI"])
            elif "configMap" in source:
                files |= self._config_map(source["configMap"])
            elif "serviceAccountToken" in source:
                token = source["serviceAccountToken"]
                files[token["path"]] = self._token(token)
            else:
                raise UnsupportedError(f"projected volume source {', '.join(source)}")
        return files

    def _token(self, wanted: Mapping[str, Any]) -> str:
        """Of the pod's service account, bound to the pod (TokenRequest v1)."""
        metadata = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName") or "default"
        audience = [wanted["audience"]] if wanted.get("audience") else []
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": audience,
                "expirationSeconds": wanted.get("expirationSeconds", 3600),
                "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
            },
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        return str(self._api.call("POST", path, request)["status"]["token"])
