"""The scripts of deploy/observability bring up what they say: real Prometheus and Alertmanager, and a stand-in for
Grafana that writes down what it was given."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.alertmanager_server import alertmanager_binary
from integration.needs import missing
from integration.prometheus_server import prometheus_binary
from integration.server_process import end, free_port, wait_until_ready

pytestmark = pytest.mark.timeout(400)

OBSERVABILITY = Path(__file__).parents[2] / "deploy" / "observability"
TOOLS = ("sh", "basename", "cat", "dirname", "mkdir", "readlink", "sed")


@contextmanager
def brought_up(script: str, folder: Path, *options: str) -> Iterator[str]:
    """The script at work, from ready until the block ends; gives its server's address."""
    port = free_port()
    log_path = folder / f"{script}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [OBSERVABILITY / script, "--port", str(port), "--data", str(folder / "data"), *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(process, url, log_path)
        yield url
    finally:
        end(process)  # the script has become the server


def asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def bare_path(folder: Path) -> str:
    """A PATH with what the scripts need and no server."""
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (folder / tool).symlink_to(found)
    return str(folder)


def run_script(script: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [OBSERVABILITY / script, *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_prometheus_has_our_rules_and_knows_where_to_scrape_and_whom_to_tell(tmp_path: Path) -> None:
    if prometheus_binary() is None:
        missing("prometheus is not installed")
    options = ("--coordinator", "127.0.0.1:19495", "--alertmanager", "127.0.0.1:19093")
    with brought_up("prometheus.sh", tmp_path, *options, "--", "--storage.tsdb.retention.time=1d") as url:
        groups = {group["name"] for group in asked(f"{url}/api/v1/rules")["data"]["groups"]}
        config = asked(f"{url}/api/v1/status/config")["data"]["yaml"]
        flags = asked(f"{url}/api/v1/status/flags")["data"]
    assert {"tidegauge-jobs", "tidegauge-job-alerts", "tidegauge-service-alerts"} <= groups
    assert "url: http://127.0.0.1:19495/sd" in config
    assert "- 127.0.0.1:19093" in config
    assert flags["web.listen-address"].startswith("127.0.0.1:")
    assert flags["storage.tsdb.retention.time"] == "1d"


def test_alertmanager_hands_alerts_to_the_receiver(tmp_path: Path) -> None:
    if alertmanager_binary() is None:
        missing("alertmanager is not installed")
    with brought_up("alertmanager.sh", tmp_path, "--receiver", "127.0.0.1:19496") as url:
        status = asked(f"{url}/api/v2/status")
    assert "http://127.0.0.1:19496/alerts" in status["config"]["original"]
    assert status["cluster"]["status"] == "disabled", "no port is open for other Alertmanagers"


def test_alertmanager_tells_slack_by_itself_where_it_is_given_an_address(tmp_path: Path) -> None:
    if alertmanager_binary() is None:
        missing("alertmanager is not installed")
    address = tmp_path / "slack-url"
    address.write_text("http://127.0.0.1:1/hook", encoding="utf-8")
    with brought_up("alertmanager.sh", tmp_path, "--slack-url-file", str(address)) as url:
        config = asked(f"{url}/api/v2/status")["config"]["original"]
    assert f"api_url_file: {address}" in config
    assert str(OBSERVABILITY / "alertmanager" / "slack.tmpl") in config


@pytest.mark.parametrize("program", ["grafana", "grafana-server"])
def test_grafana_is_given_our_dashboards_and_data_sources(tmp_path: Path, program: str) -> None:
    home = tmp_path / "home of grafana"
    (home / "bin").mkdir(parents=True)
    (home / "conf").mkdir()
    (home / "conf" / "defaults.ini").touch()
    stand_in = home / "bin" / program
    told = tmp_path / "told"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{told}"\nenv >>"{told}"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    path = f"{stand_in.parent}:{bare_path(tmp_path / 'bin')}:{Path(shutil.which('env') or '').parent}"
    done = run_script(
        "grafana.sh", "--data", str(tmp_path / "data"), "--port", "13000", "--prometheus", "http://127.0.0.1:19090",
        "--", "--flag", PATH=path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = told.read_text(encoding="utf-8").splitlines()
    arguments = [*(["server"] if program == "grafana" else []), "--homepath", str(home), "--flag"]
    assert lines[: len(arguments)] == arguments
    environment = dict(line.split("=", 1) for line in lines[len(arguments) :] if "=" in line)
    assert environment["GF_PATHS_PROVISIONING"] == str(OBSERVABILITY / "grafana" / "provisioning")
    assert environment["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    assert environment["GF_SERVER_HTTP_PORT"] == "13000"
    assert environment["TIDEGAUGE_DASHBOARDS"] == str(OBSERVABILITY / "grafana" / "dashboards")
    assert environment["TIDEGAUGE_PROMETHEUS_URL"] == "http://127.0.0.1:19090"
    assert environment["GF_PATHS_DATA"] == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("prometheus.sh", "apt install prometheus"),
        ("alertmanager.sh", "apt install prometheus-alertmanager"),
        ("grafana.sh", "grafana.com/grafana/download"),
    ],
)
def test_a_script_says_what_is_missing_and_how_to_get_it(tmp_path: Path, script: str, how: str) -> None:
    done = run_script(script, PATH=bare_path(tmp_path / "bin"), HOME=str(tmp_path))
    assert done.returncode == 2
    assert "is not installed" in done.stderr
    assert how in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("script", "options", "complaint"),
    [
        ("prometheus.sh", ["--coordinator", "x|y"], "is not an address"),
        ("prometheus.sh", ["--port", "http"], "is not a port"),
        ("alertmanager.sh", ["--slack-url-file"], "needs a value"),
        ("alertmanager.sh", ["--slack-url-file", "relative"], "is not an absolute path"),
        ("alertmanager.sh", ["--slack-url-file", "/nowhere"], "cannot be read"),
        ("grafana.sh", ["--prot", "1"], "unknown option --prot; try --help"),
    ],
)
def test_observability_script_refuses_unusable_options(
    tmp_path: Path, script: str, options: list[str], complaint: str
) -> None:
    done = run_script(script, "--data", str(tmp_path / "data"), *options)
    assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr
