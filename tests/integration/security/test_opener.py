"""What an agent without rights sees and does by the opener, and which rights the opener has."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar, cast

import pytest

from integration.namespaces import INSIDE, LAYOUTS, PYTHON, need_namespaces, rank_command, start_container
from integration.needs import missing
from integration.security.opener_rig import (
    FUSE,
    KUBELET,
    ROOT,
    SERVICE,
    UUID,
    RunningOpener,
    gets_an_answer,
    held,
    in_thread,
    outcome,
    run_as,
    running_opener,
    until,
)
from integration.security.users import ADA, MALLORY, Machine
from rank_windows import leave_window
from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.kubernetes.pod_resources import NoKubeletError, ask_kubelet, open_pod_resources
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.remote import OpenerAwayError, OpenerConnection, RemoteOpener
from tidegauge.agent.opening.wire import Kind, OpenerRequest, OpenerStatus, decode_status
from tidegauge.agent.ports import HeldBy
from tidegauge.cluster.ray_service.agent_service import AgentService
from tidegauge.cluster.ray_service.stand_in import NotLinked
from tidegauge.core.ids import DeviceUuid
from tidegauge.core.jobs.settings import JobSettings, digest, encode
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.run_dirs import ring_name
from tidegauge.core.views import RankView
from tidegauge.opener.rights import KEPT, rights_of
from tidegauge.osproc.processes import identity_of
from tidegauge.settings import Settings
from tidegauge_exporter.metrics.server import MetricsServer

pytestmark = pytest.mark.timeout(300)
Result = TypeVar("Result")
EVERYBODYS = 0o1777
NO_NEW_CODE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""MemoryDenyWriteExecute= of the unit (PR_SET_MDWE of Linux 6.3; an older kernel does not know it)."""


def settings_of(node: Machine, opener: RunningOpener | None) -> Settings:
    """Of an agent without rights; each has a state directory of its own."""
    state = Path(tempfile.mkdtemp(dir=node.run_dir.parent))
    os.chown(state, SERVICE, SERVICE)
    return node.settings.model_copy(
        update={"state_dir": state, "opener_socket": None if opener is None else opener.socket}
    )


def as_agent(settings: Settings, work: Callable[[NodeAgent], Result]) -> Result:
    """``work`` with an agent that runs as the service's user."""

    def run() -> Result:
        with closing(open_node_agent(settings, {})) as agent:
            return work(agent)

    return run_as(SERVICE, run)


def seen(agent: NodeAgent, count: int = 1) -> list[RankView]:
    def look() -> list[RankView] | None:
        agent.poll()
        ranks = list(agent.view().ranks)
        return ranks if len(ranks) >= count else None

    found = until(look, f"{count} ranks are seen: {agent.view()}")
    assert found is not None
    return found


def ping(agent: NodeAgent, rank: RankView) -> Mapping[str, object]:
    """The rank's answer. Fails where there is none."""
    order = Order("1", OrderTo.RANK, rank.process, rank.uid, {"command": "ping"}, 30.0)
    result = agent.carry_out(order)
    assert result.reply is not None, result.error
    return result.reply


# --- what an agent without rights does by it


def test_an_agent_without_rights_sees_and_asks_ranks_of_other_users_by_the_opener(
    node: Machine, opener: RunningOpener
) -> None:
    ada, mallory = node.act(ADA, "trains", "adas", 0), node.act(MALLORY, "trains", "mallorys", 0)

    def watch(agent: NodeAgent) -> dict[tuple[int, int, str], Mapping[str, object]]:
        return {(rank.process.pid, rank.uid, str(rank.identity.job_id)): ping(agent, rank) for rank in seen(agent, 2)}

    found = as_agent(settings_of(node, opener), watch)
    assert set(found) == {(ada.pid, ADA, "adas"), (mallory.pid, MALLORY, "mallorys")}
    assert all(reply["ok"] for reply in found.values()), found


def test_without_the_opener_it_sees_none(node: Machine) -> None:
    node.act(ADA, "trains", "adas", 0)

    def watch(agent: NodeAgent) -> object:
        agent.poll()
        return len(agent.view().ranks), dict(agent.view().rings_skipped)

    assert as_agent(settings_of(node, None), watch) == (0, {"permission": 1})


