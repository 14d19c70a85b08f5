"""The opener between root's rights and an agent without: what the agent sees by it, and what a hostile one gets."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - as tidegauge.agent.nvml
import errno
import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar, cast

import grpc  # noqa: F401 - as tidegauge.agent.nvml
import pytest

import tidegauge.agent.nvml  # noqa: F401 - not later: the interpreter may lie where the agent's user cannot look
from integration.namespaces import INSIDE, LAYOUTS, PYTHON, need_namespaces, rank_command, start_container
from integration.needs import missing
from integration.security.opener_rig import ROOT, SERVICE, RunningOpener, run_as, running_opener, until
from integration.security.users import ADA, MALLORY, Machine, machine
from rank_windows import leave_window
from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.kubernetes.pod_resources import NoKubeletError, ask_kubelet, open_pod_resources
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.remote import OpenerAwayError, OpenerConnection, RemoteFolder, RemoteOpener
from tidegauge.agent.opening.safe_files import DIRECTORY, UnsafeFileError
from tidegauge.agent.opening.wire import Kind, OpenerRequest, OpenerStatus, decode_status, encode_request
from tidegauge.agent.ports import HeldBy
from tidegauge.cluster.ray_service.agent_service import AgentService
from tidegauge.cluster.ray_service.stand_in import NotLinked
from tidegauge.core.ids import DeviceUuid, ProcessId
from tidegauge.core.jobs.settings import JobSettings, digest, encode
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.run_dirs import evidence_name, ring_name, socket_name
from tidegauge.core.views import RankView
from tidegauge.opener.places import MAX_CONNECTIONS
from tidegauge.opener.rights import KEPT, rights_of
from tidegauge.osproc.processes import identity_of
from tidegauge.settings import Settings
from tidegauge_exporter.metrics.server import MetricsServer

pytestmark = pytest.mark.timeout(300)
Result = TypeVar("Result")
EVERYBODYS = 0o1777
FLOOD = 100_000
FUSE = Path(__file__).parents[1] / "silent_fuse.py"
REFUSED = "refused"
"""By the opener's rules: EINVAL."""
UUID = "00000000-1111-2222-3333-444444444444"
KUBELET = f"""
import sys
from pathlib import Path
from kube_standins.devices import Holding
from kube_standins.pod_resources import serve_pod_resources
serve_pod_resources(Path(sys.argv[1]), lambda: [Holding("team-a", "llm-0", "train", ("GPU-{UUID}",))])
print("serves", flush=True)
sys.stdin.read()
"""
NO_NEW_CODE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(65, 1, 0, 0, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""MemoryDenyWriteExecute= of the unit (PR_SET_MDWE of Linux 6.3; an older kernel does not know it)."""


@pytest.fixture
def node() -> Iterator[Machine]:
    if os.geteuid() != 0:
        missing("it takes root to be several users")
    with machine() as one:
        yield one


@pytest.fixture
def opener(node: Machine) -> Iterator[RunningOpener]:
    with running_opener(node.run_dir) as one:
        yield one


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
        watched = stack.enter_context(_in_thread(lambda: as_agent(settings_of(node, opener), watch)))
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
        with _in_thread(lambda: as_agent(settings, start)) as started:
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


def held(opener: RemoteOpener, folder: Path) -> RemoteFolder:
    run_dir = os.open(folder.parent, DIRECTORY)
    try:
        return opener.host_folder(run_dir, folder.parent, int(folder.name))
    finally:
        os.close(run_dir)


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


# --- what a hostile agent gets of it


class Trap:
    """A user's folder with things that an agent must not be led to."""

    def __init__(self, node: Machine) -> None:
        self.folder = node.run_dir / str(ADA)
        self.folder.mkdir()
        self.folder.chmod(0o700)
        self.secret = node.run_dir.parent / "secret"
        self.secret.write_text("root's word")
        self.secret.chmod(0o600)
        os.chown(self.folder, ADA, ADA)

    def path(self, number: int) -> Path:
        return self.folder / ring_name(ProcessId(number, 1))


def outcome(opener: RunningOpener, request: OpenerRequest, *, after: OpenerRequest | None = None) -> str:
    """What a request gets on a connection of its own: ``got`` a descriptor, ``done``, or why not."""
    with closing(OpenerConnection(opener.socket)) as connection:
        if after is not None:
            connection.ask(after)
        try:
            _, descriptor = connection.ask(request)
        except UnsafeFileError as error:
            return error.reason
        except OSError as error:
            return REFUSED if error.errno == errno.EINVAL else type(error).__name__
        return "got" if descriptor is not None else "done"


def refusals(opener: RunningOpener, names: list[str]) -> dict[str, str]:
    """What became of each name, asked as the service's user in the user's folder; ``got`` for a descriptor."""

    folder = OpenerRequest(Kind.FOLDER, uid=ADA)
    return run_as(
        SERVICE, lambda: {name: outcome(opener, OpenerRequest(Kind.OPEN, name=name), after=folder) for name in names}
    )


def test_names_that_are_no_files_of_a_probe_are_refused(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    for name in ("id_rsa", "1-1.ring.txt", "x-1.ring"):
        (trap.folder / name).touch()
        os.chown(trap.folder / name, ADA, ADA)
    known = ["id_rsa", "1-1.ring.txt", "x-1.ring", "1-1.sh"]
    assert refusals(opener, known) == dict.fromkeys(known, REFUSED)
    paths = ["../../secret", "/etc/shadow", "..", ".", "1-1.ring/../../x", "1-1.ring\0/x", "1-1.ri\u0144g"]
    assert refusals(opener, paths) == dict.fromkeys(paths, "OpenerAwayError"), "it hangs up"


def test_links_fifos_and_files_of_others_are_refused(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    trap.path(1).symlink_to(trap.secret)
    os.mkfifo(trap.path(2))
    os.link(trap.secret, trap.path(3))
    shutil.copy(trap.secret, trap.path(4))  # root's
    trap.path(5).mkdir()
    shutil.copy(trap.secret, trap.path(6))
    os.mknod(trap.path(7), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for number in (2, 5, 6, 7):
        os.chown(trap.path(number), ADA, ADA)
    names = [trap.path(number).name for number in range(1, 9)]
    found = refusals(opener, names)
    assert list(found.values()) == [
        "symlink", "not_regular", "owner", "owner", "not_regular", "got", "not_regular", "FileNotFoundError",
    ]  # fmt: skip


def test_another_mount_is_refused(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    trap.path(1).touch()
    os.chown(trap.path(1), ADA, ADA)
    subprocess.run(["mount", "--bind", "/etc/hostname", trap.path(1)], check=True)
    try:
        assert refusals(opener, [trap.path(1).name]) == {trap.path(1).name: "mount"}
    finally:
        subprocess.run(["umount", trap.path(1)], check=True)


def test_a_folder_of_another_user_or_a_link_is_refused(node: Machine, opener: RunningOpener) -> None:
    (node.run_dir / "0").symlink_to("/root")
    (node.run_dir / str(MALLORY)).mkdir()

    places = ((0, 0), (0, MALLORY), (0, ADA), (7, ADA))
    assert run_as(
        SERVICE, lambda: [outcome(opener, OpenerRequest(Kind.FOLDER, number, uid=uid)) for number, uid in places]
    ) == ["symlink", "owner", "FileNotFoundError", REFUSED]


def test_a_process_is_the_one_that_was_asked_for_or_none(node: Machine, opener: RunningOpener) -> None:
    """A pid that was used again, a namespace that it is not in, a socket that another process serves."""
    ada = node.act(ADA, "trains", "adas", 0)
    process = identity_of(ada.pid)
    assert process is not None
    namespace = os.stat(f"/proc/{ada.pid}/ns/mnt").st_ino
    name = socket_name(process)
    until(lambda: (node.run_dir / str(ADA) / name).exists(), "it listens")

    def tries() -> list[str]:
        enter = OpenerRequest(Kind.ENTER, pid=process.pid, start_ticks=process.start_ticks, inode=namespace)
        folder = OpenerRequest(Kind.FOLDER, uid=ADA)
        connect = OpenerRequest(Kind.CONNECT, uid=ADA, pid=process.pid, start_ticks=process.start_ticks, name=name)
        return [
            *(outcome(opener, one) for one in (enter, enter._replace(start_ticks=1), enter._replace(inode=1))),
            *(outcome(opener, one, after=folder) for one in (
                connect, connect._replace(start_ticks=1), connect._replace(pid=os.getpid()),
                connect._replace(uid=MALLORY),
            )),
        ]  # fmt: skip

    gone = "ProcessLookupError"
    assert run_as(SERVICE, tries) == ["done", gone, gone, "got", gone, gone, "socket"]


def test_a_socket_of_root_in_a_users_folder_is_not_connected_to(node: Machine, opener: RunningOpener) -> None:
    """The request names the uid: with another's than the folder's, any daemon's socket would do."""
    trap, this = Trap(node), identity_of(os.getpid())
    assert this is not None
    name = socket_name(this)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(trap.folder / name))
        daemon.listen()
        connect = OpenerRequest(Kind.CONNECT, uid=0, pid=this.pid, start_ticks=this.start_ticks, name=name)
        assert run_as(SERVICE, lambda: outcome(opener, connect, after=OpenerRequest(Kind.FOLDER, uid=ADA))) == "socket"


def test_nothing_in_place_of_the_kubelets_socket_is_connected_to(opener: RunningOpener) -> None:
    """The folder is root's; a request cannot name another one."""
    ask = OpenerRequest(Kind.KUBELET, name="1-1.ring")
    found = [run_as(SERVICE, lambda: outcome(opener, ask))]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(opener.kubelet))
        server.listen()
        found.append(run_as(SERVICE, lambda: outcome(opener, ask)))
        os.chown(opener.kubelet, MALLORY, MALLORY)
        found.append(run_as(SERVICE, lambda: outcome(opener, ask)))
        opener.kubelet.rename(opener.kubelet.with_name("another"))
        opener.kubelet.symlink_to("another")
        found.append(run_as(SERVICE, lambda: outcome(opener, ask)))
    assert found == ["FileNotFoundError", "got", "socket", "socket"]


def test_the_kubelet_is_not_flooded_with_connections(opener: RunningOpener) -> None:
    def flood() -> float:
        began_s = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            [*pool.map(lambda _: outcome(opener, OpenerRequest(Kind.KUBELET)), range(4))]
        return time.monotonic() - began_s

    assert run_as(SERVICE, flood) > 2.5, "one a second, after the first"


def test_a_file_of_any_time_costs_nobody_the_connection(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    for number, at_s in ((1, -(10**9)), (2, -(2**62)), (3, 2**62)):
        trap.path(number).touch()
        os.utime(trap.path(number), (0, at_s))
        os.chown(trap.path(number), ADA, ADA)
    names = [trap.path(number).name for number in (1, 2, 3)]
    assert refusals(opener, names) == dict.fromkeys(names, "got")


def test_a_link_in_place_of_the_settings_folder_is_not_followed(node: Machine, opener: RunningOpener) -> None:
    """It may lead to a file system that never answers: a thread of the opener's would be lost with each request."""
    if not Path("/dev/fuse").exists():
        missing("this kernel has no FUSE")
    silent = node.run_dir.parent / "silent"
    silent.mkdir()
    (node.run_dir / "jobs").symlink_to(silent)
    os.chown(node.run_dir / "jobs", MALLORY, MALLORY, follow_symlinks=False)
    write = OpenerRequest(Kind.WRITE_SETTINGS, name="7.json", tail=b"x")
    with subprocess.Popen([sys.executable, FUSE, silent], stdout=subprocess.PIPE, text=True) as mount:
        assert mount.stdout is not None
        assert mount.stdout.readline() == "mounted\n"
        try:
            assert run_as(SERVICE, lambda: outcome(opener, write)) == "owner"
        finally:
            subprocess.run(["umount", "--lazy", silent], check=True)
            mount.kill()


def test_what_a_living_process_writes_is_not_deleted(node: Machine, opener: RunningOpener) -> None:
    ada = node.act(ADA, "trains", "adas", 0)
    process = identity_of(ada.pid)
    assert process is not None
    ring = node.run_dir / str(ADA) / ring_name(process)
    until(ring.exists, "the ring is there")
    status = ring.stat()

    folder = OpenerRequest(Kind.FOLDER, uid=ADA)
    delete = OpenerRequest(Kind.DELETE, device=status.st_dev, inode=status.st_ino, name=ring.name)
    requests = (delete, delete._replace(kind=Kind.DELETE_BESIDE))
    found = run_as(SERVICE, lambda: [outcome(opener, request, after=folder) for request in requests])
    assert found == [REFUSED, REFUSED]
    assert ring.exists()


def test_an_evil_agent_gets_files_of_probes_and_no_other_word_of_a_process(
    node: Machine, opener: RunningOpener
) -> None:
    """With the opener: what the agent's work is. With its own rights: nothing."""
    ada = node.act(ADA, "trains", "adas", 0)
    process = identity_of(ada.pid)
    assert process is not None
    folder = node.run_dir / str(ADA)
    until((folder / ring_name(process)).exists, "the ring is there")

    def own_rights() -> list[str]:
        return [
            path.name for path in (
                folder / ring_name(process), Path(f"/proc/{ada.pid}/environ"), Path(f"/proc/{ada.pid}/root/etc/passwd"),
                Path(f"/proc/{ada.pid}/mem"), Path(f"/proc/{opener.process.pid}/environ"), Path("/etc/shadow"),
            ) if not os.access(path, os.R_OK)
        ]  # fmt: skip

    def by_the_opener() -> list[str]:
        got = []
        with closing(RemoteOpener(opener.socket)) as remote:
            got += ["smaps_rollup"] * remote.smaps_rollup(ada.pid).endswith("kB\n")
            assert remote.mount_namespace(ada.pid) == mount_namespace
            with held(remote, folder) as there:
                descriptor, _ = there.open_checked(ring_name(process))
                got += ["ring"] * bool(os.pread(descriptor, 8, 0))
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.write(descriptor, b"x")
                with pytest.raises(FileNotFoundError):
                    there.open_checked(evidence_name(process))
                assert ring_name(process) in there.names(100)
        return got

    mount_namespace = os.stat(f"/proc/{ada.pid}/ns/mnt").st_ino
    assert run_as(SERVICE, own_rights) == [ring_name(process), "environ", "passwd", "mem", "environ", "shadow"]
    assert run_as(SERVICE, by_the_opener) == ["smaps_rollup", "ring"]


def test_an_evil_agent_gets_no_folder_by_which_a_containers_root_is_reached(
    node: Machine, opener: RunningOpener
) -> None:
    """From a descriptor of one, ".." leads up to all that everybody may read in the container."""
    Trap(node)
    script = "mount -t tmpfs none /mnt && echo ready && exec cat"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == "ready\n"
        process, namespace = identity_of(inside.pid), os.stat(f"/proc/{inside.pid}/ns/mnt").st_ino
        assert process is not None
        enter = OpenerRequest(Kind.ENTER, pid=process.pid, start_ticks=process.start_ticks, inode=namespace)
        requests = (OpenerRequest(Kind.RUN_DIR), OpenerRequest(Kind.FOLDER, is_inside=True, uid=ADA))
        found = run_as(SERVICE, lambda: [outcome(opener, one, after=enter) for one in requests])
        inside.kill()
    assert found == ["done", "done"], "no descriptor came"


def test_settings_have_names_of_their_own_and_bounds(node: Machine, opener: RunningOpener) -> None:
    files = (("passwd", 1), ("..json", 1), ("7.json", 16384), ("8.json", 16385))
    writes = [OpenerRequest(Kind.WRITE_SETTINGS, name=name, tail=b"x" * size) for name, size in files]
    make = OpenerRequest(Kind.MAKE_SETTINGS)
    assert run_as(SERVICE, lambda: [outcome(opener, write, after=make) for write in writes]) == [
        REFUSED, REFUSED, "done", "OpenerAwayError",
    ]  # fmt: skip
    assert os.listdir(node.run_dir / "jobs") == ["7.json"]


def raw(opener: RunningOpener) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(opener.socket))  # without a time limit: it waits for its turn
    connection.settimeout(60)
    return connection


def test_malformed_messages_end_their_connection_and_leave_nothing_open(node: Machine, opener: RunningOpener) -> None:
    Trap(node)
    good = encode_request(OpenerRequest(Kind.RUN_DIRS))

    def send() -> list[bytes]:
        ended = []
        for packet in (b"x", good[:-1], b"\xff" + good[1:], good[:1] + b"\x63" + good[2:], good + b"y" * 20_000):
            with raw(opener) as connection:
                connection.send(packet)
                ended.append(connection.recv(100))
        with raw(opener) as connection, open("/dev/null") as null:
            socket.send_fds(connection, [good], [null.fileno()] * 5)
            ended.append(connection.recv(100))
        for _ in range(200):  # holds a folder, asks for descriptors, goes without a word
            with raw(opener) as connection:
                connection.send(encode_request(OpenerRequest(Kind.FOLDER, uid=ADA)))
                connection.recv(1000)
        return ended

    before = opener.open_files
    assert run_as(SERVICE, send) == [b""] * 6
    until(lambda: opener.open_files <= before, "all is closed")


def test_a_flood_of_requests_and_a_client_that_never_reads_hold_up_nobody(node: Machine, opener: RunningOpener) -> None:
    Trap(node)
    pids = struct.pack("<1024I", *range(1, 1025))

    def flood() -> float:
        deaf = raw(opener)
        deaf.setblocking(False)
        folder = encode_request(OpenerRequest(Kind.FOLDER, uid=ADA))
        many = encode_request(OpenerRequest(Kind.MOUNT_NAMESPACES, tail=pids))
        with suppress(BlockingIOError):
            for _ in range(FLOOD):
                deaf.send(folder)
                deaf.send(many)
            raise AssertionError("it takes all that is sent")
        child = os.fork()
        if child == 0:
            loud = raw(opener)
            for _ in range(FLOOD):
                loud.send(encode_request(OpenerRequest(Kind.RUN_DIRS)))
                loud.recv(10_000)
            os._exit(0)
        slowest_s = 0.0
        with closing(RemoteOpener(opener.socket)) as remote:
            ended = 0
            while not ended:
                began_s = time.monotonic()
                remote.owner_of_user_namespace(os.getpid())
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                time.sleep(0.01)
                ended, _ = os.waitpid(child, os.WNOHANG)
        deaf.close()
        return slowest_s

    before_kib = _resident_kib(opener)
    assert run_as(SERVICE, flood) < 10
    assert _resident_kib(opener) - before_kib < 32 << 10
    assert opener.process.poll() is None


def is_answered(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1000))
    except ConnectionResetError:  # closed before the request was read
        return False


def test_few_descriptors_are_on_their_way_to_clients_that_do_not_read(node: Machine, opener: RunningOpener) -> None:
    """The kernel counts them to root: with too many, no process of root's could send one."""
    trap = Trap(node)
    trap.path(1).touch()
    os.chown(trap.path(1), ADA, ADA)
    folder = encode_request(OpenerRequest(Kind.FOLDER, uid=ADA))
    ring = encode_request(OpenerRequest(Kind.OPEN, name=trap.path(1).name))

    def ask_and_count() -> list[int]:
        found = []
        for _ in range(10):
            with raw(opener) as deaf:
                deaf.send(folder)
                assert deaf.recv(1000)
                deaf.setblocking(False)
                with suppress(BlockingIOError):
                    while True:
                        deaf.send(ring)
                hung_up = select.poll()
                hung_up.register(deaf, select.POLLRDHUP)
                assert hung_up.poll(60_000)
                deaf.settimeout(60)
                found.append(0)
                while (received := socket.recv_fds(deaf, 1000, 1))[0]:
                    found[-1] += len(received[1])
                    for descriptor in received[1]:
                        os.close(descriptor)
        return found

    assert run_as(SERVICE, ask_and_count) == [1] * 10


def gets_an_answer(opener: RunningOpener) -> bool:
    try:
        OpenerConnection(opener.socket).ask(OpenerRequest(Kind.RUN_DIRS))
    except OpenerAwayError:
        return False
    return True


def idle(opener: RunningOpener) -> list[socket.socket]:
    return [raw(opener) for _ in range(2 * MAX_CONNECTIONS)]


def holding(opener: RunningOpener) -> list[socket.socket]:
    """Connections that hold a folder each, and say no more."""
    crowd = []
    for _ in range(2 * MAX_CONNECTIONS):
        crowd.append(raw(opener))
        crowd[-1].send(encode_request(OpenerRequest(Kind.FOLDER, uid=ADA)))
        is_answered(crowd[-1])
    return crowd


def deaf(opener: RunningOpener) -> list[socket.socket]:
    """Connections that leave a descriptor each unread, and cannot be let go."""
    crowd = holding(opener)
    for one in crowd:
        with suppress(BrokenPipeError):
            one.send(encode_request(OpenerRequest(Kind.SMAPS_ROLLUP, pid=os.getpid())))
    return crowd


@contextmanager
def beside(*attacks: Callable[[], list[socket.socket]]) -> Iterator[None]:
    """Each attack in a child of its own, which keeps its connections until the end of the block."""
    (is_ready, ready), (go_on, end) = os.pipe(), os.pipe()
    children = []
    for attack in attacks:
        children.append(os.fork())
        if children[-1] == 0:
            os.close(end)
            held = attack()
            os.write(ready, b"x")
            os.read(go_on, 1)
            held.clear()
            os._exit(0)
    for _ in children:
        os.read(is_ready, 1)
    try:
        yield
    finally:
        os.close(end)
        for child in children:
            os.waitpid(child, 0)


@pytest.mark.parametrize("crowd", [idle, holding, deaf])
def test_one_process_of_the_agents_user_cannot_take_all_places(
    node: Machine, opener: RunningOpener, crowd: Callable[[RunningOpener], list[socket.socket]]
) -> None:
    Trap(node)

    def attack() -> bool:
        with beside(lambda: crowd(opener)):
            return all(gets_an_answer(opener) for _ in range(3))

    assert run_as(SERVICE, attack)


def test_idle_connections_of_many_processes_of_the_agents_user_leave_it_a_place(opener: RunningOpener) -> None:
    def attack() -> bool:
        with beside(*[lambda: [raw(opener)]] * (MAX_CONNECTIONS + 8)):
            return all(gets_an_answer(opener) for _ in range(3))

    assert run_as(SERVICE, attack)
    until(lambda: opener.open_files < MAX_CONNECTIONS, "places come free")


def test_an_agent_whose_idle_connections_gave_way_goes_on(opener: RunningOpener) -> None:
    def attack() -> bool:
        with closing(RemoteOpener(opener.socket)) as remote:
            remote.check()
            with beside(*[lambda: [raw(opener)]] * (MAX_CONNECTIONS + 8)):
                remote.check()
        return True

    assert run_as(SERVICE, attack)


def test_an_agent_waits_for_its_turn_where_connections_are_not_taken_at_once(opener: RunningOpener) -> None:
    is_full, full = os.pipe()

    def in_a_queue() -> bool:
        queue = []
        with suppress(BlockingIOError):
            while True:
                queue.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                queue[-1].setblocking(False)
                queue[-1].connect(str(opener.socket))
        os.write(full, b"x")
        return gets_an_answer(opener)

    opener.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run_as, SERVICE, in_a_queue)
        os.read(is_full, 1)
        opener.process.send_signal(signal.SIGCONT)
        assert answer.result()
    os.close(is_full)
    os.close(full)


@contextmanager
def _in_thread(work: Callable[[], object]) -> Iterator[Callable[[], object]]:
    """``work`` beside the block; at its end, what gives its result."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        yield future.result


def _resident_kib(opener: RunningOpener) -> int:
    for line in Path(f"/proc/{opener.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")
