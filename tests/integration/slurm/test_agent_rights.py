"""The units of opener and agent give them what they need and no more: run with their capabilities and file systems."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from integration.service import eventually
from integration.slurm.box import CHECKOUT, SERVICE_PYTHON, SlurmBox
from integration.slurm.conftest import StartBox

pytestmark = pytest.mark.timeout(400)

UNIT = (CHECKOUT / "deploy/systemd/tidegauge-opener.service").read_text()
AGENT_UNIT = (CHECKOUT / "deploy/systemd/tidegauge-agent.service").read_text()
TIDEGAUGE = SERVICE_PYTHON.with_name("tidegauge")
RANK = CHECKOUT / "tests/integration/slurm/ring_rank.py"
FOLDER = "/run/tidegauge/5001"
EVERYTHING = {"list", "read", "ask", "remove", "root"}

LISTENER = f"""
import os, socket, time
os.makedirs("{FOLDER}", 0o700, exist_ok=True)
for name in ("1-1.ring", "2-2.ring"):
    os.close(os.open("{FOLDER}/" + name, os.O_CREAT | os.O_WRONLY, 0o600))
listener = socket.socket(socket.AF_UNIX)
os.umask(0o077)
listener.bind("{FOLDER}/1-1.sock")
listener.listen()
os.close(os.open("{FOLDER}/listens", os.O_CREAT | os.O_WRONLY, 0o600))
time.sleep(600)
"""
"""A user's process with files as the probe makes them."""

TRIES = f"""
import json, os, socket, sys
pid = sys.argv[1]
def may(what):
    try:
        what()
    except PermissionError:
        return False
    return True
print(json.dumps([name for name, what in {{
    "list": lambda: os.listdir("{FOLDER}"),
    "read": lambda: open("{FOLDER}/1-1.ring").close(),
    "ask": lambda: socket.socket(socket.AF_UNIX).connect("{FOLDER}/1-1.sock"),
    "root": lambda: os.listdir(f"/proc/{{pid}}/root/dev/shm"),
    "remove": lambda: os.unlink("{FOLDER}/2-2.ring"),
}}.items() if may(what)]))
"""
"""What the opener does with them; prints what it may."""


def capabilities() -> list[str]:
    """Of the unit, as setpriv(1) spells them."""
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT, re.MULTILINE)
    return [name.removeprefix("CAP_").lower() for name in line.split()]


def with_rights(kept: list[str]) -> list[str]:
    """The command in front of one that is to have ``kept`` and no new privileges."""
    bounds = ",".join(["-all", *(f"+{name}" for name in kept)])
    return ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "--no-new-privs"]


@pytest.fixture(scope="module")
def box(start_box: StartBox) -> SlurmBox:
    return start_box(nodes=1, gpus=1)


@pytest.fixture
def stack(box: SlurmBox) -> Iterator[ExitStack]:
    """What the test started, ended with it; its logs are shown if the test fails."""
    with ExitStack() as stack:
        yield stack
        print(*(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(box.work.glob("*.log"))))


def allowed(box: SlurmBox, kept: list[str]) -> set[str]:
    """What an opener with these capabilities may do with another user's rank."""
    box.run("rm", "-rf", FOLDER, node="n1")
    with running(box.start([SERVICE_PYTHON, "-c", LISTENER], user="alice", node="n1")):
        eventually(lambda: exists(box, "-e", f"{FOLDER}/listens", "n1"), "the rank listens")
        pid = box.run("pgrep", "-u", "alice", "-f", "listener.listen", node="n1").stdout.split()[-1]
        done = box.run(*with_rights(kept), SERVICE_PYTHON, "-c", TRIES, pid, node="n1")
        return set(json.loads(done.stdout))


def exists(box: SlurmBox, kind: str, path: str, node: str | None) -> bool:
    return box.run("test", kind, path, node=node, check=False).returncode == 0


@contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ended with the block."""
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def test_the_units_capabilities_are_enough(box: SlurmBox) -> None:
    assert allowed(box, capabilities()) == EVERYTHING


@pytest.mark.parametrize(
    ("without", "lost"),
    [("dac_override", {"list", "read", "ask", "remove"}), ("sys_ptrace", {"root"})],
)
def test_each_of_them_is_needed(box: SlurmBox, without: str, lost: set[str]) -> None:
    kept = [name for name in capabilities() if name != without]
    assert len(kept) == len(capabilities()) - 1
    assert allowed(box, kept) == EVERYTHING - lost


def test_no_other_is_given() -> None:
    assert sorted(capabilities()) == ["dac_override", "sys_ptrace"]
    assert re.findall(r"^CapabilityBoundingSet=(.*)$", AGENT_UNIT, re.MULTILINE) == [""]


STRICT = """
set -eu
# ProtectSystem=strict and ReadWritePaths: all is read only but devices, kernel interfaces and what the unit names.
for folder in "$@"; do mkdir -p "$folder"; mount --bind "$folder" "$folder"; done
findmnt -rno TARGET | while read -r mounted; do
    for writable in /dev /proc /sys "$@"; do
        case $mounted in "$writable" | "$writable"/*) continue 2 ;; esac
    done
    mount -o remount,bind,ro "$mounted" 2>/dev/null || true  # one that another mount lies upon
done
case "$CHECKOUT" in /tmp/*) ;; *) mount -t tmpfs none /tmp ;; esac  # with the checkout in it, it has to stay
for folder in /etc /usr /root /run /var/lib; do
    if touch "$folder/written-by-a-unit" 2>/dev/null; then echo "$folder can be written to"; exit 1; fi
done
"""


def test_agent_and_opener_with_the_units_rights_see_the_ranks_of_all_users(box: SlurmBox, stack: ExitStack) -> None:
    """Head as ``tidegauge`` on the controller's host, opener and agent on the node, each as its unit has it."""
    head_state = "/var/lib/tidegauge"
    box.run("rm", "-rf", head_state)  # the machine's own shows through
    box.run("install", "-d", "-m", "700", "-o", "tidegauge", head_state)
    environ = {"TIDEGAUGE_STATE_DIR": head_state, "TIDEGAUGE_LISTEN_HOST": "0.0.0.0", "TIDEGAUGE_LINGER_S": "1"}
    head = f"{TIDEGAUGE} up --foreground --node-address {box.address('ctl')}"
    become = ["--reuid=tidegauge", "--regid=tidegauge", "--clear-groups"]
    stack.enter_context(
        running(box.start([*with_rights([]), *become, *head.split()], environ=environ, log=box.work / "head.log"))
    )
    eventually(lambda: exists(box, "-s", f"{head_state}/api.json", None), "the head is up")

    token = box.run("cat", f"{head_state}/token").stdout
    agent_state = "/var/lib/tidegauge-agent"
    box.run("install", "-d", "-m", "755", "/etc/tidegauge", node="n1")
    box.run("sh", "-c", "umask 077; cat >/etc/tidegauge/token", stdin=token, node="n1")
    (prepare,) = re.findall(r"^ExecStartPre=-\+(.*)$", AGENT_UNIT, re.MULTILINE)
    box.run(*prepare.split(), node="n1")
    sockets = "/run/tidegauge-opener"
    box.run("install", "-d", "-m", "750", "-g", "tidegauge", sockets, node="n1")
    opener = f"{SERVICE_PYTHON} -m tidegauge.opener --user tidegauge --socket {sockets}/socket"
    as_root = " ".join([*with_rights(capabilities()), "--regid=tidegauge", "--clear-groups"])
    strict_opener = ["unshare", "--mount", "bash", "-c", f"{STRICT}\nexec {as_root} {opener}", "opener"]
    stack.enter_context(
        running(
            box.start(
                [*strict_opener, sockets, "/run/tidegauge"],
                node="n1", environ={"CHECKOUT": str(CHECKOUT)}, log=box.work / "opener.log",
            )
        )
    )  # fmt: skip
    box.run("rm", "-rf", agent_state, node="n1")
    box.run("install", "-d", "-m", "700", "-o", "tidegauge", agent_state, node="n1")
    join = f"{TIDEGAUGE} up --foreground --join {box.address('ctl')}:6399 --token-file /etc/tidegauge/token"
    strict = f"{STRICT}\nexec {' '.join([*with_rights([]), *become])} {join}"
    agent = ["unshare", "--mount", "bash", "-c", strict, "agent", agent_state]
    environ |= {
        "TIDEGAUGE_STATE_DIR": agent_state, "TIDEGAUGE_OPENER_SOCKET": f"{sockets}/socket", "CHECKOUT": str(CHECKOUT)
    }  # fmt: skip

    def start_agent() -> subprocess.Popen[bytes]:
        started = box.start(agent, node="n1", environ=environ, log=box.work / "agent.log")
        stack.enter_context(running(started))
        return started

    agents = [start_agent()]
    go_file = box.work / "go"
    wrapped = f"PYTHONPATH={CHECKOUT / 'tests'} srun {SERVICE_PYTHON} {RANK} {go_file} 0"
    job = box.sbatch(wrapped, "--mem=500", user="bob")

    def ranks() -> list[dict[str, Any]]:
        # As the unit says: on a loaded machine a node may not be let in within Ray's patience.
        if agents[-1].poll() is not None:
            agents.append(start_agent())
        done = box.run(
            TIDEGAUGE, "jobs", "--json", "--api", f"http://{box.address('ctl')}:9495", user="bob", check=False
        )
        jobs = json.loads(done.stdout)["jobs"] if done.returncode == 0 else []
        return [rank for one in jobs for rank in one["ranks"]]

    try:
        (rank,) = eventually(ranks, "the rank is seen", within_s=240)
    except AssertionError:
        print(*(path.read_text()[-3000:] for path in box.work.glob("*.log")), box.output(job))
        raise
    assert (rank["user_name"], rank["identity"]["hostname"], rank["identity"]["job_id"]) == ("bob", "n1", job)
    rights = box.run(
        "sh", "-c", "cat $(pgrep -u tidegauge | sed 's|.*|/proc/&/status|')", node="n1", check=False
    ).stdout
    assert set(re.findall(r"^Cap(?:Prm|Eff|Inh):\s+(\S+)$", rights, re.MULTILINE)) == {"0" * 16}, (
        "whoever has the token"
    )
    go_file.touch()
    find = ("find", "/run/tidegauge/5002", "-ignore_readdir_race", "-name", "*.ring")
    eventually(lambda: box.run(*find, node="n1").stdout == "", "the ring is removed")
