"""Runs on the fake-GPU rig: a job of ``small_jobs.py``, on PyTorch's own allocator.

Usage: small_job_on_the_rig.py JOB STEPS OUT; OUT gets ``[[action, size], …]`` as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
ACTIONS = ("alloc", "free_requested")


def main(name: str, steps: int, out: Path) -> None:
    from integration.estimate.small_jobs import JOBS

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
    _, _, step = JOBS[name]()
    for _ in range(steps):
        step()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    out.write_text(json.dumps([[event["action"], event["size"]] for event in events if event["action"] in ACTIONS]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
