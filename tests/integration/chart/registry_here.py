"""Debian's own registry, on a free port of the loopback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from integration.needs import missing
from integration.service import eventually


class Registry(NamedTuple):
    """One that answers, without TLS."""

    address: str
    """``host:port``."""

    def manifest(self, name: str, tag: str) -> Any:
        """As OCI has it, with its ``digest``."""
        request = urllib.request.Request(
            f"http://{self.address}/v2/{name}/manifests/{tag}",
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return {**json.load(answer), "digest": answer.headers["Docker-Content-Digest"]}


@contextmanager
def running_registry() -> Iterator[Registry]:
    """Skips, or fails in CI, where there is none."""
    if shutil.which("docker-registry") is None:
        missing("docker-registry is missing")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "registry.yml")
        storage = f"storage: {{filesystem: {{rootdirectory: {folder}/blobs}}}}"
        configuration.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '{address}'}}\n")
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(["docker-registry", "serve", configuration], stdout=quiet, stderr=quiet)
        try:
            eventually(lambda: _answers(address), "the registry answers")
            yield Registry(address)
        finally:
            process.terminate()
            process.wait(30)


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
