"""The TaskProlog for sites without the plugin: run as slurmd runs it, and once by a real slurmd."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from integration.slurm import task_environ
from integration.slurm.conftest import StartBox
from integration.slurm.task_environ import Environ, in_job, in_task
from tidegauge.core.jobs.fraction import start_fraction
from tidegauge.core.jobs.variables import parse_fraction
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.probe.levels import LEVELS

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/slurm/task_prolog.sh"
SHELLS = [shell for shell in ("dash", "bash") if shutil.which(shell)]


class TaskProlog:
    """The script in a folder with a site's file, and the environment that a task has after it."""

    def __init__(self, folder: Path) -> None:
        self.script = Path(shutil.copy(SCRIPT, folder))
        self.site = folder / "tidegauge-tasks.conf"
        self.probe = folder / "probe"
        self.probe.mkdir()

    def environ(self, before: Environ, *site: str, shell: str = "sh") -> Environ:
        """As slurmd reads what is printed (TaskProlog in slurm.conf(5))."""
        self.site.write_text("\n".join(site))
        done = subprocess.run([shell, self.script], env=before, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        after = dict(before)
        for line in done.stdout.splitlines():
            verb, _, rest = line.partition(" ")
            assert verb in ("export", "unset")
            if verb == "export":
                name, _, value = rest.partition("=")
                after[name] = value
            else:
                after.pop(rest, None)
        return after

    def added(self, before: Environ, *site: str) -> Environ:
        after = self.environ(before, *site)
        return {name: value for name, value in after.items() if before.get(name) != value}


@pytest.fixture(scope="module")
def prolog(tmp_path_factory: pytest.TempPathFactory) -> TaskProlog:
    return TaskProlog(tmp_path_factory.mktemp("task prolog"))


@pytest.mark.parametrize("shell", SHELLS)
def test_all_of_it_in_each_shell_that_a_site_may_have_as_sh(prolog: TaskProlog, shell: str) -> None:
    before = {
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_SHARDS_ON_NODE": "2",
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONPATH": "/a:",
    }
    site = [
        "# a comment",
        "shards_per_gpu=4",
        "cap_shares=yes",
        "default=off",
        "force=gpu:stats",
        f"probe={prolog.probe}",
    ]
    after = prolog.environ(before, *site, shell=shell)
    assert {name: value for name, value in after.items() if before.get(name) != value} == {
        "TIDEGAUGE_GPU_SHARE": "0.500000",
        "TIDEGAUGE_MEMORY_FRACTION": "0.468750",
        "TIDEGAUGE_PROFILE": "stats",
        "PYTHONPATH": f"{prolog.probe}:/a",
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_a_backslash_in_a_path_is_a_backslash(prolog: TaskProlog, shell: str) -> None:
    before = {"TIDEGAUGE_PROFILE": "auto", "PYTHONPATH": r"/a\nb:/c\\d"}
    after = prolog.environ(before, f"probe={prolog.probe}", shell=shell)
    assert after["PYTHONPATH"] == f"{prolog.probe}:{before['PYTHONPATH']}"


def test_without_a_file_and_without_variables_nothing_is_printed(prolog: TaskProlog) -> None:
    prolog.site.unlink(missing_ok=True)
    done = subprocess.run([prolog.script], env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("level", LEVELS)
def test_the_users_own_level_beats_the_default(prolog: TaskProlog, level: str) -> None:
    after = prolog.environ({"TIDEGAUGE_PROFILE": level}, "default=dormant")
    assert after["TIDEGAUGE_PROFILE"] == level
    assert prolog.environ({}, "default=dormant")["TIDEGAUGE_PROFILE"] == "dormant"


@pytest.mark.parametrize("least", LEVELS)
@pytest.mark.parametrize("own", ["", *LEVELS])
def test_a_forced_partition_raises_what_is_below_its_level(prolog: TaskProlog, own: str, least: str) -> None:
    before = {"TIDEGAUGE_PROFILE": own, "SLURM_JOB_PARTITION": "gpu"}
    ranked = max(least, own or "off", key=LEVELS.index)
    assert prolog.environ(before, "force=gpu:off", f"force=gpu:{least}")["TIDEGAUGE_PROFILE"] == ranked
    assert prolog.environ(before, f"force=gpu2:{least}")["TIDEGAUGE_PROFILE"] == own


def test_a_denied_partition_gets_nothing(prolog: TaskProlog) -> None:
    before = {"TIDEGAUGE_PROFILE": "auto", "SLURM_JOB_PARTITION": "gpu", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}
    site = ["mps_shares=yes", "force=gpu:trace", "deny=gpu", f"probe={prolog.probe}"]
    after = prolog.environ(before, *site)
    assert {name: value for name, value in before.items() if name != "TIDEGAUGE_PROFILE"} == after


def test_a_level_that_is_none_is_left_for_the_probe_to_complain_about(prolog: TaskProlog) -> None:
    assert prolog.environ({"TIDEGAUGE_PROFILE": "full"}, "default=stats")["TIDEGAUGE_PROFILE"] == "full"


def test_a_fraction_alone_gets_the_least_level_that_applies_it(prolog: TaskProlog) -> None:
    assert prolog.added({"TIDEGAUGE_MEMORY_FRACTION": "0.5"}) == {"TIDEGAUGE_PROFILE": "dormant"}


@given(
    percentage=st.integers(-1, 200),
    own=st.none() | st.decimals(-1, 2, places=7).map(str) | st.text("0123456789.e", max_size=9),
)
def test_a_share_caps_whoever_did_not_ask_for_less(prolog: TaskProlog, percentage: int, own: str | None) -> None:
    before = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percentage)}
    if own is not None:
        before["TIDEGAUGE_MEMORY_FRACTION"] = own
    after = prolog.environ(before, "mps_shares=yes", "cap_shares=yes")
    if not 1 <= percentage < 100:
        assert after.get("TIDEGAUGE_MEMORY_FRACTION") == own
        assert "TIDEGAUGE_GPU_SHARE" not in after
        return
    share = percentage / 100
    assert float(after["TIDEGAUGE_GPU_SHARE"]) == share
    cap, asked = start_fraction(share), _plain_fraction(own or "")
    expected = cap if asked is None or asked > cap else asked
    # Both round down to millionths, ours from whole numbers.
    assert float(after["TIDEGAUGE_MEMORY_FRACTION"]) == pytest.approx(expected, abs=1.5e-6)


def _plain_fraction(text: str) -> float | None:
    """A fraction as the shell can read it: a decimal number, no exponent, at least a millionth."""
    fraction = parse_fraction(text)
    is_plain = all(character in "0123456789." for character in text)
    return fraction if is_plain and fraction is not None and fraction >= 1e-6 else None


@given(shards=st.integers(0, 20), per_gpu=st.integers(0, 9), gpus=st.integers(0, 3))
def test_shards_are_counted_against_the_gpus_that_the_task_sees(
    prolog: TaskProlog, shards: int, per_gpu: int, gpus: int
) -> None:
    devices = ",".join(f"GPU-{number}" for number in range(gpus))
    before = {"SLURM_SHARDS_ON_NODE": str(shards), "CUDA_VISIBLE_DEVICES": devices}
    share = prolog.added(before, f"shards_per_gpu={per_gpu}").get("TIDEGAUGE_GPU_SHARE")
    if 0 < shards < per_gpu * gpus:
        assert float(share or 0) == pytest.approx(shards / (per_gpu * gpus), abs=1e-6)
    else:
        assert share is None


@given(entries=st.lists(st.sampled_from(["", "/a", "/b c", "*", "PROBE", "PROBEx"]), max_size=6))
def test_pythonpath_becomes_what_tidegauge_run_makes_of_it(prolog: TaskProlog, entries: list[str]) -> None:
    before = ":".join(entries).replace("PROBE", str(prolog.probe))
    after = prolog.environ({"PYTHONPATH": before, "TIDEGAUGE_PROFILE": "auto"}, f"probe={prolog.probe}")["PYTHONPATH"]
    folder = activation_environ("auto", {}, pythonpath=True)["PYTHONPATH"]
    theirs = activation_environ("auto", {"PYTHONPATH": before.replace(str(prolog.probe), folder)}, pythonpath=True)
    assert after.replace(str(prolog.probe), folder) == theirs["PYTHONPATH"]


def test_pythonpath_is_left_alone_without_a_probe_on_the_node_when_off_or_with_a_line_break(prolog: TaskProlog) -> None:
    probe = f"probe={prolog.probe}"
    for site, before in (
        (["probe=/nowhere"], {"TIDEGAUGE_PROFILE": "auto", "PYTHONPATH": "/a"}),
        ([probe], {"TIDEGAUGE_PROFILE": "off", "PYTHONPATH": "/a"}),
        ([probe], {"TIDEGAUGE_PROFILE": "auto", "PYTHONPATH": "/a\nexport LD_PRELOAD=/tmp/x.so"}),
    ):
        assert prolog.environ(before, *site) == before


@pytest.mark.parametrize(
    "line",
    ["default=everything", "bogus", "shards_per_gpu=08", "shards_per_gpu=-1", "cap_shares=perhaps", "probe=here", "="],
)
def test_a_line_that_is_not_understood_is_passed_over(prolog: TaskProlog, line: str) -> None:
    before = {"SLURM_SHARDS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert prolog.added(before, line, "default=stats") == {"TIDEGAUGE_PROFILE": "stats"}


def test_a_real_slurmd_hands_on_what_it_prints(start_box: StartBox) -> None:
    files = {"tidegauge/task_prolog.sh": (SCRIPT.read_text(), 0o755)}
    line = "TaskProlog=/etc/slurm/tidegauge/task_prolog.sh"
    box = start_box(nodes=1, gpus=2, shards_per_gpu=4, files=files, slurm_conf=line)
    task_environ.install(box)
    probe = box.work / "probe"
    probe.mkdir()
    assert in_task(box, "--gres=shard:1") == {}
    box.write_file("tidegauge/tidegauge-tasks.conf", f"shards_per_gpu=4\ncap_shares=yes\nprobe={probe}\n")
    capped = {
        "TIDEGAUGE_GPU_SHARE": "0.250000",
        "TIDEGAUGE_MEMORY_FRACTION": f"{start_fraction(0.25):.6f}",
        "PYTHONPATH": str(probe),
    }
    assert in_task(box, "--gres=shard:1") == {**capped, "TIDEGAUGE_PROFILE": "dormant"}
    script = "./show batch\nexport TIDEGAUGE_PROFILE=trace\nsrun ./show step\n"
    found = in_job(box, script, "--gres=shard:1", environ={"TIDEGAUGE_PROFILE": "stats"})
    assert found == [
        (name, {**capped, "TIDEGAUGE_PROFILE": level}) for name, level in (("batch", "stats"), ("step", "trace"))
    ]
