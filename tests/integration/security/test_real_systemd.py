"""Head, agent and opener under a real systemd, installed as docs/slurm.md says (cell ``systemd-bookworm``)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from integration.namespaces import need_namespaces
from integration.needs import missing
from integration.security.systemd_host import SystemdHost
from integration.security.test_units import MAX_EXPOSURE
from integration.service import eventually
from matrix import SYSTEMDS, in_matrix

pytestmark = [pytest.mark.timeout(900), in_matrix(f"systemd-{SYSTEMDS[0]}")]
HEAD, NODE = "10.91.0.1", "10.91.0.2"
ALL_WELL = {("sd-head", "ok"), ("sd-node", "ok")}
LINKED_S = 180.0
PAGE = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], timeout=5).read().decode())"
RIGHTS = {"opener": "0000000000080002", "agent": "0" * 16, "head": "0" * 16}
"""Capabilities: the opener's are CAP_DAC_OVERRIDE and CAP_SYS_PTRACE."""


class Site(NamedTuple):
    head: SystemdHost
    node: SystemdHost

    def of(self, unit: str) -> SystemdHost:
        return self.head if unit == "head" else self.node

    def metrics(self) -> str:
        return self.node.run("/opt/tidegauge/bin/python", "-c", PAGE, f"http://{NODE}:9494/metrics", fails=True)

    def ranks_are_seen(self) -> bool:
        return all(f'job_id="{job}"' in self.metrics() for job in ("adas", "roots"))

    def is_linked(self) -> bool:
        said = self.head.run("tidegauge", "status", "--json", fails=True)
        service = json.loads(said)["service"] if said.startswith("{") else None
        return service is not None and {(one["hostname"], one["health"]) for one in service["nodes"]} >= ALL_WELL


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    need_namespaces()
    tree = os.environ.get("TIDEGAUGE_TEST_SYSTEMD_ROOT")
    if tree is None or shutil.which("systemd-nspawn") is None:
        missing("no systemd to boot: scripts/systemd_root.sh")
    folder = Path(tempfile.mkdtemp(prefix="tg-systemd-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _run("mount", "-t", "tmpfs", "-o", "size=2g", "none", folder)
        stack.callback(_run, "umount", "--lazy", folder)
        for name in ("sd-head", "sd-node"):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run("ip", "link", "add", "sd0", "netns", "sd-head", "type", "veth", "peer", "name", "sd0", "netns", "sd-node")
        for name, address in (("sd-head", HEAD), ("sd-node", NODE)):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "sd0")
            _run("ip", "-n", name, "link", "set", "sd0", "up")
        one = Site(*(SystemdHost(f"sd-{n}", a, Path(tree), folder / n) for n, a in (("head", HEAD), ("node", NODE))))
        for host in one:
            host.boot()
            stack.callback(host.power_off)
        _install(one)
        yield one


def _install(site: Site) -> None:
    site.head.install("--role", "head", "--node-address", HEAD, "--listen", "0.0.0.0")
    site.head.run("systemctl", "enable", "--now", "tidegauge-head")
    status = ["tidegauge", "status", "--json"]
    eventually(lambda: '"healthy": true' in site.head.run(*status, fails=True), "the head is up", within_s=LINKED_S)
    token = site.head.run("cat", "/var/lib/tidegauge/token")
    site.node.run("sh", "-c", f"umask 077; echo {token} > /root/token")
    site.node.install("--role", "node", "--head", f"{HEAD}:6399", "--token-file", "/root/token", "--listen", "0.0.0.0")
    site.node.run("systemctl", "enable", "--now", "tidegauge-opener", "tidegauge-agent")
    site.node.train("ada", "adas")
    site.node.train("root", "roots")
    eventually(site.is_linked, "head and node are linked", within_s=LINKED_S)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def test_units_run_and_show_the_ranks_of_other_users_and_nothing_is_refused(site: Site) -> None:
    eventually(site.ranks_are_seen, "the ranks are in /metrics")
    assert 'tidegauge_collect_success{source="opener"} 1.0' in site.metrics()
    assert "opener    answers" in site.node.run("tidegauge", "status")
    for unit in RIGHTS:
        said = site.of(unit).run("journalctl", "-o", "cat", "-u", f"tidegauge-{unit}")
        assert not re.search("Traceback|denied|not permitted|Failed|ERROR", said), said


@pytest.mark.parametrize("unit", RIGHTS)
def test_a_running_unit_has_the_rights_that_the_page_says(site: Site, unit: str) -> None:
    said = site.of(unit).run("systemd-analyze", "security", "--no-pager", f"tidegauge-{unit}")
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= MAX_EXPOSURE[unit]
    uid = "0" if unit == "opener" else site.of(unit).run("id", "-u", "tidegauge")
    processes = site.of(unit).statuses(f"tidegauge-{unit}")
    assert processes
    for one in processes:
        assert one["Uid"] == " ".join([uid] * 4)
        assert {one[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {RIGHTS[unit]}, one
        assert (one["Seccomp"], one["NoNewPrivs"]) == ("2", "1"), one
        assert int(one["polling"]) <= 2, "gRPC counts the host's processors"


@pytest.mark.parametrize("how", [["restart"], ["kill", "--signal=KILL"], ["kill", "--kill-whom=main", "--signal=KILL"]])
@pytest.mark.parametrize("unit", RIGHTS)
def test_a_unit_that_is_ended_comes_back(site: Site, unit: str, how: list[str]) -> None:
    main_pid = ["systemctl", "show", "--property=MainPID", "--value", f"tidegauge-{unit}"]
    before = site.of(unit).run(*main_pid)
    site.of(unit).run("systemctl", *how, f"tidegauge-{unit}")
    eventually(lambda: site.of(unit).run(*main_pid) not in ("0", before), "the unit is started again")
    eventually(site.is_linked, "head and node are linked", within_s=LINKED_S)
    eventually(site.ranks_are_seen, "the ranks are in /metrics")


def test_a_node_that_boots_before_its_head_watches_and_joins_it_later(site: Site) -> None:
    site.head.power_off()
    site.node.power_off()
    site.node.boot()
    site.node.train("ada", "adas")
    site.node.train("root", "roots")
    eventually(site.ranks_are_seen, "the ranks are in /metrics", within_s=LINKED_S)
    site.head.boot()
    eventually(site.is_linked, "head and node are linked", within_s=LINKED_S)
    assert site.ranks_are_seen()