def test_it_goes_on_when_the_opener_is_started_again(node: Machine, opener: RunningOpener) -> None:
    """A rank that is known stays known meanwhile; what came meanwhile is found afterwards."""
    ada = node.act(ADA, "trains", "adas", 0)
    folder = Path(tempfile.mkdtemp(dir=node.run_dir.parent))
    folder.chmod(0o777)

    def watch(agent: NodeAgent) -> object:
        seen(agent)
        (folder / "known").touch()
        until(lambda: (folder / "away").exists(), "the opener is ended")
        agent.poll()
        meanwhile = [rank.process.pid for rank in agent.view().ranks if rank.alive]
        is_told = not agent.view().collect_success["opener"]
        (folder / "polled").touch()
        both = sorted(rank.process.pid for rank in seen(agent, 2))
        return meanwhile, is_told, both, agent.view().collect_success["opener"]

    with ExitStack() as stack:
        watched = stack.enter_context(in_thread(lambda: as_agent(settings_of(node, opener), watch)))
        until(lambda: (folder / "known").exists(), "the rank is known")
        opener.stop()
        mallory = node.act(MALLORY, "trains", "mallorys", 0)
        (folder / "away").touch()
        until(lambda: (folder / "polled").exists(), "a poll without the opener")
        opener.start()
    assert watched() == ([ada.pid], True, sorted([ada.pid, mallory.pid]), True)


def test_an_agent_that_starts_beside_a_stopped_opener_serves_at_once_and_finds_the_ranks_later(
    node: Machine, opener: RunningOpener
) -> None:
    """It waited 20 s for each answer before its first poll, and its supervisor killed it after a minute."""
    ada = node.act(ADA, "trains", "adas", 0)
    folder = Path(tempfile.mkdtemp(dir=node.run_dir.parent))
    folder.chmod(0o777)
    settings = settings_of(node, opener)

    def start(agent: NodeAgent) -> object:
        began_s = time.monotonic()
        service = AgentService(
            agent, settings, node_id="n1", reporter=NotLinked(),
            open_metrics=lambda view, host, port: MetricsServer(view, host=host, port=port),
        )  # fmt: skip
        service.start()
        try:
            page = _page(service)
            took_s = time.monotonic() - began_s
            (folder / "served").touch()
            until(lambda: [rank.process.pid for rank in agent.view().ranks] == [ada.pid], "the rank is found")
            return took_s, page
        finally:
            service.stop()

    opener.process.send_signal(signal.SIGSTOP)
    try:
        with in_thread(lambda: as_agent(settings, start)) as started:
            until(lambda: (folder / "served").exists(), "a page without the opener")
            opener.process.send_signal(signal.SIGCONT)
    finally:
        opener.process.send_signal(signal.SIGCONT)
    took_s, page = cast("tuple[float, str]", started())
    assert took_s < 10.0
    assert 'tidegauge_collect_success{source="opener"} 0.0' in page


def _page(service: AgentService) -> str:
    with urllib.request.urlopen(f"http://{service.metrics_address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def test_it_deletes_what_an_ended_rank_left(node: Machine, opener: RunningOpener) -> None:
    ada = node.act(ADA, "trains", "adas", 0)
    folder = node.run_dir / str(ADA)
    until(lambda: len(list(folder.iterdir())) >= 2, "ring and socket are there")
    ada.close()

    def watch(agent: NodeAgent) -> object:
        def is_empty() -> bool:
            agent.poll()
            return list_of(settings, folder) == []

        return until(is_empty, "all is deleted")

    settings = settings_of(node, opener)
    as_agent(settings, watch)
    assert list(folder.iterdir()) == []


def list_of(settings: Settings, folder: Path) -> list[str]:
    """Names in a user's folder, as the opener lets the agent list it."""
    assert settings.opener_socket is not None
    with closing(RemoteOpener(settings.opener_socket)) as opener, held(opener, folder) as there:
        return there.names(100)


def test_it_writes_settings_of_next_attempts_that_probes_trust(node: Machine, opener: RunningOpener) -> None:
    wanted = [JobSettings("4711", ADA, 1, environ={"TIDEGAUGE_MEMORY_FRACTION": "0.5"})]
    settings = settings_of(node, opener)

    def write() -> tuple[str | None, str | None]:
        files = open_job_settings(settings, {})
        files.write([*wanted, JobSettings("12", MALLORY)])
        before = files.digest()
        files.write(wanted)
        return before, files.digest()

    before, after = run_as(SERVICE, write)
    assert (before == after, after) == (False, digest(wanted))
    written = node.run_dir / "jobs/4711.json"
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    assert written.read_bytes() == encode(wanted[0])
    for path in (written, written.parent):
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode) & 0o022) == (0, 0)


