"""What one ring record costs the training process beside the allocator call. Prints JSON.

    PYTHONPATH=collector python bench/probe_record_cost.py [--records 20000]

Runs the probe's own step hook on one device, with statistics of real shape: once with a dictionary that is already
there (so all the time is the probe's), and, where torch has a CUDA device, with the raw allocator call, whose own cost
is then measured alone and given beside it. Times are CPU time of the calling thread; the best of several rounds counts,
because everything else on a shared machine only adds to it. The target is 25 us.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from tidegauge.core.ids import GlobalRank, JobId, LocalRank, RankIdentity
from tidegauge.core.ring_layout import RingHeader
from tidegauge.probe.faults import Faults
from tidegauge.probe.run_files.ring_writer import RingWriter
from tidegauge.probe.run_files.run_folder import open_run_folder
from tidegauge.probe.runtime.backend import Cuda, register_step_hook
from tidegauge.probe.session.probe import Probe
from tidegauge.probe.step_counting import watch as watch_module
from tidegauge.probe.step_counting.watch import Watch

TARGET_US = 25.0
ROUNDS = 9


hooks: list[Callable[..., None]] = []


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> None:
    """This module stands for ``torch.optim.optimizer``."""
    hooks[:] = [hook]


class optim:  # noqa: N801 - stands for the module ``torch.optim``
    class Optimizer:
        """Lives in the module that registers hooks."""


class OneTensorOptimizer:
    """As much of an optimizer as the hook looks at."""

    def __init__(self) -> None:
        self.param_groups: list[dict[str, object]] = [{"params": [object()]}]


class CannedBackend:
    """Statistics without an allocator. Only what the step hook uses."""

    name = "cuda"
    torch_version = "2.13.0"

    def __init__(self, read: Callable[[int], Mapping[str, Any]]) -> None:
        self.read = read


def canned_statistics() -> dict[str, Any]:
    """Statistics of the shape and size that torch gives."""

    def gauge(value: int) -> dict[str, dict[str, int]]:
        return {
            pool: {"current": value, "peak": value, "allocated": value, "freed": 0}
            for pool in ("all", "small_pool", "large_pool")
        }

    gauges = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
    counts = ("segment", "allocation", "active", "inactive_split")
    stats: dict[str, Any] = {name: gauge(12_345_678_901) for name in gauges}
    stats |= {name: gauge(432) for name in counts}
    stats |= dict.fromkeys(("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"), 3)
    return stats


def best_us(call: Callable[[], object], times: int) -> float:
    """CPU microseconds of one call in the best of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, time.thread_time() - began)
    return best / times * 1e6


def hook_us(read: Callable[[int], Mapping[str, Any]], times: int) -> float:
    """The whole step hook with one record, called from a stack as deep as a training script's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        folder = open_run_folder(scratch, uid=os.geteuid())
        ring = RingWriter(folder, RingHeader(4096, 1, os.getpid(), 1, 1))
        ring.publish(RankIdentity(JobId("bench"), 0, GlobalRank(0), LocalRank(0), 1, "localhost"))
        probe = Probe("stats", CannedBackend(read), environ={}, with_helper=False)  # type: ignore[arg-type] # SAFETY: see its docstring
        probe._begun = True
        probe.watch = Watch(probe._backend, ring, probe.steps, Faults(), device_count=1)
        optimizer = OneTensorOptimizer()
        register_step_hook(sys.modules[__name__], probe.optimizer_stepped)
        gap_ns, watch_module.MIN_STEP_GAP_NS = watch_module.MIN_STEP_GAP_NS, 0  # or most steps would share a record
        try:

            def deep(depth: int) -> float:
                if depth:
                    return deep(depth - 1)
                return best_us(lambda: hooks[0](optimizer, (), {}), times)

            cost = deep(20)
        finally:
            watch_module.MIN_STEP_GAP_NS = gap_ns
        written = ring._seq[0]
        ring.abandon()
        folder.close()
    if written < ROUNDS * times or probe.faults.count:
        raise SystemExit(f"only {written} records were written, {probe.faults.count} errors: the figure would be wrong")
    return cost


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=5000, help="records in one round (default 5000)")
    args = parser.parse_args()
    stats = canned_statistics()
    record_us = hook_us(lambda _device: stats, args.records)
    result: dict[str, Any] = {
        "python": platform.python_version(),
        "record_us": round(record_us, 2),
        "target_us": TARGET_US,
        "met": record_us <= TARGET_US,
    }
    try:
        import torch
    except Exception as error:  # a CUDA build without its libraries raises OSError
        result["real"] = f"not measured: {type(error).__name__}"
    else:
        if torch.cuda.is_available():
            keep = [torch.empty(1 << 20, device="cuda") for _ in range(400)]
            read = Cuda(torch).read
            result["real"] = {
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name(0),
                "live_blocks": len(keep),
                "allocator_call_us": round(best_us(lambda: read(0), args.records), 2),
                "hook_with_allocator_call_us": round(hook_us(read, args.records), 2),
            }
        else:
            result["real"] = "not measured: torch sees no CUDA device"
    print(json.dumps(result, indent=2))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
