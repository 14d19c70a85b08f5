"""Debian's promtool judges our example configuration and our exposition."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from exposition_text import text_of
from sample_views import LOOP, NOW_S, job_view, node_view
from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.jobs import job_metrics

EXAMPLE = Path(__file__).parents[2] / "deploy" / "observability" / "prometheus" / "prometheus.yml"


def promtool(arguments: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("promtool (Debian package prometheus) is not installed")
    return subprocess.run([binary, *arguments], input=stdin, capture_output=True, timeout=60, check=False)


def test_promtool_accepts_the_example_configuration() -> None:
    result = promtool(["check", "config", str(EXAMPLE)])
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_refuses_a_configuration_with_a_misspelt_key(tmp_path: Path) -> None:
    misspelt = shutil.copytree(EXAMPLE.parent, tmp_path / "prometheus") / EXAMPLE.name
    misspelt.write_text(EXAMPLE.read_text(encoding="utf-8").replace("honor_labels", "honour_labels"), encoding="utf-8")
    result = promtool(["check", "config", str(misspelt)])
    assert result.returncode != 0
    assert b"honour_labels" in result.stdout + result.stderr


@pytest.mark.parametrize(
    "exposition",
    [
        pytest.param(text_of(NodeCollector(node_view)).encode(), id="node"),
        pytest.param(job_metrics([job_view()], cluster="lab", now_unix_s=NOW_S, loop=LOOP).body, id="coordinator"),
    ],
)
def test_promtool_finds_nothing_to_complain_of_in_our_metrics(exposition: bytes) -> None:
    result = promtool(["check", "metrics"], exposition)
    assert (result.returncode, result.stdout + result.stderr) == (0, b"")
