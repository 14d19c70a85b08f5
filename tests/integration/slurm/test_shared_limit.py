"""From records of earlier runs to what torch may reserve on a shard of a GPU, over a real slurmctld and slurmd."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.slurm.box import SlurmBox
from integration.slurm.conftest import StartBox
from sample_views import GIB, NOW_S, job_record
from tidegauge.cli.main import main
from tidegauge.cluster.api.http_api import HttpApi
from tidegauge.cluster.api.record_api import RecordPages
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.record import JobEnd, RankPeak
from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER

pytestmark = [pytest.mark.rig, pytest.mark.timeout(600)]

DEPLOY = Path(__file__).resolve().parents[3] / "deploy/slurm"
TASKS = f"shards_per_gpu=4\ndefault=dormant\nprobe={PYTHONPATH_FOLDER}\n"
NEED, LIMIT = 3 * GIB, int(3.3 * GIB)
JOB = f"""
import json, torch
found = {{}}
held = torch.empty({NEED}, dtype=torch.uint8, device="cuda")
found["needed"] = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
try:
    torch.empty({GIB}, dtype=torch.uint8, device="cuda")
    found["refused"] = False
except torch.OutOfMemoryError:
    found["refused"] = True
found["peak"] = torch.cuda.memory_stats()["reserved_bytes.all.peak"]
print(json.dumps(found))
"""


@dataclass
class World:
    box: SlurmBox
    rig: Rig
    store: Store
    url: str
    ended: int = 0

    def run_ended(self, end: JobEnd) -> None:
        """A run of alice's job ``train`` on a GPU of 8 GiB."""
        self.ended += 1
        fullest = RankPeak(0, "n1", NEED, NEED, 8 * GIB, nontorch_bytes=0, gpu_bytes=8 * GIB)
        job = JobKey(str(self.ended), 0, self.box.users["alice"])
        run = job_record(
            job=job, job_name="train", user_name="alice", started_unix_s=NOW_S - 7200, ended_unix_s=NOW_S, end=end,
            fullest=fullest, gpus=1,
        )  # fmt: skip
        self.store.jobs.save([run])

    def write_limits(self, capsys: pytest.CaptureFixture[str]) -> str:
        """As the head's timer does."""
        assert main(["efficiency", "--since", "99999d", "--for-sharing", "--api", self.url]) == 0
        limits = capsys.readouterr().out
        self.box.write_file("tidegauge_shared.tsv", limits)
        return limits

    def job(self, *options: str, before: str = "") -> tuple[dict[str, object], str]:
        """What the job found, and all that it printed."""
        environ = self.rig.environ(base={}, devices=1, total_bytes=8 * GIB, state=f"{self.box.work}/gpu")
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environ.items())
        (self.box.work / "train.py").write_text(JOB)
        command = f"srun {shlex.quote(str(self.rig.python))} train.py"
        job = self.box.sbatch(f"{exports}\n{before}\n{command}", "--job-name=train", *options)
        self.box.wait(job, "COMPLETED", within_s=120)
        printed = self.box.output(job)
        return json.loads(next(line for line in printed.splitlines() if line.startswith("{"))), printed


@pytest.fixture(scope="module")
def world(start_box: StartBox, rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    files = {
        **{name: (DEPLOY / "lua" / name).read_text() for name in ("job_submit.lua", "tidegauge_history.lua")},
        "tidegauge_comment.lua": (DEPLOY / "lua/tidegauge_comment.lua").read_text(),
        "tidegauge/task_prolog.sh": ((DEPLOY / "task_prolog.sh").read_text(), 0o755),
        "tidegauge/tidegauge-tasks.conf": TASKS,
    }
    slurm_conf = "JobSubmitPlugins=lua\nTaskProlog=/etc/slurm/tidegauge/task_prolog.sh"
    box = start_box(nodes=1, gpus=1, shards_per_gpu=4, files=files, slurm_conf=slurm_conf)
    store = open_store(sqlite_url(tmp_path_factory.mktemp("store")))
    api = HttpApi(RecordPages(lambda: store).routes(), host="127.0.0.1", port=0)
    api.start()
    yield World(box, rig, store, api.url)
    api.stop()
    store.close()


FREE = {"needed": NEED, "refused": False, "peak": NEED + GIB}
LIMITED = {"needed": NEED, "refused": True, "peak": NEED}


def test_a_job_on_shards_is_limited_once_three_runs_completed_and_not_after_it_ran_out(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEGAUGE_SLURM_TREE", raising=False)  # no setting of the command
    for _ in range(2):
        world.run_ended(JobEnd.COMPLETED)
    world.run_ended(JobEnd.FAILED)
    assert world.write_limits(capsys) == ""
    assert world.job("--gres=shard:1")[0] == FREE

    world.run_ended(JobEnd.COMPLETED)
    assert world.write_limits(capsys) == f"alice\ttrain\t{LIMIT}\n"
    found, printed = world.job("--gres=shard:1")
    assert found == LIMITED
    line = "tidegauge: PyTorch may reserve 3.3 GiB of this shared GPU's 8.0 GiB: what earlier runs of this job needed"
    assert printed.count(line) == 1
    whole, printed = world.job("--gres=gpu:1")
    assert whole == FREE, "a GPU of its own"
    assert "may reserve" not in printed
    own, printed = world.job("--gres=shard:1", before="export TIDEGAUGE_MEMORY_FRACTION=1")
    assert own == FREE, "the owner's word counts"
    assert "may reserve" not in printed

    world.run_ended(JobEnd.OOM)
    assert world.write_limits(capsys) == ""
    assert world.job("--gres=shard:1")[0] == FREE
