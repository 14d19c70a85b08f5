"""The units' hardening: how far systemd says it goes, and that the service runs under it.

Here without systemd as first process (``test_real_systemd.py`` has one): its filter of system calls is built as systemd
builds it (``seccomp_exec``); capabilities and the read-only file system are in
``tests/integration/slurm/test_agent_rights.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.needs import missing
from integration.security.seccomp_exec import calls_of
from integration.service import Service, eventually

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[3]
UNITS = {
    "agent": ROOT / "deploy/systemd/tidegauge-agent.service",
    "opener": ROOT / "deploy/systemd/tidegauge-opener.service",
    "head": ROOT / "deploy/systemd/tidegauge-head.service",
}
TMPFILES = ROOT / "deploy/systemd/tidegauge.tmpfiles.conf"
SECCOMP_EXEC = Path(__file__).with_name("seccomp_exec.py")
MAX_EXPOSURE = {"agent": 1.9, "opener": 1.5, "head": 1.9}
"""What docs/security.md says; 10 is a service without any of it. Counted by systemd 252; others differ a little."""


@pytest.fixture(autouse=True)
def analyze() -> None:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not installed")


def words(unit: str, setting: str) -> list[str]:
    return re.findall(rf"^{setting}=(.*)$", UNITS[unit].read_text(), re.MULTILINE)


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_is_no_more_exposed_than_the_page_says(unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", UNITS[unit]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MAX_EXPOSURE[unit]
    page = (ROOT / "docs/security.md").read_text()
    assert f"{MAX_EXPOSURE[unit]:g}" in page


def test_grpc_counts_two_processors_on_a_host_with_many(tmp_path: Path) -> None:
    """By `sysconf(_SC_NPROCESSORS_CONF)`, for which glibc reads the file that the agent's unit puts another in front
    of."""
    source, _, target = words("agent", "BindReadOnlyPaths")[0].lstrip("-").partition(":")
    made = re.search(rf"^f {source} 0444 root root - (.*)$", TMPFILES.read_text(), re.MULTILINE)
    assert made is not None
    (tmp_path / "many").write_text("0-63\n")
    (tmp_path / "two").write_text(made[1])
    script = f'mount --bind many {target}; getconf _NPROCESSORS_CONF; mount --bind -o ro two {target}; exec "$@"'
    count = 'import os; print(os.sysconf("SC_NPROCESSORS_CONF"), os.cpu_count())'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script, "sh", sys.executable, "-c", count],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        missing(f"a mount over {target}: {done.stderr}")
    assert done.stdout.split() == ["64", "2", str(os.cpu_count())], "those that there are stay as they are"


def test_unit_syscall_filter_allows_only_needed_calls() -> None:
    allowed, denied = words("agent", "SystemCallFilter")
    assert (allowed, denied[0]) == ("@system-service", "~")
    assert words("head", "SystemCallFilter") == [allowed, denied]
    calls = calls_of(allowed) - calls_of(denied[1:])
    assert {"mmap", "openat", "clone3", "accept4", "statfs"} <= calls
    assert not {"mount", "ptrace", "setuid", "chroot", "bpf", "kexec_load", "init_module", "reboot", "swapon"} & calls


@pytest.fixture
def service() -> Iterator[Service]:
    one = Service()
    yield one
    one.close()


def test_the_service_comes_up_and_works_under_the_filter(service: Service) -> None:
    allowed, denied = words("agent", "SystemCallFilter")
    done = subprocess.run(
        [sys.executable, SECCOMP_EXEC, allowed, denied[1:], sys.executable, "-m", "tidegauge.cli.main", "up"],
        env={**service.environ, "PYTHONPATH": str(ROOT / "tests")}, cwd="/", capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr}\n{service.logs()}"
    eventually(lambda: service.get("/api/v1/status")["healthy"], "the agent reports")
    for pid in [service.record.supervisor.pid, *service.agents(), *service.coordinators()]:
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE), "it runs without the filter"
    assert service.get("/api/v1/nodes")["nodes"]
    assert service.call("down").code == 0