def leave_evidence(node: Machine, pid: int) -> None:
    """A rank's evidence, as its probe writes it beside its ring."""
    process = identity_of(pid)
    assert process is not None
    folder = node.run_dir / str(ADA)
    until((folder / ring_name(process)).exists, "the ring is there")
    leave_window(folder, process)
    for path in folder.iterdir():
        os.chown(path, ADA, ADA)
        path.chmod(0o600)


def evidence_of(agent: NodeAgent) -> list[int]:
    """The processes of whose evidence the agent tells the coordinator."""
    summary = agent.summary(node_id="n", incarnation="i", metrics_address=None)
    return [evidence.process.pid for evidence in summary.evidence]


def test_it_collects_evidence_and_snapshots(node: Machine, opener: RunningOpener) -> None:
    ada = node.act(ADA, "trains", "adas", 0)
    leave_evidence(node, ada.pid)
    settings = settings_of(node, opener)

    def watch(agent: NodeAgent) -> tuple[list[int], dict[str, int]]:
        seen(agent)
        until(lambda: seen(agent) and evidence_of(agent), "the evidence is read")
        return evidence_of(agent), dict(agent.view().rings_skipped)

    assert as_agent(settings, watch) == ([ada.pid], {})
    stored = [path for path in (settings.state_dir / "snapshots").rglob("*") if path.is_file()]
    assert [path.stat().st_uid for path in stored] == [SERVICE, SERVICE], stored


def test_an_agent_of_root_is_replaced_while_jobs_run(node: Machine, opener: RunningOpener) -> None:
    """What it left is root's (0700); of that systemd gives the state directory to the new one's user."""
    ada = node.act(ADA, "trains", "adas", 0)
    leave_evidence(node, ada.pid)
    node.poll_until(lambda ranks: ada.pid in ranks and evidence_of(node.agent) == [ada.pid], "the old agent sees all")
    files, wanted = open_job_settings(node.settings, {}), [JobSettings("4711", ADA, 1)]
    files.write(wanted)
    assert files.digest() == digest(wanted)
    node.agent.close()
    subprocess.run(["chown", "-R", f"{SERVICE}:{SERVICE}", node.state], check=True)
    settings = node.settings.model_copy(update={"opener_socket": opener.socket})

    def watch(agent: NodeAgent) -> tuple[list[bool], list[str | None], list[int], dict[str, bool]]:
        settings_files = open_job_settings(settings, {})
        digests = [settings_files.digest()]
        settings_files.write([])
        answers = [rank.process.pid == ada.pid and ping(agent, rank)["ok"] is True for rank in seen(agent)]
        return answers, [*digests, settings_files.digest()], evidence_of(agent), dict(agent.view().collect_success)

    answers, digests, evidence, health = as_agent(settings, watch)
    assert (answers, digests, evidence) == ([True], [digest(wanted), digest(())], [ada.pid])
    assert all(health.values()), health
    assert ada.lives


