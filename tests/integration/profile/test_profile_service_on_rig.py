"""Memory profiles on their whole way, all real but the GPU: probe, agent, coordinator, database; no Ray."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.server_process import free_port
from integration.service import eventually
from tidegauge.agent.direct_reporter import DirectReporter
from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.node_agent import open_node_agent
from tidegauge.agent.runner import AgentRunner
from tidegauge.analysis.profile.profile import profile_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.profile_loop import ProfileLoop
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.cluster.views import AskState
from tidegauge.core.ids import JobKey
from tidegauge.core.profile.advice import Measure
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.imbalance import imbalance_of
from tidegauge.core.profile.rank_profile import PROFILE_ASKED, PROFILE_WARMED_UP, RankProfile
from tidegauge.core.views import JobView
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.settings import Settings

pytestmark = [pytest.mark.rig, pytest.mark.timeout(2000)]

SCRIPT = Path(__file__).parents[1] / "rig_jobs" / "profiled_rank.py"
WITHIN_S = 600.0
"""On a busy machine a recording comes to nothing; its rank is asked again five minutes later."""
JOB_ID = "profiled"


class Site:
    """A job of two ranks, their agent, and a coordinator with its database."""

    def __init__(self, rig: Rig, scratch: Path) -> None:
        self.state, run_dir = scratch / "state", scratch / "run"
        run_dir.mkdir()
        settings = Settings(
            run_dir=run_dir, state_dir=self.state, poll_period_s=0.1, report_period_s=0.2, cluster="lab"
        )
        environ = rig.environ(devices=2, state=scratch / "gpus")
        environ.pop("PYTHONPATH", None)
        environ |= activation_environ("auto", environ, pythonpath=True)
        environ |= {"TIDEGAUGE_RUN_DIR": str(run_dir), "TIDEGAUGE_JOB_ID": JOB_ID}
        port = str(free_port())
        self.ranks = [
            subprocess.Popen(
                [str(rig.python), str(SCRIPT), "ddp", str(rank), port],
                env={**environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        self.store = open_store(sqlite_url(scratch))
        self.coordinator = Coordinator(wall_s=time.time, monotonic_s=time.monotonic, incarnation="c")
        self._workers = ThreadPoolExecutor(2)
        self.loop = ProfileLoop(
            self.coordinator, lambda: self.store.profiles, now_s=time.time, submit=self._workers.submit
        )
        self.agent = open_node_agent(settings, {})
        self._runner = AgentRunner(
            self.agent, DirectReporter(self.coordinator.report), open_job_settings(settings, {}),
            poll_period_s=0.1, report_period_s=0.2, node_id="n1", incarnation="i1",
        )  # fmt: skip
        self._runner.start()

    def job(self) -> JobKey:
        def both_train() -> JobView | None:
            views = [view for view in self.coordinator.jobs() if view.job_id == JOB_ID]
            return next((view for view in views if len([rank for rank in view.ranks if rank.step > 3]) == 2), None)

        view: JobView = eventually(both_train, "both ranks", within_s=WITHIN_S)
        return view.key

    def profiles(self, job: JobKey, reason: str) -> Callable[[], Sequence[RankProfile] | None]:
        def look() -> Sequence[RankProfile] | None:
            self.loop.turn()
            found = [one for one in self.store.profiles.of_job(job, limit=9) if one.reason == reason]
            return found if len(found) == 2 else None

        return look

    def end(self) -> list[dict[str, Any]]:
        """The ranks end by themselves and say what is true."""
        outs = [rank.communicate(timeout=WITHIN_S)[0] for rank in self.ranks]
        return [json.loads(out.splitlines()[-1]) for out in outs]

    def close(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
                rank.communicate(timeout=30)
        self._runner.stop(60.0)
        self.agent.close()
        self._workers.shutdown()
        self.store.close()


@pytest.fixture
def site(rig: Rig, tmp_path: Path) -> Iterator[Site]:
    site = Site(rig, tmp_path)
    yield site
    site.close()


def test_a_job_that_trains_is_profiled_by_itself_and_again_when_somebody_asks(site: Site) -> None:
    job = site.job()
    first = eventually(site.profiles(job, PROFILE_WARMED_UP), "profiles of both ranks", within_s=WITHIN_S)
    assert [(one.rank, one.problems) for one in first] == [(0, ()), (1, ())]
    assert {tuple(view.profile_bytes) for view in site.agent.view().ranks} != {()}

    asked = site.loop.ask(job, [])
    assert [one.state for one in asked] == [AskState.ASKING] * 2
    second = eventually(site.profiles(job, PROFILE_ASKED), "what was asked for", within_s=WITHIN_S)
    assert {one.state for one in site.loop.asked(job)} == {AskState.DONE}

    assert imbalance_of(second) is None, "they do the same"
    for one, truth in zip(second, site.end()):
        profile = one.profile()
        assert one.allocated_bytes == max(truth["peaks"][one.began_step : one.ended_step])
        assert sum(one.by_category.values()) == one.allocated_bytes
        assert one.by_category[Category.OPTIMIZER_STATE] == truth["state_bytes"]
        assert profile.peak.unknown_share < 0.02
        assert {"Model", "Model.embed", "Model.blocks.3.mix.0", "Model.head"} < {
            module.path for module in profile.modules
        }
        assert len(one.packed) < 300_000
        assert one.world_size == 2
        assert profile.advice is not None
        assert Measure.SHARDED_STATE in {advised.measure for advised in profile.advice.measures}
        [ref] = one.snapshots
        kept = profile_of(open_trace(site.state / "snapshots" / ref.key, device=profile.device))
        assert kept.peak.allocated_bytes == one.allocated_bytes
