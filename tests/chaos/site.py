"""A real cluster of three nodes on one machine, with training on it and a Prometheus beside it, for breaking things.

    with chaos_site() as site:                   # NoNamespacesError, NoRigError where it cannot be
        node = site.nodes[1]                     # 0 is the head; .name .address .run_dir .state_dir .pid .is_head
        node.kill("agent")                       # stand-in, coordinator, notifier, raylet, gcs, supervisor, opener
        node.pids("raylet"), node.the_pid("agent")   # as this machine numbers them: for SIGSTOP and the like
        node.cut(); node.heal()                  # its link
        node.down(); node.up()                   # its service, as systemctl stop and start
        node.crash()                             # SIGKILL to all of its service at once; the unit starts it again
        node.run_in(["mount", ...])              # a command in its namespaces; nsenter --target=node.pid does the same
        node.environ                             # of its service: change it before up()
        site.api("/api/v1/status")               # the coordinator's JSON; ApiError while it does not answer
        site.prometheus.query("up")              # instant query
        site.jobs["leaky"].steps(1)              # each rank's own count of steps
        seconds = site.wait_full_service(30)     # see observe.py for what "full" is

Each node is a host of namespaces (network.py) with its own /dev/shm and process ids, and runs opener and ``tidegauge up
--foreground`` under units that give them users and rights and restart them as systemd does (unit.py). Files are shared:
paths are the same on every node and here. Training is an ordinary user's real PyTorch on fake GPUs (tests/fakegpu);
``leaky`` on node 1 leaks on its rank 1, ``steady0`` to ``steady2`` do not. Everything ends with the block, and with
this process however that ends.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.jobs import RANKS, TrainingJob, start_training
from chaos.network import Network, need_namespaces, write_etc
from chaos.nodes import API_PORT, ETC, FIRST_ADDRESS, USERS, Node, node_name
from chaos.observe import LOOK_EVERY_S, NEW_S, Lacked, full_service, problem_of_service
from fakegpu.rig import Rig
from integration.alertmanager_server import AlertmanagerServer, running_alertmanager
from integration.prometheus_server import PrometheusServer, running_prometheus
from integration.slurm.box_keeper import check_reachable, installed_in, outermost
from tidegauge.cluster.api import client

NODES = 3
SCRAPE_S = 2
GPU_BYTES = 80 << 30
LEAK_BYTES = 2 << 20
SAVE_S = 3.0
"""How long the leaking job takes to save its state: long enough to break something meanwhile."""
ALERTMANAGER_PORT = 9093
UP_WITHIN_S = 480.0
INCIDENT_WITHIN_S = 480.0
CALL_TIMEOUT_S = 3.0

POLICY = """
version: 1
mode: act
brakes:
  {{min_severity: warning, warnings_before_stop: 2, warning_interval: 1s, min_age: 1s,
    actions_per_job_per_hour: 1000, actions_per_hour: 1000, actions_per_user_per_hour: 1000, requeues_per_job: 1000}}
rules:
  - name: leak
    when: {{cause: leak}}
    ladder:
{ladder}
"""
WATCH = "      - {action: notify}"
CURE = """      - {action: notify}
      - {action: notify, after: 1s}
      - {action: checkpoint, after: 1s, grace: 60s}
      - {action: requeue}"""

Progress = Callable[[str], None]


class NoRigError(Exception):
    """Something that the site is made of is missing; the message says what."""


class SitePrometheus:
    """The site's Prometheus, asked from its own network."""

    def __init__(self, server: PrometheusServer, network: Network) -> None:
        self._server = server
        self._network = network

    def query(self, promql: str) -> list[dict[str, Any]]:
        """An instant query's result: ``{"metric": {label: value}, "value": [unix_s, text]}`` each."""
        return self._network.call(self._server.query, promql)

    def range(
        self, promql: str, start_unix_s: float, end_unix_s: float, *, step_s: float = 1.0
    ) -> list[dict[str, Any]]:
        """A range query's result: ``{"metric": …, "values": [[unix_s, text], …]}`` each."""
        asked = {"query": promql, "start": f"{start_unix_s:.3f}", "end": f"{end_unix_s:.3f}", "step": f"{step_s:g}"}
        answer = self._network.call(self._server._api, "query_range", **asked)
        assert answer["status"] == "success", f"{promql}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


