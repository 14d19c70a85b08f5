"""A user of a node who does all that docs/security.md names, while something else is broken, too."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chaos.nodes import API_PORT, METRICS_PORT, Node
from chaos.site import ChaosSite
from integration.security.users import ADA, AS_USER, MALLORY

ROOT = Path(__file__).parents[2]
UP_WITHIN_S = 60.0
OWNER = "mallory"
PAUSE_S = "0.1"
"""Between two acts: together the attacks take a fifth of a core, as who has more of them is not what is tried here."""
SHM_BYTES = 512 << 20
"""Half of a node's /dev/shm."""


@contextmanager
def hostile_tenant(site: ChaosSite) -> Iterator[None]:
    """On the node beside the leak: false, cut and growing rings, links, a crowd of connections at the opener and the
    agent, names of 31 MiB, a share of /dev/shm, a stopped process with a socket. Raises ``AssertionError`` if one of
    them does not come up, or ends before the block: it would prove nothing."""
    node = site.nodes[1]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'collector'}:{ROOT / 'tests'}",
        "TIDEGAUGE_RUN_DIR": str(node.run_dir),
        "ACTOR_PAUSE_S": PAUSE_S,
    }
    log = site.folder / "tenant.log"
    log.write_text("")
    started: list[subprocess.Popen[bytes]] = []
    acts = _acts(site, node)
    try:
        for number, act in enumerate(acts):
            # A uid each, as of one user's range: what one does to its own folder must not end another's attack.
            command: list[str | Path] = [sys.executable, AS_USER, str(MALLORY + number), *act]
            started.append(node.start_job(command, environ, log, user=OWNER, stdin=subprocess.PIPE))
        site.eventually(
            lambda: log.read_text().count("ready") == len(acts), f"the tenant is up: {log.read_text()}",
            within_s=UP_WITHIN_S,
        )  # fmt: skip
        yield
        ended = [act[0] for act, process in zip(acts, started, strict=True) if process.poll() is not None]
        assert not ended, f"attacks that ended by themselves: {ended}\n{log.read_text()[-2000:]}"
    finally:
        for pid in node.owned_pids(OWNER):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in started:
            process.kill()
            process.communicate()
        for number in range(len(acts)):
            for name in (f"{MALLORY + number}", f"{MALLORY + number}-away"):
                _remove(node.run_dir / name)


def _acts(site: ChaosSite, node: Node) -> list[list[str]]:
    job = site.jobs["leaky"]
    incident = site.open_incident()
    assert incident is not None, "no incident is open"
    target = site.folder / "stolen"
    target.touch(mode=0o600)
    victim = job.rank_pids()[1]
    return [
        ["claims", incident["key"]["job"]["job_id"], str(victim), "1", "2"],
        ["cuts"],
        ["swaps", str(target), str(node.run_dir / str(ADA))],
        ["stops"],
        ["boasts"],
        ["fills", "/dev/shm", str(SHM_BYTES)],
        ["pesters_opener", str(node.opener_socket)],
        ["pesters_port", node.address, str(METRICS_PORT)],
        ["pesters_port", site.head.address, str(API_PORT)],
    ]


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
