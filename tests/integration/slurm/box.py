"""A real Slurm cluster for tests: a controller and nodes with fake GPUs, each a host of its own, on this machine.

All of it lives in namespaces of its own (``box_scripts/boot.sh``) and is gone when the block or the test process
ends, even by SIGKILL. What is written inside is written in memory, so that a test may install files as root without
changing the machine. Shared between hosts and with the machine are ``work``, the users' homes and the checkout; own
to each host are its name, network, processes, ``/run``, ``/tmp`` and ``/dev/shm``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from integration.slurm import box_files
from integration.slurm.box_files import CONTROLLER, Shape
from integration.slurm.box_keeper import BoxKeeper, check_reachable, children, installed_in, outermost

CHECKOUT = Path(__file__).resolve().parents[3]
SERVICE_PYTHON = CHECKOUT / ".venv/bin/python"
RIG_PYTHON = CHECKOUT / ".rig/venv/bin/python"
USERS = {"alice": 5001, "bob": 5002, "tidegauge": 5003}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NEEDED_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "setpriv")
FileContent = str | bytes | tuple[str | bytes, int]
"""What a file of ``/etc/slurm`` holds, and its mode where that is not 0644."""


def why_no_box(root: Path | None = None, *, accounting: bool = False, cgroup: bool = False) -> str | None:
    """What this machine (or the Debian tree ``root``) lacks for a box, or ``None`` when one can start."""
    if os.geteuid() != 0:
        return "a Slurm box needs root: it makes namespaces, devices and users of its own"
    folders = [str(root or "") + folder for folder in PATH.split(":")]
    programs = [*NEEDED_PROGRAMS, *(("slurmdbd", "mariadbd") if accounting else ())]
    missing = [name for name in programs if shutil.which(name, path=":".join(folders)) is None]
    if missing:
        return f"not installed{f' in {root}' if root else ''}: {', '.join(missing)}"
    if cgroup and not Path("/sys/fs/cgroup/freezer").is_dir():
        return "jobs in cgroups are tested with cgroup v1 only, which this machine does not have"
    command = ["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "true"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        return "this machine does not let root make namespaces"
    return None


class SlurmBox:
    """A cluster from ``with`` until the block's end. ``folder`` must be reachable for every user and is made if needed.

    ``files`` go to ``/etc/slurm``; ``slurm_conf`` holds further lines, which win over the box's own. ``root`` is a
    Debian tree (``scripts/slurm_release.sh``) whose Slurm runs instead of the machine's. ``visible`` are further
    folders of the machine that are there inside. For the rest see ``Shape``.

    Jobs that ask for no memory get 100 MiB. A requeued job starts again 6 s later (see ``start_soon``).
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        gpus: int = 2,
        cpus: int = 4,
        memory_mib: int = 4000,
        shards_per_gpu: int = 0,
        mps_per_gpu: int = 0,
        accounting: bool = False,
        cgroup: bool = False,
        files: Mapping[str, FileContent] | None = None,
        slurm_conf: str = "",
        users: Mapping[str, int] | None = None,
        root: Path | None = None,
        visible: Sequence[Path] = (),
    ) -> None:
        self.folder = folder.resolve()
        self.work = self.folder / "work"
        self.logs = self.folder / "log"
        self.shape = Shape(nodes, gpus, cpus, memory_mib, shards_per_gpu, mps_per_gpu, accounting, cgroup)
        self.users = dict(USERS if users is None else users)
        self.release = (0, 0)
        self._files = dict(files or {})
        self._slurm_conf = slurm_conf
        self._root = root.resolve() if root else None
        self._visible = [path.resolve() for path in visible]
        self._keeper: BoxKeeper | None = None
        self._first_pids: dict[str, int] = {}

    def __enter__(self) -> SlurmBox:
        check_reachable(self.folder.parent)
        self._write_files()
        try:
            self._boot()
            self.release = _release(self.run("slurmctld", "-V").stdout)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names: ``n1``, ``n2`` and so on."""
        return self.shape.node_names

    def address(self, host: str) -> str:
        """The address of a node or of ``ctl``, which the others reach it by. Not reachable from the machine."""
        return self.shape.address(host)

    def run(
        self,
        *command: str | Path,
        user: str | None = None,
        node: str | None = None,
        check: bool = True,
        timeout_s: float = 60,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end: on the controller's host as root, or on ``node`` as ``user``, in ``work``.

        It sees nothing of the test's environment: ``PATH``, who the user is, and ``environ``. Raises ``AssertionError``
        with its words if ``check`` and it failed, and ``subprocess.TimeoutExpired`` after ``timeout_s`` seconds.
        """
        entered = self._entered(command, user, node, cwd, "KILL")
        done = subprocess.run(
            entered, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=self._environ(user, environ)
        )
        if check and done.returncode != 0:
            who = f"{user or 'root'}@{node or CONTROLLER}"
            said = (done.stderr + done.stdout).strip()
            raise AssertionError(f"{who}: {' '.join(map(str, command))} ended with {done.returncode}: {said}")
        return done

    def start(
        self,
        command: Sequence[str | Path],
        *,
        user: str | None = None,
        node: str | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Begin a command inside that goes on: it writes into ``log``, and ends with the box at the latest.

        The process returned is outside and waits for the one inside. Its ``returncode`` is the other's until it is
        ended itself: ``terminate()`` and ``kill()`` both reach the inside as SIGTERM. For other signals see ``pid_of``.
        """
        entered = self._entered(command, user, node, cwd, "TERM")
        with (log or Path(os.devnull)).open("ab") as output:
            return subprocess.Popen(
                entered,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environ(user, environ),
            )

    def pid_of(self, started: subprocess.Popen[bytes]) -> int:
        """The machine's number of a process that ``start`` began inside: for ``os.kill``. Waits until there is one."""
        deadline_s = time.monotonic() + 60
        while not (inside := children(started.pid)):
            assert started.poll() is None, f"it ended with {started.returncode}"
            assert time.monotonic() < deadline_s, "it did not begin within 60 s"
            time.sleep(0.005)  # between two looks; nothing is decided by it
        return inside[0]

    def sbatch(
        self, script: str | Path, *args: str, user: str = "alice", environ: Mapping[str, str] | None = None
    ) -> str:
        """Submit a batch job from the controller's host; its number. ``#!/bin/bash`` is added to a text without it.

        What it prints is ``output`` unless ``args`` or the script say where else it goes.
        """
        if isinstance(script, str) and not script.startswith("#!"):
            script = f"#!/bin/bash\n{script}\n"
        command = ["sbatch", "--parsable", *args, *([str(script)] if isinstance(script, Path) else [])]
        stdin = "" if isinstance(script, Path) else script
        return self.run(*command, user=user, environ=environ, stdin=stdin).stdout.strip().split(";")[0]

    def output(self, job: str) -> str:
        """What a batch job has printed so far; empty before it ran."""
        path = self.work / f"slurm-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def state(self, job: str) -> str:
        """Slurm's word for the job's state, also of an ended one; one line for each task of an array."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").stdout.strip()

    def wait(self, job: str, *states: str, within_s: float = 60) -> str:
        """Ask until the job is in one of the states, and return it. ``AssertionError`` tells about the job."""
        deadline_s = time.monotonic() + within_s
        while (state := self.state(job)) not in states:
            if time.monotonic() > deadline_s:
                told = self.run("scontrol", "show", "job", job, check=False)
                raise AssertionError(
                    f"job {job} is {state}, not {' or '.join(states)}, after {within_s} s:\n{told.stdout}{told.stderr}"
                    f"it printed:\n{self.output(job)[-2000:]}"
                )
            time.sleep(0.05)  # between two looks; nothing is decided by it
        return state

    def start_soon(self, job: str) -> None:
        """Spare a requeued job most of its wait. Never sooner: in the second of its requeue Slurm loses the job.

        One that has begun again meanwhile needs nothing: a machine that stands still may let those 6 s pass.
        """
        done = self.run("scontrol", "update", f"jobid={job}", "StartTime=now+2", check=False)
        assert done.returncode == 0 or self.state(job) != "PENDING", done.stderr

    def stop_controller(self) -> None:
        """End slurmctld; jobs go on. Its state stays for ``start_controller``."""
        self.run(
            "bash", "-c", "pid=$(cat /run/slurm/slurmctld.pid); kill $pid; while kill -0 $pid; do sleep 0.02; done"
        )

    def start_controller(self) -> None:
        """Begin slurmctld again, and wait until it answers."""
        self.run("slurmctld")
        answers = 'until scontrol ping | grep -q "is UP"; do sleep 0.05; done'
        self.run("bash", "-c", answers)

    def make_operator(self, user: str) -> None:
        """Give ``AdminLevel=Operator`` (sacctmgr(1)), and wait until the controller knows. Needs ``accounting``."""
        self.run("sacctmgr", "-i", "modify", "user", user, "set", "AdminLevel=Operator")
        asked = f"scontrol show assoc_mgr flags=users users={user}"
        self.run("bash", "-c", f"until {asked} | grep -q AdminLevel=Operator; do sleep 0.05; done")

    def make_coordinator(self, user: str) -> None:
        """Let a user act on the jobs of the account that all users are in. Needs ``accounting``.

        The controller hears of it a moment later.
        """
        self.run("sacctmgr", "-i", "add", "coordinator", f"account={box_files.ACCOUNT}", f"names={user}")

    def write_file(self, name: str, content: FileContent) -> None:
        """Write a file of ``/etc/slurm``, also while the box runs; Slurm reads its own on ``scontrol reconfigure``."""
        data, mode = content if isinstance(content, tuple) else (content, 0o644)
        path = self.folder / "etc/slurm" / name
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        path.chmod(mode)

    def _write_files(self) -> None:
        slurm, homes = self.folder / "etc/slurm", self.folder / "home"
        for folder in (self.folder, slurm.parent, slurm, homes, self.logs, self.work, self.folder / "root"):
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)
        self.work.chmod(0o1777)
        for name, uid in self.users.items():
            (homes / name).mkdir(mode=0o700, exist_ok=True)
            os.chown(homes / name, uid, uid)
        base = (self._root or Path("/")) / "etc"
        passwd = box_files.passwd((base / "passwd").read_text(), self.users, str(homes))
        etc = {
            "passwd": passwd,
            "group": box_files.group((base / "group").read_text(), self.users),
            "hosts": box_files.hosts(self.shape),
            # Nobody listens there, so look-ups fail at once; an unreachable server costs slurmd 10 s.
            "resolv.conf": "nameserver 127.0.0.1\n",
            "associations": box_files.associations(self.users),
        }
        configuration: dict[str, FileContent] = {
            "slurm.conf": box_files.slurm_conf(self.shape, str(self.logs), self._slurm_conf),
            "gres.conf": box_files.gres_conf(self.shape),
            "cgroup.conf": box_files.cgroup_conf(self.shape),
            **({"slurmdbd.conf": box_files.slurmdbd_conf(str(self.logs))} if self.shape.accounting else {}),
            **self._files,
        }
        for name, text in etc.items():
            (slurm.parent / name).write_text(text)
            (slurm.parent / name).chmod(0o644)
        for name, content in configuration.items():
            self.write_file(name, content)

    def _boot(self) -> None:
        interpreters = [path for path in (SERVICE_PYTHON, RIG_PYTHON) if path.exists()]
        visible = outermost([CHECKOUT, self.folder, *installed_in(interpreters, self._root), *self._visible])
        environ = {
            "PATH": PATH,
            "BOX": str(self.folder),
            "BOX_TREE": str(self._root or "/"),
            "BOX_VISIBLE": "\n".join(map(str, visible)),
            "BOX_HOSTS": "\n".join(f"{name} {self.address(name)}" for name in self.nodes),
            "BOX_GPUS": str(self.shape.gpus),
            "BOX_ACCOUNTING": str(int(self.shape.accounting)),
            "BOX_CGROUP": str(int(self.shape.cgroup)),
        }
        self._keeper = BoxKeeper(environ, self.logs)
        self._first_pids = self._keeper.wait_until_ready(self.nodes)

    def _end(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.end()

    def _entered(
        self, command: Sequence[str | Path], user: str | None, node: str | None, cwd: Path | None, death_signal: str
    ) -> list[str]:
        """A command that enters the host's namespaces, becomes the user, and dies with the process that entered."""
        self.address(node or CONTROLLER)  # a name that there is
        entered = ["nsenter", "--target", str(self._first_pids[node or CONTROLLER])]
        entered += ["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", f"--wdns={cwd or self.work}"]
        entered += ["--", "setpriv", "--pdeathsig", death_signal]
        if user is not None:
            account = self._account(user)
            entered += [f"--reuid={account[2]}", f"--regid={account[3]}", "--clear-groups"]
        return [*entered, "--", *map(str, command)]

    def _environ(self, user: str | None, environ: Mapping[str, str] | None) -> dict[str, str]:
        name = user or "root"
        own = {"PATH": PATH, "HOME": self._account(name)[5], "USER": name, "LOGNAME": name, "LANG": "C.UTF-8"}
        return {**own, **(environ or {})}

    def _account(self, user: str) -> list[str]:
        """The fields of the user's line in the box's passwd(5). Raises ``ValueError`` for a user that is not there."""
        for line in (self.folder / "etc/passwd").read_text().splitlines():
            if line.startswith(f"{user}:"):
                return line.split(":")
        raise ValueError(f"the box has no user {user!r}; it made {', '.join(self.users)}")


def _release(version: str) -> tuple[int, int]:
    """Of ``slurmctld -V``: ``slurm-wlm 22.05.8`` gives ``(22, 5)``."""
    year, month = version.split()[-1].split(".")[:2]
    return int(year), int(month)
