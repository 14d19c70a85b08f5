"""Hosts that a real systemd has booted: systemd-nspawn on a tree of ``scripts/systemd_root.sh``.

Each host writes to a folder of its own in memory, above the tree: it boots again as it was left. Two
things are not as on a machine. There are no limits of memory and processors where this machine has their controllers in
cgroup v1. And systemd-nspawn puts its own boot id in front of the kernel's, which units with their own ``/proc`` do
not see: it is taken away.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from integration.service import eventually

CHECKOUT = Path(__file__).parents[3]
CGROUPS = """
set -e
mount --make-rprivate /
umount --recursive --lazy /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
"""
TIDY = f"""{CGROUPS}
find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {{}} ';'
"""
BOOT = f"""{CGROUPS}
mkdir -p "/sys/fs/cgroup/$1"
echo $$ > "/sys/fs/cgroup/$1/cgroup.procs"
mount -t overlay -o "lowerdir=$2,upperdir=$3/upper,workdir=$3/work" none "$3/root"
exec systemd-nspawn --quiet --boot --register=no --keep-unit --console=pipe --machine="$1" --directory="$3/root" \\
  --network-namespace-path="/run/netns/$1" --capability=CAP_BPF,CAP_PERFMON,CAP_NET_ADMIN --system-call-filter=bpf \\
  --bind-ro="$4:/src" --bind-ro="$3/possible:/sys/devices/system/cpu/possible"
"""
BOOT_ID = "while umount /proc/sys/kernel/random/boot_id 2>/dev/null; do :; done"
RANK = "sleep infinity | /opt/tidegauge/bin/python -m integration.security.actors trains {job} 0"


class SystemdHost:
    """One host, in the network namespace that is called as it is. The checkout is at ``/src``; it has 64 processors."""

    def __init__(self, name: str, address: str, tree: Path, folder: Path) -> None:
        self.name, self.address = name, address
        self._tree, self._folder = tree, folder
        self._nspawn: subprocess.Popen[bytes] | None = None
        for part in ("upper", "work", "root"):
            (folder / part).mkdir(parents=True)
        (folder / "possible").write_text("0-63\n")

    def boot(self) -> None:
        with (self._folder / "console.log").open("ab") as console:
            self._nspawn = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", BOOT, "sh", self.name, self._tree, self._folder, CHECKOUT],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        eventually(lambda: self._first_pid() is not None, f"{self.name} boots: {self._folder}/console.log")
        state = ["systemctl", "is-system-running", "--wait"]
        eventually(lambda: self.run(*state, fails=True) in ("running", "degraded"), "it has booted")
        self.run("sh", "-c", BOOT_ID)

    def power_off(self) -> None:
        if self._nspawn is None or self._nspawn.poll() is not None:
            return
        self.run("systemctl", "poweroff", fails=True)
        try:
            self._nspawn.wait(60)
        except subprocess.TimeoutExpired:
            self._nspawn.kill()
            self._nspawn.wait()
        subprocess.run(["unshare", "--mount", "sh", "-c", TIDY, "sh", self.name], check=True)

    def run(self, *command: str, fails: bool = False) -> str:
        """What a command of root's writes on the host, both outputs; it may only fail where it ``fails``."""
        pid = self._first_pid()
        assert pid is not None, f"{self.name} does not run: {self._folder}/console.log"
        environ = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/root", "SYSTEMD_COLORS": "0"}
        done = subprocess.run(
            ["nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", *command], env=environ,
            cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240,
            check=False,
        )  # fmt: skip
        assert fails or done.returncode == 0, f"{' '.join(command)} on {self.name}: {done.returncode}: {done.stdout}"
        return done.stdout.strip()

    def install(self, *arguments: str) -> str:
        """As docs/slurm.md says, but for what is started."""
        said = self.run("/src/deploy/slurm/install.sh", "--without-spank", "--yes", *arguments)
        self.run("systemd-sysusers", "tidegauge.conf")
        self.run("systemd-tmpfiles", "--create", "tidegauge.conf")
        self.run("systemctl", "daemon-reload")
        return said

    def train(self, user: str, job: str) -> None:
        """Let a user's process write a ring until the host ends."""
        self.run("systemd-run", f"--uid={user}", "--setenv=PYTHONPATH=/src/tests", "sh", "-c", RANK.format(job=job))

    def statuses(self, unit: str) -> Sequence[dict[str, str]]:
        """``/proc/PID/status`` of each process of a unit, with how many threads gRPC has for polling as ``polling``."""
        look = (
            f"for p in $(cat /sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs); do cat /proc/$p/status; "
            "echo polling: $(cat /proc/$p/task/*/comm | grep -c nexting_thread); done"
        )
        lines = [line.split(":", 1) for line in self.run("sh", "-c", look, fails=True).splitlines() if ":" in line]
        found: list[dict[str, str]] = []
        for name, value in lines:
            if name == "Name":
                found.append({})
            found[-1][name] = " ".join(value.split())
        return found

    def _first_pid(self) -> int | None:
        if self._nspawn is None or self._nspawn.poll() is not None:
            return None
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        return next((int(pid) for pid in children if os.path.basename(_command(pid)) in ("systemd", "init")), None)


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""
