"""A release's commands: what a dry run prints, and the chart as a registry has it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import helm_python
import pytest

import tidegauge
from integration.chart.registry_here import Registry, running_registry
from integration.chart.rendering import CHART, ROOT

IMAGES = ("tidegauge", "tidegauge-agent", "tidegauge-probe")


def test_a_dry_run_prints_builds_bills_pushes_and_signatures_by_digest_and_runs_none(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("buildah", "skopeo", "cosign"):
        (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts" / "release_images.sh", "--dry-run", "registry.example.org/gpu", "--secret=id=pip_conf,src=f"],
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "COSIGN_KEY": "k.pem"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    version = tidegauge.__version__
    for name in IMAGES:
        image = f"registry.example.org/gpu/{name}"
        [build] = [line for line in lines if f"--tag {image}:{version} " in line]
        assert build.startswith("buildah bud ")
        assert "--secret=id=pip_conf" in build
        assert f"--build-arg VERSION={version} " in build
        bill = f"build/supply_chain/{name}-{version}.cdx.json"
        steps = [
            build.strip(),
            f"scripts/image_sbom.sh {image}:{version} {bill}",
            f"buildah push --digestfile build/supply_chain/{name}.digest {image}:{version} docker://{image}:{version}",
            f"cosign sign --yes --key k.pem {image}@sha256:DIGEST",
            f"cosign attest --yes --key k.pem --type cyclonedx --predicate {bill} {image}@sha256:DIGEST",
        ]
        assert [line.strip() for line in lines if line.strip() in steps] == steps
    assert lines[-1].strip() == "cosign sign --yes --key k.pem registry.example.org/gpu/charts/tidegauge@sha256:DIGEST"
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as registry:
        yield registry


def test_the_chart_is_pushed_as_helm_has_it_and_renders(registry: Registry, tmp_path: Path) -> None:
    remote = f"oci://{registry.address}/gpu/charts"
    pushed = subprocess.run(
        [sys.executable, ROOT / "scripts" / "push_chart.py", remote, "--plain-http"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    with helm_python.Chart.load(str(CHART)) as chart:
        version = str(chart.version)
    assert pushed.stdout.strip() == f"{remote}/tidegauge:{version}"

    manifest = registry.manifest("gpu/charts/tidegauge", version)
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    kinds = [layer["mediaType"] for layer in manifest["layers"]]
    assert kinds == ["application/vnd.cncf.helm.chart.content.v1.tar+gzip"]

    helm_python.pull(f"{remote}/tidegauge", version=version, destination=str(tmp_path), plain_http=True)
    with helm_python.Chart.load_archive((tmp_path / f"tidegauge-{version}.tgz").read_bytes()) as chart:
        texts = chart.render({"image": {"registry": f"{registry.address}/gpu"}}, name="gpu", namespace="tidegauge")
    assert f"image: {registry.address}/gpu/tidegauge-agent:{tidegauge.__version__}" in "".join(texts.values())


def test_a_push_that_fails_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "push_chart.py", f"oci://{address}/charts", "--plain-http"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("the chart was not pushed: ")