@dataclass
class ChaosSite:
    """See the module."""

    nodes: Sequence[Node]
    network: Network
    prometheus: SitePrometheus
    alertmanager: AlertmanagerServer
    folder: Path
    python: Path
    environ_of: Mapping[int, Mapping[str, str]]
    """By node: the environment of training on its GPUs."""
    jobs: dict[str, TrainingJob] = field(default_factory=dict)
    kept: bool = False
    """Whether its files (logs, states, what jobs said) stay behind."""

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def api_url(self) -> str:
        return f"http://{self.head.address}:{API_PORT}"

    def api(self, path: str, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """The JSON of the coordinator's API. Raises ``ApiError`` while it does not answer."""
        return self.network.call(client.get, self.api_url, path, timeout_s=timeout_s)

    def text(self, url: str, path: str, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """A page of any node. Raises ``ApiError``."""
        return self.network.call(client.get_bytes, url, path, timeout_s=timeout_s).decode()

    def start_job(self, name: str, node: Node, **more: Any) -> TrainingJob:
        """A training job; it is in ``jobs`` from now on. ``more`` is of ``start_training``."""
        environ = self.environ_of[node.number]
        folder = self.folder / "jobs"
        folder.mkdir(exist_ok=True)
        os.chown(folder, USERS["ada"], USERS["ada"])
        job = start_training(name, node, python=self.python, environ=environ, folder=folder, **more)
        self.jobs[name] = job
        return job

    def set_ladder(self, ladder: str) -> None:
        """What the policy does about a leak: ``WATCH`` or ``CURE``. In force from the loop's next look on."""
        path = self.folder / "policy.yaml"
        fresh = path.with_suffix(".new")
        fresh.write_text(POLICY.format(ladder=ladder))
        fresh.replace(path)

    def incidents(self, name: str = "leaky") -> list[dict[str, Any]]:
        """All incidents of a job, oldest first."""
        found = self.api("/api/v1/incidents?all=1&limit=1000")["incidents"]
        return [incident for incident in reversed(found) if incident["job_name"] == name]

    def open_incident(self, name: str = "leaky") -> dict[str, Any] | None:
        """The open incident of the job's present attempt."""
        attempt = max((line["attempt"] for line in self.jobs[name].told("began")), default=0)
        found = [
            one
            for one in self.incidents(name)
            if one["closed_unix_s"] is None and one["key"]["job"]["attempt"] == attempt
        ]
        return found[-1] if found else None

    def wait_for_incident(self) -> None:
        """Until there is an open incident about the leaking job, and its evidence with snapshots is in the database."""

        def with_snapshots() -> bool:
            incident = self.open_incident()
            return incident is not None and bool(incident["snapshots"])

        self.eventually(with_snapshots, "an incident with evidence", within_s=INCIDENT_WITHIN_S)

    def decisions(self, name: str = "leaky") -> list[dict[str, Any]]:
        """All decisions about a job, oldest first."""
        numbers = [incident["number"] for incident in self.incidents(name)]
        return [one for number in numbers for one in self.api(f"/api/v1/incident?number={number}")["decisions"]]

    def eventually(self, look: Callable[[], Any], what: str, *, within_s: float) -> Any:
        """What ``look`` returns once that is true; no answer of the API is "not yet". Raises ``AssertionError``."""
        deadline_s = time.monotonic() + within_s
        last: object = None
        while time.monotonic() < deadline_s:
            try:
                if last := look():
                    return last
            except client.ApiError as error:
                last = error
            time.sleep(0.2)
        raise AssertionError(f"{what}: not within {within_s:.0f} s; the last look gave {last!r}\n{self.logs()}")

    def problem(self) -> str | None:
        """What is missing of full service right now; ``None``: nothing."""
        return problem_of_service(self)

    def wait_until_whole(self, *, within_s: float) -> None:
        """Until there is no problem at one look. Raises ``AssertionError`` with what is missing."""
        deadline_s = time.monotonic() + within_s
        while (problem := self.problem()) is not None:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"no full service: {problem}\n{self.logs()}")
            time.sleep(LOOK_EVERY_S)

    def wait_full_service(
        self, within_s: float, *, since_s: float | None = None, lacked: Lacked | None = None
    ) -> float:
        """Seconds from ``since_s`` (monotonic; default: this call) until the service was whole, and stayed so.

        What was missing meanwhile is added to ``lacked``. Raises ``AssertionError`` with what is missing if that takes
        longer than ``within_s``.
        """
        return full_service(self, within_s=within_s, since_s=since_s, lacked=lacked)

    def logs(self) -> str:
        return "\n".join([node.logs() for node in self.nodes] + [job.words() for job in self.jobs.values()])


@contextmanager
def chaos_site(
    *, say: Progress = lambda _: None, before_up: Callable[[Sequence[Node]], None] | None = None, keep: bool = False,
) -> Iterator[ChaosSite]:  # fmt: skip
    """The site with full service, its jobs training and an incident open about ``leaky``.

    ``before_up`` is called when the hosts are there and their services are not (mounts, ``node.environ``). ``keep``
    leaves the files behind.
    """
    rig = Rig()
    need_namespaces()
    reason = rig.available() or _missing_program()
    if reason is not None:
        raise NoRigError(reason)
    root = Path(tempfile.mkdtemp(prefix="tgc-", dir="/tmp"))  # short: Ray's sockets are below it
    site: ChaosSite | None = None

    def clear() -> None:
        if site is None or not site.kept:
            shutil.rmtree(root, ignore_errors=True)

    with ExitStack() as stack:
        stack.callback(clear)
        site = _build(root, rig, stack)
        site.kept = keep
        try:
            if before_up is not None:
                before_up(site.nodes)
            _begin(site, say)
            yield site
        finally:
            for job in site.jobs.values():
                job.process.kill()
                job.process.wait()
            for node in site.nodes:
                node.unit.abandon()
                node.opener.abandon()


def _build(root: Path, rig: Rig, stack: ExitStack) -> ChaosSite:
    root.chmod(0o755)
    check_reachable(Path(__file__).parents[2])
    write_etc(root / ETC, {node_name(number): FIRST_ADDRESS + number for number in range(NODES)}, USERS)
    network = Network(root / ETC)
    installs = outermost(installed_in([Path(sys.executable), rig.python], None))
    stack.callback(network.close)
    nodes, environ_of = [], {}
    for number in range(NODES):
        gpus = root / f"gpus{number}"
        gpus.touch()
        gpus.chmod(0o666)  # all users of a node share its GPUs
        environ = rig.environ(devices=RANKS, total_bytes=GPU_BYTES, state=gpus)
        node = Node(number, root, network, environ, installs)
        stack.callback(node.close)
        node.environ["TIDEGAUGE_INCIDENT_SEVERITY"] = "warning"  # a leak is to go on for as long as trouble is made
        node.environ["TIDEGAUGE_POLICY_FILE"] = str(root / "policy.yaml")
        node.environ["TIDEGAUGE_ALERTMANAGER_URL"] = f"http://{network.address}:{ALERTMANAGER_PORT}"
        nodes.append(node)
        environ_of[number] = {**environ, "TIDEGAUGE_RUN_DIR": str(node.run_dir)}
    alertmanager = _server(
        stack, network, running_alertmanager, root, _alertmanager_config(root),
        f"--web.listen-address={network.address}:{ALERTMANAGER_PORT}",
    )  # fmt: skip
    prometheus = _server(stack, network, running_prometheus, root, _prometheus_config(nodes[0]))
    return ChaosSite(nodes, network, SitePrometheus(prometheus, network), alertmanager, root, rig.python, environ_of)


def _begin(site: ChaosSite, say: Progress) -> None:
    site.set_ladder(WATCH)
    say("starting three nodes")
    site.head.up()
    site.eventually(lambda: site.api("/api/v1/status")["healthy"], "the head is up", within_s=UP_WITHIN_S)
    for node in site.nodes[1:]:
        node.up()
    say("starting training on each")
    site.start_job("leaky", site.nodes[1], leak_bytes=LEAK_BYTES, save_seconds=SAVE_S)
    for node in site.nodes:
        site.start_job(f"steady{node.number}", node)
    site.eventually(
        lambda: all(len(job.training_pids(NEW_S)) == RANKS for job in site.jobs.values()), "all jobs train",
        within_s=UP_WITHIN_S,
    )  # fmt: skip
    site.wait_until_whole(within_s=UP_WITHIN_S)
    say("waiting for the leak to be seen")
    site.wait_for_incident()


def _server(stack: ExitStack, network: Network, running: Callable[..., Any], *arguments: Any) -> Any:
    """Enter ``running(…)`` inside the network, and leave it there."""
    context = running(*arguments)
    stack.callback(network.call, context.__exit__, None, None, None)
    return network.call(context.__enter__)


def _prometheus_config(head: Node) -> str:
    return (
        f"global: {{scrape_interval: {SCRAPE_S}s, scrape_timeout: {SCRAPE_S}s}}\n"
        "scrape_configs:\n"
        "  - job_name: tidegauge\n"
        "    http_sd_configs:\n"
        f"      - {{url: 'http://{head.address}:{API_PORT}/sd', refresh_interval: 1s}}\n"
    )


def _alertmanager_config(root: Path) -> Path:
    path = root / "alertmanager.yml"
    path.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    return path


def _missing_program() -> str | None:
    from integration.alertmanager_server import alertmanager_binary
    from integration.prometheus_server import prometheus_binary

    if prometheus_binary() is None or alertmanager_binary() is None:
        return "prometheus or prometheus-alertmanager is not installed (scripts/system_packages.sh)"
    return None
