"""The /proc adapter: on this very process, and on a made-up proc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fake_node import FakeClock
from tidegauge.agent.ports import ProcessFacts, ProcessUsage
from tidegauge.agent.processes.procfs import NESTED_REFRESH_S, ProcFs, slurm_place_of
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.probe.process_facts import process_id

PAGE = os.sysconf("SC_PAGE_SIZE")


def me() -> ProcessId:
    process = process_id(os.getpid())
    assert process is not None
    return process


@contextmanager
def child(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# --- the real thing


def test_finds_this_process_as_the_probe_names_it() -> None:
    facts = ProcFs().find(me())
    assert facts is not None
    assert (facts.process, facts.uid) == (me(), os.geteuid())


def test_measures_this_process() -> None:
    usage = ProcFs().usage(me())
    assert usage is not None
    status = Path("/proc/self/status").read_text()
    vm_rss = int(status.split("VmRSS:")[1].split()[0]) * 1024
    assert usage.rss_bytes == pytest.approx(vm_rss, rel=0.2)


def test_a_pid_with_another_start_time_is_another_process() -> None:
    other = me()._replace(start_ticks=me().start_ticks + 1)
    assert ProcFs().find(other) is None
    assert ProcFs().usage(other) is None


def test_a_process_that_ended_is_gone_even_before_its_parent_reaps_it() -> None:
    with child("sleep", "60") as process:
        identified = process_id(process.pid)
        assert identified is not None
        assert ProcFs().usage(identified) is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert ProcFs().usage(identified) is None
        assert ProcFs().find(identified) is None


def test_a_process_descends_from_its_parent_first() -> None:
    with child("sh", "-c", "sleep 60; true") as shell:
        sleep = _wait_for_sleep(shell.pid)
        inner, parent = process_id(sleep), process_id(shell.pid)
        assert inner is not None
        chain = ProcFs().ancestors(inner)
        assert chain[:2] == (parent, me())
        assert chain[-1].pid == 1 or len(chain) > 2
        assert ProcFs().ancestors(inner._replace(start_ticks=1)) == ()
        os.kill(sleep, 9)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may make a pid namespace here")
def test_finds_a_process_of_a_nested_pid_namespace_by_its_own_pid() -> None:
    with child("unshare", "--pid", "--fork", "sleep", "60") as outer:
        inner = _wait_for_sleep(outer.pid)
        outside = process_id(inner)
        assert outside is not None
        facts = ProcFs().find(ProcessId(1, outside.start_ticks))
        os.kill(inner, 9)
        assert facts is not None
        assert facts.process == outside


HOSTILE_NAMES = ("\vUid:\tx\ty", "\vUid:\t0\t500", "\vNSpid:\t1\tx", "\vNSpid:\t1\t3")
"""The longest that prctl(PR_SET_NAME) takes has 15 bytes."""

CALL_ONESELF = """
import ctypes, sys
assert ctypes.CDLL(None).prctl(15, sys.argv[1].encode()) == 0
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_procfs_ignores_the_name_a_process_gives_itself(name: str) -> None:
    command = (sys.executable, "-c", CALL_ONESELF, name)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        assert name in Path(f"/proc/{process.pid}/status").read_bytes().decode(), "the kernel leaves it as it is"
        named_so = process_id(process.pid)
        assert named_so is not None
        facts, procs = ProcFs().find(named_so), ProcFs()
        assert procs.find(ProcessId(3, named_so.start_ticks)) is None, "all processes are looked through"
        process.communicate(b"")
    assert facts is not None
    assert (facts.process, facts.uid) == (named_so, os.geteuid())


def _wait_for_sleep(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    while True:
        for each in children.read_text().split():
            if Path(f"/proc/{each}/comm").read_text() == "sleep\n":
                return int(each)


def test_knows_users_and_says_the_number_of_those_without_a_name() -> None:
    assert ProcFs().user_name(0) == "root"
    assert ProcFs().user_name(3_000_000_123) == "3000000123"
    assert ProcFs().user_name(1 << 40) == str(1 << 40)


# --- a made-up proc


@dataclass
class MadeUpProc:
    root: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.proc = ProcFs(self.root, monotonic_s=self.clock.monotonic_s)

    def add(
        self, pid: int, *, ticks: int = 50, state: str = "S", threads: int = 3, name: str = "python", ns_pids: str = ""
    ) -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = [state, *["0"] * 16, str(threads), "0", str(ticks), "9", "1000", *["0"] * 28]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t1000\t1001\t1000\t1001\nNSpid:\t{ns_pids or pid}\n")
        (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n")


@pytest.fixture
def made_up(tmp_path: Path) -> MadeUpProc:
    return MadeUpProc(tmp_path)


@pytest.mark.parametrize("name", ["python", "a b", "x) S 1 (", "new\nline"])
def test_reads_stat_whatever_the_command_is_called(made_up: MadeUpProc, name: str) -> None:
    made_up.add(7, name=name)
    assert made_up.proc.usage(ProcessId(7, 50)) == ProcessUsage(rss_bytes=1000 * PAGE)


def test_the_effective_uid_counts_and_the_cgroup_names_the_job(made_up: MadeUpProc) -> None:
    made_up.add(7)
    assert made_up.proc.find(ProcessId(7, 50)) == ProcessFacts(ProcessId(7, 50), 1001, slurm_place_of(
        "0::/system.slice/slurmstepd.scope/job_9/step_0/", uid=1001
    ))  # fmt: skip


def test_a_zombie_whose_threads_go_on_lives(made_up: MadeUpProc) -> None:
    made_up.add(7, state="Z", threads=1)
    made_up.add(8, state="Z", threads=4)
    assert made_up.proc.usage(ProcessId(7, 50)) is None
    assert made_up.proc.usage(ProcessId(8, 50)) is not None


@pytest.mark.parametrize("content", ["", "7 (python)", "7 (python) S 1 2 3", "garbage"])
def test_odd_content_is_no_process(made_up: MadeUpProc, content: str) -> None:
    made_up.add(7)
    (made_up.root / "7/stat").write_text(content)
    assert made_up.proc.find(ProcessId(7, 50)) is None
    assert made_up.proc.usage(ProcessId(7, 50)) is None


@pytest.mark.parametrize("field", ["Uid:\tx\ty", "Uid:\t1000", "Uid:\t1000\t\u0661", "Gid:\t0"])
def test_a_process_without_an_owner_is_no_process(made_up: MadeUpProc, field: str) -> None:
    made_up.add(7)
    (made_up.root / "7/status").write_text(f"Name:\tpython\n{field}\nNSpid:\t7\n")
    assert made_up.proc.find(ProcessId(7, 50)) is None


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_hides_no_process_of_a_container(made_up: MadeUpProc, name: str) -> None:
    made_up.add(600, name=name, ns_pids="600\t2")
    made_up.add(700, ns_pids="700\t3")
    for inner, outer in ((2, 600), (3, 700)):
        found = made_up.proc.find(ProcessId(inner, 50))
        assert found is not None
        assert (found.process, found.uid) == (ProcessId(outer, 50), 1001)


def test_all_processes_are_looked_through_only_now_and_then(made_up: MadeUpProc) -> None:
    assert made_up.proc.find(ProcessId(3, 50)) is None
    made_up.add(700, ns_pids="700\t3")
    made_up.clock.pass_s(NESTED_REFRESH_S - 0.1)
    assert made_up.proc.find(ProcessId(3, 50)) is None
    made_up.clock.pass_s(0.2)
    found = made_up.proc.find(ProcessId(3, 50))
    assert found is not None
    assert found.process == ProcessId(700, 50)


def test_processes_that_call_themselves_the_same_are_told_apart_by_where_they_live(made_up: MadeUpProc) -> None:
    for pid, namespace in ((700, "one"), (800, "other")):
        made_up.add(pid, ns_pids=f"{pid}\t3")
        (made_up.root / str(pid) / "ns").mkdir()
        (made_up.root / str(pid) / "ns/mnt").write_text(namespace)
    other = (made_up.root / "800/ns/mnt").stat().st_ino
    found = made_up.proc.find(ProcessId(3, 50), mount_namespaces=[other])
    assert found is not None
    assert found.process == ProcessId(800, 50)
    assert made_up.proc.find(ProcessId(700, 50), mount_namespaces=[other]) is None


def test_the_cgroup_names_the_pod(made_up: MadeUpProc) -> None:
    made_up.add(7)
    container = "7f3a" * 16
    (made_up.root / "7/cgroup").write_text(f"0::/kubepods/pod{'0' * 32}/{container}\n")
    facts = made_up.proc.find(ProcessId(7, 50))
    assert facts is not None
    assert (facts.pod, facts.slurm) == (PodCgroup("0" * 32, container), None)
    assert facts.tenant == Tenant(None, pod_uid="0" * 32)


def test_a_process_in_no_pod_counts_to_its_user(made_up: MadeUpProc) -> None:
    made_up.add(7)
    facts = made_up.proc.find(ProcessId(7, 50))
    assert facts is not None
    assert (facts.pod, facts.tenant) == (None, Tenant(1001))


def test_a_process_in_a_container_counts_to_both(made_up: MadeUpProc) -> None:
    made_up.add(7)
    container = "7f3a" * 16
    (made_up.root / "7/cgroup").write_text(f"0::/system.slice/docker-{container}.scope\n")
    facts = made_up.proc.find(ProcessId(7, 50))
    assert facts is not None
    assert facts.tenant == Tenant(1001, container_id=container)


SWITCHES = "echo; read go; exec setpriv --reuid 1 --regid 1 --clear-groups sh -c 'echo; read go'"


@pytest.mark.skipif(os.getuid() != 0, reason="maps a range of uids as newuidmap does")
def test_procfs_counts_all_subordinate_uids_of_a_user_as_one_tenant() -> None:
    """``/etc/subuid`` gives each user 65,536 on many systems: they could take every place of a node."""
    with subprocess.Popen(
        ["unshare", "--user", "sh", "-c", SWITCHES], user=6666, group=6666, extra_groups=[], cwd="/",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "\n":
                pytest.skip("users may make no user namespaces on this machine")
            for name in ("gid_map", "uid_map"):
                Path(f"/proc/{process.pid}/{name}").write_text("0 6666 1\n1 200001 1000\n")
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "\n"
            facts, own = (ProcFs().find(who) for pid in (process.pid, os.getpid()) if (who := process_id(pid)))
            assert facts is not None
            assert own is not None
            assert (facts.uid, facts.user_namespace_owner, facts.tenant) == (200001, 6666, Tenant(6666))
            assert own.user_namespace_owner is None
        finally:
            process.kill()


def test_a_container_in_a_slurm_job_is_no_tenant(made_up: MadeUpProc) -> None:
    made_up.add(7)
    (made_up.root / "7/cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/{'a' * 64}\n")
    facts = made_up.proc.find(ProcessId(7, 50))
    assert facts is not None
    assert (facts.slurm, facts.tenant) == (SlurmPlace(JobId("7"), "0"), Tenant(1001))


@pytest.mark.parametrize(
    ("cgroup", "place"),
    [
        ("0::/user.slice/user@5001.service/x\r0::/system.slice/slurmstepd.scope/job_7/step_0", None),
        ("9:freezer:/slurm_n1/uid_5001/job_1/step_0", ("1", "0")),
        ("4:memory:/slurm/uid_5001/job_12/step_batch/task_0", ("12", "batch")),
        ("0::/system.slice/slurmstepd.scope/job_34/step_0/user/task_0", ("34", "0")),
        ("0::/system.slice/n1_slurmstepd.scope/job_34/step_0/user/task_0", ("34", "0")),
        ("1:cpu:/\n9:freezer:/slurm/uid_5001/job_56/step_0\n0::/", ("56", "0")),
        ("9:freezer:/slurm/uid_1/job_1/step_0", None),  # another user's
        ("0::/system.slice/slurmstepd.scope/s0HNM7ABC/step_0/user/task_0", None),  # 26.05: a SLUID
        ("0::/user.slice/user-5001.slice/user@5001.service/slurmstepd.scope/job_7/x", None),  # made by the user
        ("0::/kubepods.slice/pod1/slurmstepd.scope/job_7/step_0", None),
        ("0::/system.slice/slurmd.service", None),
        ("0::/job_7", None),
        ("0::/system.slice/slurmstepd.scope/job_7", None),  # slurmstepd's own, not a step's
        ("0::/", None),
        ("", None),
    ],
)
def test_the_slurm_job_is_the_one_whose_cgroup_root_made(cgroup: str, place: tuple[str, str] | None) -> None:
    assert slurm_place_of(cgroup, uid=5001) == (None if place is None else SlurmPlace(JobId(place[0]), place[1]))
