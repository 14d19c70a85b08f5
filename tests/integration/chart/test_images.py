"""The images as a release publishes them: what is in them, how large they are; and the chart's pods run in them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tidegauge
from integration.chart.images_here import SUITE, Images, need_buildah
from integration.chart.pods_here import HEAD_IP, NODE_IP, PodsHere
from integration.chart.registry_here import Registry, running_registry
from integration.chart.rendering import ROOT, render
from integration.chart.test_service_starts import METRICS, Service, head_name
from integration.namespaces import need_namespaces
from integration.service import eventually
from matrix import in_matrix

pytestmark = [pytest.mark.timeout(2400), in_matrix(f"images-{SUITE}")]

MAX_AGENT_BYTES = 300_000_000
"""Of the files in it, base included."""
MAX_END_S = 30
"""``terminationGracePeriodSeconds``."""
FOLDER = "gpu"
NAMES = ("tidegauge", "tidegauge-agent", "tidegauge-probe")
USERS = {"tidegauge": "10001:10001", "tidegauge-agent": "60949:60949", "tidegauge-probe": "65532:65532"}
BILLS = ROOT / "build" / "supply_chain"


class Released(NamedTuple):
    """What was pushed to a registry of this machine."""

    registry: Registry
    images: Images
    roots: Mapping[str, Path]
    """Of a container of each image."""

    def called(self, name: str) -> str:
        return f"{self.registry.address}/{FOLDER}/{name}:{tidegauge.__version__}"

    def manifest(self, name: str) -> Any:
        return self.registry.manifest(f"{FOLDER}/{name}", tidegauge.__version__)


@pytest.fixture(scope="module")
def released() -> Iterator[Released]:
    need_buildah()
    need_namespaces()
    folder = Path(tempfile.mkdtemp(prefix="tg-images-", dir="/tmp"))  # short, and not below a folder of one user's
    folder.chmod(0o711)
    images = Images(folder)
    try:
        with ExitStack() as stack:
            registry = stack.enter_context(running_registry())
            images.make_bases()
            images.release(f"{registry.address}/{FOLDER}")
            published = Released(registry, images, {})
            roots = {name: stack.enter_context(images.mounted(published.called(name))) for name in NAMES}
            yield published._replace(roots=roots)
    finally:
        images.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_agents_image_is_small(released: Released, record_property: Any) -> None:
    bytes_of = {name: _files_bytes(root) for name, root in released.roots.items()}
    packed = {name: sum(layer["size"] for layer in released.manifest(name)["layers"]) for name in NAMES}
    record_property("bytes", bytes_of)
    record_property("packed", packed)
    print(f"unpacked {bytes_of}, packed {packed}")
    assert bytes_of["tidegauge-agent"] < MAX_AGENT_BYTES
    assert bytes_of["tidegauge-probe"] < 10_000_000


def _files_bytes(root: Path) -> int:
    sizes = {}
    for folder, _, names in os.walk(root):
        for name in names:
            about = os.lstat(Path(folder, name))
            sizes[about.st_ino] = about.st_size
    return sum(sizes.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_its_user_and_names_its_origin_and_no_secret(released: Released, name: str) -> None:
    about = released.images.about(released.called(name))
    labels = about["config"]["Labels"]
    assert about["config"]["User"] == USERS[name]
    assert labels["org.opencontainers.image.version"] == tidegauge.__version__
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
    told = json.dumps(about).lower()
    assert "pip_conf" not in told.replace("/run/secrets/pip_conf", "").replace("id=pip_conf", "")
    assert not [variable for variable in about["config"].get("Env", ()) if variable.startswith(("PIP_", "SSL_"))]


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_no_setuid_file_no_cache_and_no_source(released: Released, name: str) -> None:
    root = released.roots[name]
    found = subprocess.run(
        ["find", root, "-xdev", "-type", "f", "-perm", "/6000"], capture_output=True, text=True, check=True
    )
    assert found.stdout == ""
    for left in ("src", "root/.cache", "run/secrets", "opt/tidegauge/bin/pip"):
        assert not (root / left).exists(), left


@pytest.mark.parametrize("name", NAMES)
def test_a_bill_lists_what_an_image_is_made_of(released: Released, name: str) -> None:
    bill = json.loads((BILLS / f"{name}-{tidegauge.__version__}.cdx.json").read_text())
    assert bill["metadata"]["component"]["name"] == f"{released.registry.address}/{FOLDER}/{name}"
    parts = {part["name"].lower() for part in bill.get("components", ())}
    if name != "tidegauge-probe":
        assert {"ray", "tidegauge", "libssl3", "python3.11"} <= parts
        assert ("sqlalchemy" in parts) == ("kubernetes" in parts) == (name == "tidegauge")


def test_what_is_pushed_is_what_the_release_signs(released: Released) -> None:
    for name in NAMES:
        assert (BILLS / f"{name}.digest").read_text().strip() == released.manifest(name)["digest"]


def test_the_charts_pods_run_in_their_images(released: Released, tmp_path: Path) -> None:
    """Users, rights, read-only roots, volumes as rendered. An agent serves its page before there is a head, joins it,
    is content with helm's own test, and ends in time."""
    rendered = render({"image": {"registry": f"{released.registry.address}/{FOLDER}"}, "webAccess": {"open": True}})
    roots = {released.called(name): root for name, root in released.roots.items()}
    with PodsHere(tmp_path, head_name(rendered), rendered.objects, roots) as pods:
        service = Service(pods, rendered)
        page = eventually(lambda: service.page(METRICS, NODE_IP), "the agent's page", within_s=300)
        assert 'tidegauge_collect_success{source="opener"} 1' in page
        service.start_head()
        eventually(lambda: service.page(f"http://{HEAD_IP}:9495/healthz") == "ok", "the head's probe", within_s=300)
        assert NODE_IP in eventually(service.helm_test, "helm test is content", within_s=300)
        for pod in service.parts:
            pods.end(pod, within_s=MAX_END_S)