class ContainerNode:
    """A run directory that is another one in each container, an opener, and the settings of an agent without rights."""

    def __init__(self, stack: ExitStack) -> None:
        need_namespaces()
        self._stack = stack
        self.run_dir = Path(tempfile.mkdtemp(prefix="tg-opener-run-", dir="/dev/shm"))
        self.run_dir.chmod(EVERYBODYS)
        stack.callback(shutil.rmtree, self.run_dir)
        opener = stack.enter_context(running_opener(self.run_dir))
        state = Path(tempfile.mkdtemp(dir=opener.folder))
        os.chown(state, SERVICE, SERVICE)
        self.settings = Settings(slurm="off", run_dir=self.run_dir, state_dir=state, opener_socket=opener.socket)

    def start(self, layout: str, command: str, *, setup: str = "true") -> list[str]:
        """What the container says first."""
        return self._stack.enter_context(start_container(layout, command, uid=ADA, setup=setup)).line()

    def start_rank(self, layout: str) -> int:
        """The pid that it has in its container."""
        word, _, pid = self.start(layout, rank_command("j", run_dir=self.run_dir))
        assert word == "ready"
        return int(pid)


@pytest.fixture
def containers() -> Iterator[ContainerNode]:
    with ExitStack() as stack:
        yield ContainerNode(stack)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_looks_into_containers(containers: ContainerNode, layout: str) -> None:
    inner_pid = containers.start_rank(layout)

    def watch(agent: NodeAgent) -> object:
        [rank] = seen(agent)
        return rank.uid, rank.steps, ping(agent, rank), dict(agent.view().rings_skipped)

    assert as_agent(containers.settings, watch) == (ADA, 3, {"ok": True, "pid": inner_pid}, {})


@pytest.mark.parametrize(
    ("at", "reason"), [("/dev", "file_system"), ("{run}", "file_system"), (f"{{run}}/{ADA}", "mount")]
)
def test_a_file_system_that_never_answers_holds_up_nobody(containers: ContainerNode, at: str, reason: str) -> None:
    if not Path("/dev/fuse").exists():
        missing("this kernel has no FUSE")
    mounted_on = at.format(run=containers.run_dir)
    setup = f"mkdir -p {mounted_on}; {INSIDE}/bin/{PYTHON.name} {FUSE} {mounted_on} & true"
    assert containers.start("admin", "cat", setup=setup) == ["mounted"]
    inner_pid = containers.start_rank("admin")

    def watch(agent: NodeAgent) -> object:
        [rank] = seen(agent)
        until(lambda: seen(agent) and agent.view().rings_skipped, "it is refused")
        return ping(agent, rank), dict(agent.view().rings_skipped)

    assert as_agent(containers.settings, watch) == ({"ok": True, "pid": inner_pid}, {reason: 1})


