"""``tidegauge run`` on a machine without a service: the verdict at the end of the command, on real PyTorch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.service import eventually
from tidegauge.cli.demo.jobs import SCRIPT

pytestmark = [pytest.mark.rig, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LEAKY = ROOT / "docs" / "researcher" / "leaky_train.py"


class Laptop:
    """A folder to run in, two GPUs, and no service."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.environ: Mapping[str, str] = {
            **rig.environ(devices=2, total_bytes=1 << 40, state=folder / "gpus"),
            "TIDEGAUGE_RUN_DIR": str(folder / "run"),
            "TIDEGAUGE_JOB_ID": "mine",
            "OMP_NUM_THREADS": "1",
        }
        (folder / "run").mkdir()

    def start(self, *command: str | Path, flags: Sequence[str] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tidegauge", "run", *flags, "--", str(self.rig.python), *map(str, command)],
            cwd=self.folder, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    @property
    def report(self) -> str:
        return (self.folder / "tidegauge-report-mine.html").read_text()


@pytest.fixture
def laptop(rig: Rig, tmp_path: Path) -> Laptop:
    return Laptop(rig, tmp_path)


def notes(stderr: str) -> list[str]:
    return [line.partition(": ")[2] for line in stderr.splitlines() if line.startswith("tidegauge: ")]


def wait_for_live(job: subprocess.Popen[str], *texts: str) -> None:
    """Read what ``--live`` prints until each text has come, on however slow a machine."""
    assert job.stderr is not None
    seen = ""
    while not all(text in seen for text in texts):
        line = job.stderr.readline()
        assert line, seen
        seen += line


def test_the_leaking_rank_of_two_is_told_with_line_holder_and_advice(laptop: Laptop) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    job = laptop.start(*torchrun, SCRIPT, "--leak-rank", "1", "--backend", "gloo", flags=["--live"])
    wait_for_live(job, "growing: allocated memory grows", "outputs (list, ")
    job.terminate()
    _, stderr = job.communicate(timeout=60)
    assert job.returncode > 0
    verdict, found, advice, healthy, report = notes(stderr)[-5:]
    assert verdict.startswith("rank 1: growing: allocated memory grows by ")
    assert "demo_job.py main(): outputs (list, " in found
    assert "`outputs` (list, demo_job.py) keeps a tensor of each step" in advice
    assert healthy.startswith("rank 0: ok, ")
    assert report == "report: tidegauge-report-mine.html"
    assert "Rank 1 grows" in laptop.report
    assert "outputs (list" in laptop.report


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_a_signal_ends_gets_its_verdict_and_the_signal(laptop: Laptop, number: signal.Signals) -> None:
    job = laptop.start(LEAKY, "--steps", "200000", flags=["--live"])
    wait_for_live(job, "growing: allocated memory grows", "Trainer.certainties (list, ")
    job.send_signal(number)
    _, stderr = job.communicate(timeout=60)
    # By SIGINT a shell's loop must end as well; a command that ends by another signal is an exit code.
    assert job.returncode == (-number if number is signal.SIGINT else 128 + number)
    verdict, found, _, report = notes(stderr)[-4:]
    assert verdict.startswith("rank 0: growing: allocated memory grows")
    assert "Trainer.certainties (list, " in found
    assert report == "report: tidegauge-report-mine.html"
    assert "Trainer.certainties" in laptop.report


def test_a_healthy_job_that_fails_keeps_its_exit_code_and_is_not_accused(laptop: Laptop) -> None:
    (laptop.folder / "fails.py").write_text(
        "import time, torch\n"
        "layer = torch.nn.Linear(64, 64).cuda()\n"
        "optimizer = torch.optim.SGD(layer.parameters(), 0.1)\n"
        "for _ in range(200):\n"
        "    layer(torch.randn(8, 64, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    time.sleep(0.03)\n"
        "raise RuntimeError('no data')\n"
    )
    job = laptop.start("fails.py", flags=["--report", "always.html"])
    _, stderr = job.communicate(timeout=120)
    assert job.returncode == 1
    assert "RuntimeError: no data" in stderr
    _, verdict, report = notes(stderr)
    assert verdict.startswith("rank 0: ok, 200 steps, peak ")
    assert report == f"report: {laptop.folder / 'always.html'}"
    assert "Rank 0 does not grow" in (laptop.folder / "always.html").read_text()


def test_a_healthy_job_ends_with_a_line_on_what_filled_its_gpu(laptop: Laptop) -> None:
    (laptop.folder / "steady.py").write_text(
        "import os, time, torch\n"
        "model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "while not os.path.exists('stop'):\n"
        "    model(torch.randn(1024, 512, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "    time.sleep(0.03)\n"
    )
    job = laptop.start("steady.py")
    while not list(laptop.folder.glob("run/**/*.profile.json")):  # past its warm-up the rank has recorded two steps
        assert job.poll() is None
        time.sleep(0.1)
    (laptop.folder / "stop").touch()
    _, stderr = job.communicate(timeout=120)
    assert job.returncode == 0
    _, verdict, profile = notes(stderr)
    assert verdict.startswith("rank 0: ok, ")
    # AdamW's two moments of four layers of 513 * 512 floats, of 36 MiB
    told = r"memory profile: peak 3\d\.\d MiB allocated of 1.0 TiB on rank 0 in steps [\d,]+ to [\d,]+ \(.*, …\)"
    assert re.fullmatch(told, profile), profile
    assert "optimizer state 22%" in profile


def test_a_notebook_judges_itself_without_any_package(laptop: Laptop) -> None:
    (laptop.folder / "notebook.py").write_text(
        "import time, torch, tidegauge\n"
        "layer, kept = torch.nn.Linear(512, 512).cuda(), []\n"
        "optimizer = torch.optim.SGD(layer.parameters(), 0.1)\n"
        "def train():\n"
        "    for _ in range(100):\n"
        "        out = layer(torch.randn(1024, 512, device='cuda'))\n"
        "        out.sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "        kept.append(out.detach())\n"
        "        time.sleep(0.03)\n"
        "with tidegauge.watch() as w:\n"
        "    while w.verdict != 'growing' or w.evidence is None:\n"
        "        train()\n"
        "print(w)\n"
        "w.report('notebook.html')\n"
    )
    roots = os.pathsep.join(str(ROOT / name) for name in ("collector", "exporter"))
    done = subprocess.run(
        [str(laptop.rig.python), "notebook.py"], env={**laptop.environ, "PYTHONPATH": roots}, cwd=laptop.folder,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("rank 0: growing: allocated memory grows by "), done.stdout
    assert "kept (list, " in done.stdout
    assert "kept (list, " in (laptop.folder / "notebook.html").read_text()


def test_a_run_that_is_killed_leaves_no_process_behind(laptop: Laptop) -> None:
    job = laptop.start("-c", "import os, time\nwhile not os.path.exists('stop'):\n    time.sleep(0.1)")
    eventually(lambda: is_judged(laptop.folder), "a judging process")
    job.kill()
    (laptop.folder / "stop").touch()
    job.communicate(timeout=60)
    eventually(lambda: not is_judged(laptop.folder), "its end")


def is_judged(folder: Path) -> bool:
    """Whether a judging process runs that was started in this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if b"tidegauge.cli.verdict.process" in command and (process / "cwd").readlink() == folder:
                return True
    return False
