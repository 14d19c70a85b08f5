"""A rank in mount and pid namespaces of its own, as in a pod, on a real GPU: what NVML calls it, and who finds it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpu.test_probe_and_agent import PREAMBLE, told
from gpu.watching import agent_for, poll_until, rank, watched
from tidegauge.agent.nvml import open_nvml

pytestmark = pytest.mark.gpu

POD = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]


@pytest.fixture
def pod_of_its_own() -> list[str]:
    """A command prefix; skips where namespaces cannot be made."""
    tried = subprocess.run([*POD, "true"], capture_output=True, text=True, timeout=20, check=False)
    if tried.returncode != 0:
        pytest.skip(f"no namespaces can be made here: {tried.stderr.strip()}")
    return [*POD, "sh", "-c", 'mount -t tmpfs tmpfs "$TIDEGAUGE_RUN_DIR" && exec "$@"', "pod"]


def test_rank_in_a_pod_is_found_with_what_the_driver_says_it_holds(
    gpu_python: str, run_dir: Path, pod_of_its_own: list[str]
) -> None:
    run_dir.chmod(0o1777)
    code = PREAMBLE + (
        "import os\n"
        "for _ in range(10): step()\n"
        "torch.cuda.synchronize(); tell(pid=os.getpid(), reserved=torch.cuda.memory_reserved())\n"
        "wait()\n"
    )
    with watched([*pod_of_its_own, gpu_python, "-c", code], run_dir=run_dir) as job, agent_for(run_dir) as agent:
        facts = told(job)
        assert facts["pid"] == 1, "it has a pid namespace of its own"
        assert list(run_dir.iterdir()) == [], "its run directory is its own"
        gpus = open_nvml()
        assert gpus is not None
        said = {pid: held for gpu in gpus.read() for pid, held in (gpu.process_bytes or {}).items()}
        gpus.close()
        print(json.dumps({"driver lists": {str(pid): held for pid, held in said.items()}}))  # worth knowing
        view = poll_until(agent, lambda v: (r := rank(v)) is not None and r.step == 10, within_s=30)
        seen = rank(view)
        assert seen is not None
        assert os.stat(f"/proc/{seen.process.pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino
        assert seen.reserved_bytes == facts["reserved"]
        if seen.process.pid not in said:
            pytest.skip(f"this driver does not call it {seen.process.pid}, as the host does, but one of {[*said]}")
        view = poll_until(agent, lambda v: (r := rank(v)) is not None and r.nontorch_bytes is not None, within_s=20)
        seen = rank(view)
        assert seen is not None
        assert seen.nontorch_bytes is not None
        assert seen.nontorch_bytes > 50 << 20
