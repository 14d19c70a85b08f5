"""The files of deploy/observability that no server reads in the tests have the shape that theirs wants."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from tidegauge_exporter.links import EFFICIENCY, FLEET, INCIDENTS, JOB, NODE, RANK
from tidegauge_exporter.metrics.table import SAMPLES_PER_TARGET

OBSERVABILITY = Path(__file__).parents[2] / "deploy" / "observability"
GRAFANA = OBSERVABILITY / "grafana"
KUBERNETES_LIMIT_BYTES = 1024 * 1024
"""Of a ConfigMap; there is one for each dashboard."""


def loaded(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def test_grafana_is_told_of_the_data_source_that_the_dashboards_ask() -> None:
    sources = loaded(GRAFANA / "provisioning" / "datasources" / "tidegauge.yaml")
    assert sources["apiVersion"] == 1
    prometheus = next(source for source in sources["datasources"] if source["type"] == "prometheus")
    assert prometheus["uid"] == "tidegauge-prometheus"
    assert prometheus["url"] == "${TIDEGAUGE_PROMETHEUS_URL}"
    assert prometheus["access"] == "proxy"


def test_grafana_is_told_where_the_dashboards_lie() -> None:
    [provider] = loaded(GRAFANA / "provisioning" / "dashboards" / "tidegauge.yaml")["providers"]
    assert (provider["type"], provider["folderUid"]) == ("file", "tidegauge")
    assert provider["options"] == {"path": "${TIDEGAUGE_DASHBOARDS}"}


def test_every_dashboard_becomes_a_config_map_of_its_own() -> None:
    kustomization = loaded(GRAFANA / "kustomization.yaml")
    assert kustomization["generatorOptions"]["labels"] == {"grafana_dashboard": "1"}
    listed = [GRAFANA / file for one in kustomization["configMapGenerator"] for file in one["files"]]
    assert sorted(listed) == sorted((GRAFANA / "dashboards").glob("*.json"))
    assert {json.loads(file.read_text(encoding="utf-8"))["uid"] for file in listed} == {
        FLEET,
        JOB,
        RANK,
        NODE,
        INCIDENTS,
        EFFICIENCY,
    }
    assert max(file.stat().st_size for file in listed) < KUBERNETES_LIMIT_BYTES


def test_no_fuse_of_prometheus_blows_at_a_size_that_is_promised() -> None:
    config = loaded(OBSERVABILITY / "prometheus" / "prometheus.yml")
    [scrape] = config["scrape_configs"]
    chart = (OBSERVABILITY.parents[1] / "helm" / "tidegauge" / "templates" / "monitoring.yaml").read_text()
    limits = [scrape["sample_limit"], *map(int, re.findall(r"sampleLimit: (\d+)", chart))]
    assert len(limits) == 3
    # A node's page, and the coordinator's with 10,000 jobs of one rank; beyond it a scrape is refused as a whole.
    assert min(limits) > max(SAMPLES_PER_TARGET, 10_000 * 10)


def test_containers_get_files_that_exist_and_listen_on_loopback() -> None:
    services = loaded(OBSERVABILITY / "compose.yaml")["services"]
    assert set(services) == {"prometheus", "alertmanager", "grafana"}
    for service in services.values():
        assert service["image"].rpartition(":")[2] not in ("", "latest")
        mounts = [volume.split(":")[0] for volume in service["volumes"]]
        assert [mount for mount in mounts if mount.startswith("./") and not (OBSERVABILITY / mount).is_dir()] == []
    assert "${TIDEGAUGE_ALERTMANAGER_CONFIG:?" in services["alertmanager"]["volumes"][0], "it does not start without"
    consoles = "--web.console.templates=/etc/prometheus/consoles"
    assert consoles in services["prometheus"]["command"]
    assert (OBSERVABILITY / "prometheus" / "consoles" / "tidegauge-runbooks.html").is_file()
    for name in ("prometheus", "alertmanager"):
        assert any("listen-address=127.0.0.1:" in flag for flag in services[name]["command"])
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
