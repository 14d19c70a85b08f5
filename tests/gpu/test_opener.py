"""An agent without rights beside a root's opener, with another user's rank on a real GPU and real NVML."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu.test_probe_and_agent import PREAMBLE, told
from gpu.watching import poll_until, rank, watched
from integration.security.opener_rig import SERVICE, run_as, running_opener
from tidegauge.agent.node_agent import open_node_agent
from tidegauge.core.views import NodeView, RankView
from tidegauge.settings import Settings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

ADA = 4301


@pytest.fixture
def shared_run_dir() -> Iterator[Path]:
    """A run directory as on a node: every user's."""
    folder = Path(tempfile.mkdtemp(prefix="tg-gpu-", dir="/dev/shm"))
    folder.chmod(0o755)
    path = folder / "run"
    path.mkdir()
    path.chmod(0o1777)
    yield path
    shutil.rmtree(folder)


def test_an_agent_without_rights_says_of_another_users_rank_what_torch_and_nvml_say(
    gpu_python: str, shared_run_dir: Path
) -> None:
    code = PREAMBLE + (
        "for _ in range(10): step()\n"
        "torch.cuda.synchronize()\n"
        "tell(allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved())\n"
        "wait()\n"
    )
    with (
        watched([gpu_python, "-c", code], run_dir=shared_run_dir, user=ADA) as job,
        running_opener(shared_run_dir) as opener,
    ):
        facts = told(job)

        def is_told(view: NodeView) -> bool:
            seen = rank(view)
            return seen is not None and seen.allocated_bytes == facts["allocated"] and seen.nontorch_bytes is not None

        def look() -> RankView | None:
            agent = open_node_agent(Settings(run_dir=shared_run_dir, opener_socket=opener.socket))
            try:
                return rank(poll_until(agent, is_told, within_s=30))
            finally:
                agent.close()

        seen = run_as(SERVICE, look)
        assert seen is not None
        assert (seen.uid, seen.process.pid, seen.reserved_bytes) == (ADA, job.pid, facts["reserved"])
        assert seen.nontorch_bytes is not None
        assert 100 << 20 < seen.nontorch_bytes < 4 << 30
        assert seen.uuid is not None
