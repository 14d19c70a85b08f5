"""A watched Slurm cluster for tests, all real but the GPUs: slurmdbd, slurmctld, three nodes, the plugin, the service.

The coordinator runs on the controller's host as user ``tidegauge``, who is an Operator in Slurm and nothing more; the
agents run as root on the nodes. Jobs run as ``alice`` and ``bob`` on the fake-GPU rig's torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakegpu.rig import Rig
from integration.closed_loop_site import EARLY, POLICY
from integration.service import Finished, answered, eventually
from integration.slurm.box import SlurmBox
from integration.slurm.spank_site import PLUGIN, build_plugin
from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER
from whole_lines import whole_lines

CHECKOUT = Path(__file__).resolve().parents[3]
SCRIPT = CHECKOUT / "tests" / "integration" / "rig_jobs" / "resumable.py"
DEPLOY = CHECKOUT / "deploy" / "slurm"
GPUS_PER_NODE = 2
TOTAL_BYTES = 80 << 30
ENGINE_PORT, API_PORT = 6399, 9495
SERVICE_USER = "tidegauge"
COMMAND_TIMEOUT_S = 110.0
GPU_STATE = "/run/gpus/state"
"""Not in /dev/shm: the kernel refuses files of others there (fs.protected_regular), and the agent and all users' jobs
share the GPUs of a node."""
ON_ITS_NODE = ("bash", "-c", 'FAKEGPU_NODE=${SLURMD_NODENAME#n} exec "$@"', "on-its-node")
"""The rig's GPUs of different nodes have different UUIDs by this."""

STEPS = 600
"""More than half a minute: what is not to be done to a job would have been by then."""
CAP = "0.5"
"""Of 80 GiB: 40 GiB, which a rank that leaks 4 MiB a step reaches before step 10,250: minutes."""
MAY_REQUEUE = ("--memory-profile=stats", f"--memory-fraction={CAP}", "--comment=tidegauge:requeue")


