"""A task of a Slurm job that is a rank as far as its ring goes: ``ring_rank.py GO_FILE LEAK_BYTES_PER_STEP``.

It has just done 3000 steps, the last task of the job with a leak, and lives until GO_FILE is there. Run with the
service's Python and ``tests`` on ``PYTHONPATH``; no torch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fake_node import MIB, FakeClock, FakeRank, identity
from tidegauge.core.ids import GlobalRank, JobId, LocalRank
from tidegauge.osproc.processes import identity_of
from tidegauge.probe.run_files.run_folder import open_any_run_folder

STEPS = 3000


def main() -> None:
    go_file, leak_bytes_per_step = Path(sys.argv[1]), int(sys.argv[2])
    rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    process = identity_of(os.getpid())
    folder = open_any_run_folder(os.environ)
    assert process is not None
    assert folder is not None
    now_s = time.monotonic()
    clock = FakeClock(now_s=now_s - STEPS / 100, unix_offset_s=time.time() - now_s)
    who = identity(
        job_id=JobId(os.environ["SLURM_JOB_ID"]), rank=GlobalRank(rank), world_size=world_size,
        local_rank=LocalRank(int(os.environ["SLURM_LOCALID"])), job_name="train", device_uuids=(),
    )  # fmt: skip
    ring = FakeRank(Path(folder.path).parent, clock, process=process, capacity=4096, who=who)
    leak = leak_bytes_per_step if rank == world_size - 1 else 0
    for step in range(STEPS):
        ring.record(step=step, allocated=4096 * MIB + step * leak)
        clock.pass_s(0.01)
    print(f"rank {rank} is ready", flush=True)
    while not go_file.exists():
        time.sleep(0.05)  # between two looks; nothing is decided by it


if __name__ == "__main__":
    main()