def test_it_works_without_a_network_and_under_the_units_filter_of_system_calls(node: Machine) -> None:
    need_namespaces()
    unit = (ROOT / "deploy/systemd/tidegauge-opener.service").read_text()
    allowed, *others = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("SystemCallFilter=")]
    denied = " ".join(line.removeprefix("~") for line in others)
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not installed")
    before = [
        "unshare", "--net", "setpriv", f"--regid={SERVICE}", "--clear-groups", "--inh-caps=-all", "--no-new-privs",
        "--bounding-set=-all,+dac_override,+sys_ptrace", sys.executable, "-c", NO_NEW_CODE,
        sys.executable, str(Path(__file__).with_name("seccomp_exec.py")), allowed, denied,
    ]  # fmt: skip
    ada = node.act(ADA, "trains", "adas", 0)
    with running_opener(node.run_dir, before=before) as opener:
        status = Path(f"/proc/{opener.process.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        found = as_agent(settings_of(node, opener), lambda agent: [ping(agent, rank) for rank in seen(agent)])
    assert [reply["ok"] for reply in found] == [True]
    assert ada.lives


def test_an_agent_without_rights_hears_the_kubelet_by_it(opener: RunningOpener) -> None:
    settings = Settings(kubernetes_pod_resources=opener.kubelet)
    environ = {"PYTHONPATH": f"{ROOT / 'collector'}:{ROOT / 'tests'}", "PATH": os.environ["PATH"]}
    kubelet = subprocess.Popen(
        [sys.executable, "-c", KUBELET, opener.kubelet], env=environ, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert kubelet.stdout is not None
    assert kubelet.stdout.readline() == "serves\n"

    def hear() -> list[object]:
        with pytest.raises(NoKubeletError, match="Permission denied"):
            ask_kubelet(LOCAL, opener.kubelet)
        with closing(RemoteOpener(opener.socket)) as remote:
            resources = open_pod_resources(settings, remote)
            held = until(lambda: resources.holders_of([DeviceUuid("GPU-" + UUID)]), "the kubelet is heard")
            resources.close()
        return [*held]

    try:
        assert run_as(SERVICE, hear) == [HeldBy("team-a", "llm-0", "train")]
    finally:
        kubelet.kill()
        kubelet.communicate()


# --- what it is, and who may ask it


def test_the_opener_has_two_rights_and_gets_no_more(opener: RunningOpener) -> None:
    assert rights_of(opener.process.pid) == KEPT
    status = Path(f"/proc/{opener.process.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ("--reuid=4300", "cannot listen at {socket}: "),
        ("--bounding-set=-setgid", "cannot listen at {socket}: Operation not permitted; start it as root with "),
        ("--bounding-set=-dac_override", "it needs CAP_DAC_OVERRIDE and CAP_SYS_PTRACE"),
    ],
)
def test_it_does_not_run_without_them(node: Machine, without: str, why: str) -> None:
    folder = node.run_dir.parent / "sockets"
    folder.mkdir()
    command = [sys.executable, "-m", "tidegauge.opener", "--user", str(SERVICE), "--socket", str(folder / "s")]
    done = subprocess.run(
        ["setpriv", without, "--inh-caps=-all", *command],
        env={"PYTHONPATH": str(ROOT / "collector"), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    expected = why.format(socket=folder / "s")
    assert (done.returncode, expected in done.stderr) == (3, True), done.stderr


def test_it_makes_a_folder_of_its_own_in_one_that_others_can_write_to(node: Machine) -> None:
    """A volume of a pod is its group's; the agent has it read-only."""
    with running_opener(node.run_dir, folder="own") as opener:
        status = opener.socket.parent.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode) & 0o777) == (0, 0o750)
        opener.stop()
        opener.socket.unlink()
        opener.socket.parent.rmdir()
        opener.socket.parent.symlink_to(node.run_dir.parent)
        with pytest.raises(AssertionError, match="has to be root's"):
            opener.start()


def test_it_listens_in_no_folder_where_others_can_put_a_socket(node: Machine) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidegauge.opener", "--user", str(SERVICE), "--socket", str(node.run_dir / "s")],
        env={"PYTHONPATH": str(ROOT / "collector")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "has to be root's" in done.stderr) == (3, True)


def test_other_users_are_not_answered(node: Machine, opener: RunningOpener) -> None:
    os.chmod(opener.socket, 0o777)  # as if somebody had

    def ask() -> str:
        with pytest.raises(OpenerAwayError) as error:
            OpenerConnection(opener.socket).ask(OpenerRequest(Kind.RUN_DIRS))
        return str(error.value)

    assert "does not answer" in run_as(MALLORY, ask)
    assert run_as(SERVICE, lambda: OpenerConnection(opener.socket).ask(OpenerRequest(Kind.RUN_DIRS))[0].tail)


def test_root_is_told_how_it_fares_and_gets_nothing_else(node: Machine, opener: RunningOpener) -> None:
    def status() -> OpenerStatus:
        with closing(OpenerConnection(opener.socket)) as connection:
            return decode_status(connection.ask(OpenerRequest(Kind.STATUS))[0].tail)

    assert run_as(SERVICE, status).refused_connections == 0
    os.chmod(opener.socket, 0o777)
    assert not run_as(MALLORY, lambda: gets_an_answer(opener))
    assert outcome(opener, OpenerRequest(Kind.SMAPS_ROLLUP, pid=os.getpid())) == "OpenerAwayError"
    seen = status()
    assert (seen.refused_connections, seen.refused_requests) == (1, 1)
    assert 0 < seen.runs_for_s < 300


def test_its_socket_can_be_opened_by_the_agents_group_alone(opener: RunningOpener) -> None:
    status = opener.socket.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, SERVICE, 0o660)