class Site:
    """``box`` was started with ``HOOKS`` and ``SLURM_CONF``; it gets the plugin here, and the service by ``up``."""

    def __init__(self, box: SlurmBox, rig: Rig, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """``settings``: further variables of head and agents."""
        self.box = box
        self._settings = dict(settings or {})
        self._rig = rig
        self._folder = folder
        """For the service's state: short, as the engine's sockets lie there."""
        self._started: list[subprocess.Popen[Any]] = []
        self.policy = folder / "policy.yaml"
        build_plugin(box)
        box.write_file("plugstack.conf", f"optional {PLUGIN} probe={PYTHONPATH_FOLDER}\n")

    # The service

    def up(self, *, nodes: Sequence[str]) -> None:
        """The head on ``ctl``, an agent on every node; returns when all of them report."""
        for node in nodes:
            self.box.run("mkdir", "-m", "777", str(Path(GPU_STATE).parent), node=node)
            self.box.run("install", "-m", "666", "/dev/null", GPU_STATE, node=node)
        head = self.state_dir("ctl")
        self.box.run("install", "-d", "-o", SERVICE_USER, "-m", "700", str(head))
        address = self.box.address("ctl")
        self.start_head()
        token = head / "token"
        joins: dict[str, list[str]] = {}
        for node in nodes:
            own = self._folder / f"token-{node}"
            own.write_bytes(token.read_bytes())
            own.chmod(0o600)
            joins[node] = ["up", "--foreground", "--join", f"{address}:{ENGINE_PORT}", "--token-file", str(own)]
        agents = {node: self._start_service(node, *join) for node, join in joins.items()}

        def all_report() -> bool:
            # As systemd does (deploy/systemd): on a loaded machine a node may not be let in within Ray's patience.
            for node in [node for node, agent in agents.items() if agent.poll() not in (None, 0)]:
                agents[node] = self._start_service(node, *joins[node])
            return self._reporting() >= {*nodes}

        try:
            eventually(all_report, "all agents", within_s=180)
        except AssertionError as error:
            silent = "; ".join(f"{node}: {self._last_word(node, agents[node])}" for node in self._silent(nodes))
            status = self.call("status", check=False)
            raise AssertionError(f"no report from {silent}\n{status.stdout}{status.stderr}\n{self.logs()}") from error

    def start_head(self) -> None:
        """Returns when it answers."""
        self._start_service("ctl", "up", "--foreground", "--node-address", self.box.address("ctl"), user=SERVICE_USER)
        token = self.state_dir("ctl") / "token"
        eventually(lambda: token.exists() and token.stat().st_size > 0, "the head's token")
        eventually(lambda: self.call("status", check=False).returncode in (0, 1), "the head")

    def kill_head(self) -> None:
        """SIGKILL for all its processes, as if its host had lost power: they are the only ones of their user."""
        theirs = f"ps -o pid= -u {SERVICE_USER}"
        self.box.run("bash", "-c", f"while pids=$({theirs}); do kill -KILL $pids 2>/dev/null; sleep 0.05; done")

    def wait_for_nodes(self, within_s: float = 180.0) -> None:
        """Until all of them report."""
        eventually(lambda: self._reporting() >= {*self.box.nodes}, "all agents", within_s=within_s)

    def _silent(self, nodes: Sequence[str]) -> list[str]:
        reporting = self._reporting()
        return [node for node in nodes if node not in reporting]

    def _last_word(self, host: str, process: subprocess.Popen[Any]) -> str:
        """How a service stands, in the one line of a failure that is always kept."""
        lines = (self._folder / f"{host}.log").read_text(errors="replace").strip().splitlines() or ["no log"]
        ended = "runs" if process.poll() is None else f"ended with {process.returncode}"
        return f"{ended}, said {lines[-1][-200:]!r}"

    def state_dir(self, host: str) -> Path:
        return self._folder / host

    def _start_service(self, host: str, *arguments: str, user: str | None = None) -> subprocess.Popen[Any]:
        log = self._folder / f"{host}.log"
        node = None if host == "ctl" else host
        command = [sys.executable, "-m", "tidegauge.cli.main", *arguments]
        process = self.box.start(command, user=user, node=node, environ=self._service_environ(host), log=log)
        self._started.append(process)
        return process

    def _service_environ(self, host: str) -> dict[str, str]:
        rig = self._rig.environ(base={}, **self._gpus(host)) if host != "ctl" else {}
        ours = {"PYTHONPATH": path} if (path := os.environ.get("PYTHONPATH")) else {}  # of another checkout's .venv
        return rig | {
            **ours,
            "TIDEGAUGE_STATE_DIR": str(self.state_dir(host)),
            "TIDEGAUGE_CLUSTER": "slurm-test",
            "TIDEGAUGE_REPORT_PERIOD_S": "0.25",
            "TIDEGAUGE_LISTEN_HOST": "0.0.0.0",
            "TIDEGAUGE_POLICY_FILE": str(self.policy),
            **EARLY,
            "TIDEGAUGE_ENGINE_PORT": str(ENGINE_PORT),
            "TIDEGAUGE_API_PORT": str(API_PORT),
            **self._settings,
        }

    def _gpus(self, host: str) -> dict[str, Any]:
        number = int(host.removeprefix("n"))
        return {"devices": GPUS_PER_NODE, "total_bytes": TOTAL_BYTES, "state": GPU_STATE, "node": number}

    def _reporting(self) -> set[str]:
        answer = self.call("status", "--json", check=False)
        if not answer.stdout.strip():
            return set()
        return {
            node["hostname"]
            for node in ((json.loads(answer.stdout)["service"]) or {}).get("nodes", ())
            if node["health"] == "ok"
        }

    def call(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A ``tidegauge`` command of the service's user on the controller's host."""
        return self.box.run(
            sys.executable, "-m", "tidegauge.cli.main", *arguments,
            user=SERVICE_USER, environ=self._service_environ("ctl"), check=check, timeout_s=COMMAND_TIMEOUT_S,
        )  # fmt: skip

    def ask(self, *arguments: str) -> Any:
        """A command's answer, as soon as the coordinator gives one."""

        def call() -> Finished:
            told = self.call(*arguments, "--json", check=False)
            return Finished(told.returncode, told.stdout, told.stderr)

        return answered(call)

    def set_mode(self, mode: str) -> None:
        self.set_policy(POLICY.format(mode=mode))

    def set_policy(self, text: str) -> None:
        """In force from the loop's next look on."""
        fresh = self.policy.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o644)
        fresh.replace(self.policy)

    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("jobs")["jobs"]
        return found

    def metrics(self) -> str:
        """The coordinator's page for Prometheus."""
        url = f"http://127.0.0.1:{API_PORT}/metrics"
        read = f"import urllib.request; print(urllib.request.urlopen({url!r}).read().decode())"
        return self.box.run(sys.executable, "-c", read).stdout

    def incidents(self, job: str) -> list[dict[str, Any]]:
        return [one for one in self.ask("incidents", "--all")["incidents"] if one["key"]["job"]["job_id"] == job]

    def decisions(self, job: str) -> list[dict[str, Any]]:
        """All decisions about a job, oldest first."""
        numbers = sorted(one["number"] for one in self.incidents(job))
        return [record for number in numbers for record in self.ask("incidents", "show", str(number))["decisions"]]

    # Jobs

    def submit(
        self, name: str, *flags: str, options: Sequence[str], nodes: int, ranks_per_node: int, steps: int, user: str,
        environ: Mapping[str, str] | None = None,
    ) -> Job:  # fmt: skip
        """A torchrun job of ``resumable.py``, as somebody would write it, until ``Job.let_end``; ``options`` are for
        ``sbatch``."""
        job = Job(self.box.work, name)
        torchrun = [
            str(self._rig.python), "-m", "torch.distributed.run", f"--nnodes={nodes}",
            f"--nproc-per-node={ranks_per_node}", "--rdzv-backend=c10d",
        ]  # fmt: skip
        script = [
            str(SCRIPT), "--state", str(job.state), "--steps", str(steps), "--until", str(job.end), *flags
        ]  # fmt: skip
        lines = [
            "#!/bin/bash",
            *self.exports(environ),
            'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            f'srun {shlex.join(ON_ITS_NODE)} {shlex.join(torchrun)} --rdzv-id="$SLURM_JOB_ID" '
            f'--rdzv-endpoint="$head:$((20000 + SLURM_JOB_ID))" {shlex.join(script)}',
        ]
        job.job_id = self.box.sbatch(
            "\n".join(lines) + "\n", f"--job-name={name}", f"--nodes={nodes}", "--ntasks-per-node=1",
            f"--gres=gpu:{ranks_per_node}", "--open-mode=append", f"--output={job.log}", *options, user=user,
        )  # fmt: skip
        return job

    def submit_two_steps(
        self, name: str, first: Sequence[str], second: Sequence[str], *, options: Sequence[str], steps: int, user: str
    ) -> tuple[Job, Job]:
        """Two ``srun`` side by side in one allocation of one node, each a torchrun of one rank with its own flags."""
        jobs = Job(self.box.work, f"{name}-first"), Job(self.box.work, f"{name}-second")
        torchrun = [str(self._rig.python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        lines = ["#!/bin/bash", *self.exports()]
        for job, flags in zip(jobs, (first, second), strict=True):
            script = [
                str(SCRIPT), "--state", str(job.state), "--steps", str(steps), "--until", str(jobs[0].end), *flags
            ]  # fmt: skip
            step = ["srun", "--exact", "--ntasks=1", "--gres=gpu:1", "--mem=0", *ON_ITS_NODE, *torchrun, *script]
            lines.append(f"{shlex.join(step)} &")
        jobs[0].job_id = jobs[1].job_id = self.box.sbatch(
            "\n".join([*lines, "wait"]) + "\n", f"--job-name={name}", "--nodes=1", "--ntasks=2", "--gres=gpu:2",
            "--open-mode=append", f"--output={jobs[0].log}", *options, user=user,
        )  # fmt: skip
        return jobs

    def exports(self, environ: Mapping[str, str] | None = None) -> list[str]:
        """Lines of a batch script that put a job on the rig's GPUs."""
        return [
            f"export {name}={shlex.quote(value)}" for name, value in (self._job_environ() | dict(environ or {})).items()
        ]

    def restarts(self, job: Job) -> int:
        """How often Slurm has started the job again (``Restarts`` of ``scontrol show job``)."""
        shown = self.box.run("scontrol", "show", "job", job.job_id).stdout
        return int(re.findall(r"Restarts=(\d+)", shown)[0])

    def _job_environ(self) -> dict[str, str]:
        ours = self._rig.environ(base={}, devices=GPUS_PER_NODE, total_bytes=TOTAL_BYTES, state=GPU_STATE)
        return ours | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}

    def story(self) -> str:
        """What happened, for whoever reads a failure."""
        audit = self.call("policy", "log", check=False)
        queue = self.box.run("scontrol", "show", "jobs", check=False)
        return f"{audit.stdout}{audit.stderr}\n{queue.stdout}\n{self.logs()}"

    def logs(self) -> str:
        paths = sorted([*self._folder.glob("*.log"), *self._folder.glob("*/logs/*.log"), *self.box.work.glob("*.log")])
        return "\n".join(
            f"--- {path.parent.name}/{path.name}\n{path.read_text(errors='replace')[-2500:]}" for path in paths
        )

    def close(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)


class Job:
    """One submitted job, and its files in the folder that all nodes share."""

    job_id: str

    def __init__(self, folder: Path, name: str) -> None:
        self.state, self.end, self._story, self.log = (
            folder / f"{name}.{what}" for what in ("state", "end", "story", "log")
        )

    def let_end(self) -> None:
        """It ends once it has made its steps."""
        self.end.touch()

    def story(self) -> list[dict[str, Any]]:
        """What the script told of its attempts."""
        return [json.loads(line) for line in whole_lines(self._story)]

    def told(self, what: str) -> list[dict[str, Any]]:
        return [line for line in self.story() if line["what"] == what]


HOOKS = {name: ((DEPLOY / name).read_text(), 0o755) for name in ("prolog.sh", "epilog.sh")}
SLURM_CONF = "Prolog=/etc/slurm/prolog.sh\nEpilog=/etc/slurm/epilog.sh\nPrologFlags=Alloc\n"
