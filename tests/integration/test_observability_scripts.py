"""The scripts of deploy/observability bring up what they say: real Prometheus and Alertmanager, and a stand-in for
Grafana that writes down what it was given."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from integration.alertmanager_server import alertmanager_binary
from integration.needs import missing
from integration.observability_scripts import OBSERVABILITY, brought_up
from integration.prometheus_server import prometheus_binary
from integration.server_process import free_port
from tidegauge_exporter.runbooks.job_alerts import JOB_RUNBOOK
from tidegauge_exporter.runbooks.page import runbooks_html
from tidegauge_exporter.runbooks.service_alerts import SERVICE_RUNBOOK

pytestmark = pytest.mark.timeout(400)

TOOLS = ("sh", "basename", "cat", "dirname", "mkdir", "mv", "readlink", "sed")


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


def test_prometheus_serves_the_runbooks_and_alerts_link_to_where_people_reach_it(tmp_path: Path) -> None:
    if prometheus_binary() is None:
        missing("prometheus is not installed")
    port = free_port()
    options = (
        "--grafana-url",
        "https://grafana.example/team/",
        "--service-url",
        "https://head.example/",
        "--contact",
        "GPU on-call, +49 30 1234",
    )
    with brought_up("prometheus.sh", tmp_path, *options, port=port) as url:
        groups = asked(f"{url}/api/v1/rules?type=alert")["data"]["groups"]
        with urllib.request.urlopen(f"{url}/consoles/tidegauge-runbooks.html", timeout=60) as answer:
            page = answer.read().decode()
    annotations = [rule["annotations"] for group in groups for rule in group["rules"]]
    [local] = {one["runbook_url"].partition("#")[0] for one in annotations}
    assert local == f"http://localhost:{port}/consoles/tidegauge-runbooks.html"
    assert all(one["dashboard_url"].startswith("https://grafana.example/team/d/tidegauge-") for one in annotations)
    jobs = {one["job_url"].partition("?")[0] for one in annotations if "job_url" in one}
    assert jobs == {"https://head.example/job"}
    # Prometheus' template leaves comments of the style sheet out.
    assert page.partition("</head>")[2] == runbooks_html("GPU on-call, +49 30 1234").partition("</head>")[2]


def test_alerts_link_to_the_runbooks_that_the_site_names(tmp_path: Path) -> None:
    if prometheus_binary() is None:
        missing("prometheus is not installed")
    with brought_up("prometheus.sh", tmp_path, "--runbook-url", "https://wiki.example/gpu?page=1") as url:
        groups = asked(f"{url}/api/v1/rules?type=alert")["data"]["groups"]
    links = {rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}
    assert "https://wiki.example/gpu?page=1#tidegaugecoordinatordown" in links
    assert {link.partition("#")[0] for link in links} == {"https://wiki.example/gpu?page=1"}


def uncommented(example: str, path: Path) -> Path:
    """An example file as a site fills it in: every block in use."""
    _, *blocks = (OBSERVABILITY / "alertmanager" / example).read_text(encoding="utf-8").split("\n\n")
    path.write_text("\n".join(re.sub(r"(?m)^# ?", "", block) for block in blocks), encoding="utf-8")
    return path


def test_receivers_of_the_site_get_the_alerts_about_the_service_and_the_watchdog(tmp_path: Path) -> None:
    if alertmanager_binary() is None:
        missing("alertmanager is not installed")
    service = uncommented("service-receiver.example.yml", tmp_path / "service receiver.yml")
    watchdog = uncommented("watchdog-receiver.example.yml", tmp_path / "watchdog.yml")
    options = ("--service-receiver", str(service), "--watchdog-receiver", str(watchdog))
    done = run_script("alertmanager.sh", "--data", str(tmp_path / "data"), *options, "--print")
    assert (done.returncode, done.stderr) == (0, "")
    receivers = {one.pop("name"): one for one in yaml.safe_load(done.stdout)["receivers"]}
    assert receivers["tidegauge-service"] == yaml.safe_load(service.read_text(encoding="utf-8"))
    assert receivers["tidegauge-watchdog"] == yaml.safe_load(watchdog.read_text(encoding="utf-8"))
    assert (tmp_path / "data" / "alertmanager.yml").stat().st_mode & 0o077 == 0, "it may have passwords"
    amtool = shutil.which("amtool") or missing("amtool is not installed")
    config = str(tmp_path / "data" / "alertmanager.yml")
    subprocess.run([amtool, "check-config", config], check=True, capture_output=True, timeout=60)


def test_alertmanager_links_to_where_people_reach_it(tmp_path: Path) -> None:
    path = bare_path(tmp_path / "bin")
    stand_in = tmp_path / "bin" / "alertmanager"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    stand_in.chmod(0o755)
    options = (
        "--data",
        str(tmp_path / "data"),
        "--external-url",
        "https://alerts.example/am",
        "--",
        "--log.level=warn",
    )
    done = run_script("alertmanager.sh", *options, PATH=path)
    assert {"--web.external-url=https://alerts.example/am", "--log.level=warn"} <= set(done.stdout.splitlines())


def test_silences_of_the_runbooks_are_what_amtool_takes(tmp_path: Path) -> None:
    if alertmanager_binary() is None or shutil.which("amtool") is None:
        missing("alertmanager or amtool is not installed")
    with brought_up("alertmanager.sh", tmp_path) as url:
        steps = {step for entry in (*JOB_RUNBOOK, *SERVICE_RUNBOOK) for step in entry.silence}
        for step in steps:
            command = step.command.replace("http://ALERTMANAGER:9093", url)
            done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, f"{command}: {done.stderr}"
        silences = asked(f"{url}/api/v2/silences")
    silenced = {matcher["value"] for one in silences for matcher in one["matchers"] if matcher["name"] == "alertname"}
    assert silenced == {entry.alert for entry in (*JOB_RUNBOOK, *SERVICE_RUNBOOK)} - {"Watchdog"}


def test_alertmanager_script_says_loudly_who_will_not_be_notified(tmp_path: Path) -> None:
    done = run_script("alertmanager.sh", "--data", str(tmp_path / "data"), "--print")
    assert done.returncode == 0
    assert "WARNING: NOBODY WILL BE NOTIFIED WHEN TIDEGAUGE IS DOWN" in done.stderr
    assert "service-receiver.example.yml" in done.stderr
    assert "Nobody will be notified when Prometheus or Alertmanager is down" in done.stderr
    [ours, fallback] = [
        one for one in yaml.safe_load(done.stdout)["receivers"] if one["name"] in ("tidegauge", "tidegauge-service")
    ]
    assert fallback["webhook_configs"] == ours["webhook_configs"], "better told by us than by nobody"


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
        ("prometheus.sh", ["--coordinator", "http://head:9495"], "is not HOST:PORT"),
        ("prometheus.sh", ["--coordinator", "head"], "is not HOST:PORT"),
        ("prometheus.sh", ["--alertmanager", "::1:9093"], "is not HOST:PORT"),
        ("prometheus.sh", ["--port", "http"], "is not a port"),
        ("prometheus.sh", ["--grafana-url", "grafana.example"], "is not an http(s) address"),
        ("prometheus.sh", ["--runbook-url", "https://x/|y"], "is not an http(s) address"),
        ("prometheus.sh", ["--contact", "<b>"], "only letters"),
        ("alertmanager.sh", ["--receiver", "head:9496/alerts"], "is not HOST:PORT"),
        ("alertmanager.sh", ["--external-url", "alerts.example"], "is not an http(s) address"),
        ("alertmanager.sh", ["--service-receiver", "/nowhere"], "cannot be read"),
        ("alertmanager.sh", ["--watchdog-receiver", "/etc/hostname"], "names no receiver"),
        ("alertmanager.sh", ["--slack-url-file", "/etc/hostname", "--service-receiver", "/x"], "all alerts itself"),
        ("alertmanager.sh", ["--slack-url-file"], "needs a value"),
        ("alertmanager.sh", ["--slack-url-file", "relative"], "is not an absolute path"),
        ("alertmanager.sh", ["--slack-url-file", "/nowhere"], "cannot be read"),
        ("grafana.sh", ["--prometheus", "127.0.0.1:9090"], "is not an http(s) address"),
        ("grafana.sh", ["--prot", "1"], "unknown option --prot; try --help"),
    ],
)
def test_observability_script_refuses_unusable_options(
    tmp_path: Path, script: str, options: list[str], complaint: str
) -> None:
    done = run_script(script, "--data", str(tmp_path / "data"), *options)
    assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr
