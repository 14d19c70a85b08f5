"""The Slurm that other tests rely on is a real one, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.needs import missing
from integration.service import eventually
from integration.slurm.box import CHECKOUT, RIG_PYTHON, SERVICE_PYTHON, SlurmBox, why_no_box
from integration.slurm.box_keeper import SCRIPTS, children
from integration.slurm.conftest import StartBox

WITHIN_S = 60.0

HOLD_A_BOX = """
import sys
from pathlib import Path
from integration.slurm.box import SlurmBox

root = Path(sys.argv[2]) if sys.argv[2] else None
with SlurmBox(Path(sys.argv[1]), nodes=2, root=root, cgroup=sys.argv[3] == "cgroup") as box:
    job = box.sbatch("setsid sleep 1000 & srun sleep 1000", "-N2")
    box.wait(job, "RUNNING")
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def accounted(start_box: StartBox) -> SlurmBox:
    return start_box(nodes=1, accounting=True)


def test_hosts_have_their_own_names_processes_and_gpus(box: SlurmBox) -> None:
    asked = "echo $(hostname) $SLURM_STEP_GPUS $(ls /dev/nvidia*) $(pgrep -c -P 1 slurmd)"  # not what it forks
    told = box.run("srun", "-N3", "--gres=gpu:2", "bash", "-c", asked, user="alice").stdout
    assert sorted(told.splitlines()) == [f"{node} 0,1 /dev/nvidia0 /dev/nvidia1 1" for node in box.nodes]


def test_hosts_reach_each_other_by_address(box: SlurmBox) -> None:
    server = box.start([SERVICE_PYTHON, "-m", "http.server", "9400", "--directory", box.work], node="n1")
    (box.work / "page").write_text("from n1")
    get = (
        "import sys, urllib.request as r\nwhile True:\n"
        "    try: print(r.urlopen(sys.argv[1]).read().decode()); break\n    except OSError: pass"
    )
    told = box.run(SERVICE_PYTHON, "-c", get, f"http://{box.address('n1')}:9400/page", node="n2")
    assert told.stdout == "from n1\n"
    server.terminate()
    server.wait()


@pytest.mark.parametrize("folder", ["/dev/shm", "/run/tidegauge", "/tmp"])
def test_every_user_can_write_there_and_the_next_node_does_not_see_it(box: SlurmBox, folder: str) -> None:
    box.run("touch", f"{folder}/of-alice", user="alice", node="n1")
    assert "of-alice" in box.run("ls", folder, node="n1").stdout
    assert "of-alice" not in box.run("ls", folder, node="n2").stdout
    assert not Path(folder, "of-alice").exists()


def test_work_and_homes_are_shared_by_all_hosts(box: SlurmBox) -> None:
    box.run("bash", "-c", "echo hello >~/note && cp ~/note shared", user="alice", node="n1")
    assert box.run("bash", "-c", "cat ~/note shared", user="alice", node="n2").stdout == "hello\nhello\n"
    assert box.run("cat", box.folder / "home/alice/note", user="bob", check=False).returncode == 1


def test_slurm_box_keeps_installed_files_off_the_host(box: SlurmBox) -> None:
    box.run("bash", "-c", "mkdir -p /usr/local/lib/of-a-test /etc/of-a-test && touch ~/of-a-test")
    left = [path for path in ("/usr/local/lib", "/etc", "/root") if Path(path, "of-a-test").exists()]
    assert left == []


def test_a_visible_folder_is_reached_although_the_one_above_is_closed(start_box: StartBox) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as closed:
        folder = Path(closed, "open")
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "file").write_text("seen")
        (folder / "file").chmod(0o644)
        box = start_box(nodes=1, gpus=0, visible=[folder])
        assert box.run("cat", folder / "file", user="alice", node="n1").stdout == "seen"
        assert Path(closed).stat().st_mode & 0o777 == 0o700


def test_users_can_run_the_python_of_the_service(box: SlurmBox) -> None:
    modules = "ssl, sqlite3, ctypes, bz2, lzma, readline, ray, tidegauge"
    told = box.run(SERVICE_PYTHON, "-c", f"import {modules}; print(tidegauge.__file__)", user="alice", node="n1")
    assert told.stdout.strip() == str(CHECKOUT / "collector/tidegauge/__init__.py")


def test_users_can_run_the_python_of_the_rig(box: SlurmBox) -> None:
    if not RIG_PYTHON.exists():
        missing("the fake-GPU rig is not there")
    told = box.run(RIG_PYTHON, "-c", "import numpy, sys; print(sys.prefix)", user="alice", node="n2")
    assert told.stdout.strip() == str(RIG_PYTHON.parents[1])


def test_slurm_box_inherits_no_environment_of_the_test(box: SlurmBox) -> None:
    os.environ["OF_THE_TEST"] = "1"
    told = box.run("env", user="alice", environ={"ASKED_FOR": "two words\nand a line"}).stdout
    del os.environ["OF_THE_TEST"]
    assert "OF_THE_TEST" not in told
    assert "ASKED_FOR=two words\nand a line\n" in told
    assert "USER=alice\n" in told


def test_a_started_process_is_ended_by_terminate_and_found_for_other_signals(box: SlurmBox, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tells = ["bash", "-c", "trap 'echo asked to end; exit' TERM; echo began; while :; do sleep 0.01; done"]
    first = box.start(tells, user="alice", node="n1", log=log)
    _wait_for_text(log, "began")
    inside = box.pid_of(first)
    assert Path(f"/proc/{inside}").stat().st_uid == box.users["alice"]
    first.terminate()
    first.wait()
    _wait_for_text(log, "asked to end")

    second = box.start(["sleep", "1000"], node="n1")
    os.kill(box.pid_of(second), signal.SIGKILL)
    assert second.wait() == -signal.SIGKILL


def test_a_command_that_fails_says_so(box: SlurmBox) -> None:
    with pytest.raises(AssertionError, match=r"(?s)alice@n2: scontrol show job 999 ended with 1: .*Invalid job id"):
        box.run("scontrol", "show", "job", "999", user="alice", node="n2")


def test_slurm_box_lets_only_the_owner_cancel(box: SlurmBox) -> None:
    job = box.sbatch("sleep 1000")
    box.wait(job, "RUNNING")
    refused = box.run("scancel", job, user="bob", check=False)
    assert refused.returncode != 0
    assert "denied" in refused.stderr
    assert box.state(job) == "RUNNING"
    box.run("scancel", job, user="alice")
    box.wait(job, "CANCELLED")


def test_a_requeued_job_runs_again_with_the_same_number(box: SlurmBox) -> None:
    job = box.sbatch('echo "attempt ${SLURM_RESTART_COUNT-0}"; sleep 1000', "--open-mode=append")
    box.wait(job, "RUNNING")
    _wait_for_output(box, job, "attempt 0")
    box.run("scontrol", "requeue", job, user="alice")
    box.wait(job, "PENDING", "RUNNING")  # never its first run: that ends with the command
    box.start_soon(job)
    box.wait(job, "RUNNING")
    _wait_for_output(box, job, "attempt 1")
    box.run("scancel", job)


def test_a_job_goes_on_while_the_controller_is_away(box: SlurmBox) -> None:
    job = box.sbatch("until [ -e go-on ]; do sleep 0.1; done; echo finished")
    box.wait(job, "RUNNING")
    box.stop_controller()
    assert "is DOWN" in box.run("scontrol", "ping", check=False).stdout
    box.start_controller()
    assert box.state(job) == "RUNNING"
    (box.work / "go-on").touch()
    box.wait(job, "COMPLETED")
    assert box.output(job) == "finished\n"


def test_accounting_lets_an_operator_act_on_the_jobs_of_others(accounted: SlurmBox) -> None:
    job = accounted.sbatch("sleep 1000")
    accounted.wait(job, "RUNNING")
    refused = accounted.run("scontrol", "requeue", job, user="tidegauge", check=False)
    assert refused.returncode != 0
    assert "denied" in refused.stderr
    accounted.make_operator("tidegauge")
    accounted.run("scontrol", "requeue", job, user="tidegauge")
    accounted.wait(job, "PENDING", "RUNNING")
    accounted.run("scancel", job)


def test_accounting_lets_a_coordinator_act_on_the_jobs_of_the_account(accounted: SlurmBox) -> None:
    job = accounted.sbatch("sleep 1000")
    accounted.wait(job, "RUNNING")
    assert accounted.run("scancel", job, user="bob", check=False).returncode != 0
    accounted.make_coordinator("bob")
    eventually(
        lambda: accounted.run("scancel", job, user="bob", check=False).returncode == 0, "the controller knows of bob"
    )
    accounted.wait(job, "CANCELLED")


def test_in_cgroups_a_job_sees_its_own_gpu_alone(start_box: StartBox) -> None:
    box = start_box(nodes=1, gpus=2, cgroup=True)
    # Nothing drives the devices: opening one that is allowed fails with ENXIO, any other one with EPERM.
    script = "echo $CUDA_VISIBLE_DEVICES; for n in 0 1; do (: </dev/nvidia$n); done 2>&1; echo looked; sleep 1000"
    jobs = [box.sbatch(script, "--gres=gpu:1") for _ in range(2)]
    for job in jobs:
        _wait_for_output(box, job, "looked")
    first, second = (box.output(job) for job in jobs)
    assert first.startswith("0\n")
    assert re.search(r"nvidia0: No such device or address.*nvidia1: Operation not permitted", first, re.DOTALL)
    assert second.startswith("0\n")
    assert re.search(r"nvidia0: Operation not permitted.*nvidia1: No such device or address", second, re.DOTALL)


def test_boxes_side_by_side_do_not_see_each_other(box: SlurmBox, start_box: StartBox) -> None:
    other = start_box(nodes=1, gpus=0)
    job = other.sbatch("sleep 1000", "--job-name=of-the-other")
    other.wait(job, "RUNNING")
    assert "of-the-other" not in box.run("squeue", "-o", "%j").stdout
    assert other.run("sinfo", "-h", "-N", "-o", "%N").stdout == "n1\n"


@pytest.mark.parametrize("tracking", ["linuxproc", "cgroup"])
def test_slurm_box_leaves_nothing_after_the_test_process_is_killed(
    reachable_folder: Path, slurm_tree: Path | None, tracking: str
) -> None:
    reason = why_no_box(slurm_tree, cgroup=tracking == "cgroup")
    if reason is not None:
        missing(reason)
    folder = reachable_folder / f"killed-{tracking}"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_A_BOX, folder, str(slurm_tree or ""), tracking],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(CHECKOUT / "tests")},
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    below = _all_below(holder.pid)
    assert len(below) > 10  # daemons of three hosts and a job
    # os.walk passes over what goes while it looks.
    boxes = [Path(path) for path, _, _ in os.walk("/sys/fs/cgroup") if Path(path).name.startswith("tidegauge-box-")]
    cgroups = [path for path in boxes if _lives_in(path, below)]
    assert bool(cgroups) == (tracking == "cgroup")
    holder.kill()
    holder.wait()
    _wait_until_ended(below)
    assert [path for path in cgroups if path.exists()] == []
    assert str(folder) not in Path("/proc/self/mountinfo").read_text()
    holder.stdin.close()
    holder.stdout.close()


def test_boxes_of_two_pid_namespaces_have_cgroups_of_their_own(tmp_path: Path, slurm_tree: Path | None) -> None:
    """As boxes of two shards, which share the machine's cgroups and have the same pids."""
    reason = why_no_box(slurm_tree, cgroup=True)
    if reason is not None:
        missing(reason)
    keeper = shutil.copy(SCRIPTS / "keep.sh", tmp_path)
    (tmp_path / "first.sh").write_text("#!/bin/sh\necho ready\nread -r _\n")
    (tmp_path / "first.sh").chmod(0o755)
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", keeper]
    environ = {"PATH": os.environ["PATH"], "BOX_CGROUP": "1"}
    with ExitStack() as boxes:
        for _ in range(2):
            box = boxes.enter_context(
                subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            assert box.stdout is not None
            assert box.stdout.readline() == b"ready\n"


def test_a_box_that_cannot_start_says_why(reachable_folder: Path, slurm_tree: Path | None, start_box: StartBox) -> None:
    with pytest.raises(AssertionError, match=r"(?s)did not start.*NoSuchOption"):
        start_box(nodes=1, slurm_conf="NoSuchOption=1")


def test_a_folder_that_users_cannot_reach_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(AssertionError, match="other users cannot reach"), SlurmBox(closed / "box"):
        pass


def test_system_packages_does_nothing_when_all_are_there(tmp_path: Path) -> None:
    script = CHECKOUT / "scripts/system_packages.sh"
    commands = re.findall(r'^  "([a-z]\S*) ', script.read_text(), re.MULTILINE)
    headers = re.findall(r'^  "(/\S+) ', script.read_text(), re.MULTILINE)
    assert {"slurmctld", "slurmdbd", "mariadbd"} <= set(commands)
    if not all(Path(header).exists() for header in headers):
        missing(f"not installed: {', '.join(headers)}")
    for name in [*commands, "apt-get"]:
        (tmp_path / name).write_text(f"#!/bin/bash\necho {name} was run\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["/bin/bash", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def _wait_for_text(path: Path, text: str) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while text not in (told := path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline_s, f"{text!r} is not in {path}: {told}"
        time.sleep(0.02)  # between two looks; nothing is decided by it


def _wait_for_output(box: SlurmBox, job: str, text: str) -> None:
    _wait_for_text(box.work / f"slurm-{job}.out", text)


def _all_below(pid: int) -> list[int]:
    found = children(pid)
    return [*found, *(lower for child in found for lower in _all_below(child))]


def _lives_in(cgroup: Path, pids: list[int]) -> bool:
    return any(
        int(pid) in pids for path, _, _ in os.walk(cgroup) for pid in _read_if_there(Path(path, "cgroup.procs")).split()
    )


def _read_if_there(path: Path) -> str:
    """A job's cgroup may go between two looks."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _wait_until_ended(pids: list[int]) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while left := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline_s, f"still there: {left}"
        time.sleep(0.02)  # between two looks; nothing is decided by it


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended counts as gone, even where nobody takes it in (proc(5): state Z)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
