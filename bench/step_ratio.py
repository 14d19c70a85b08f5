"""How much slower a training step is with the probe at level ``stats``. Needs a CUDA device. Prints JSON.

    PYTHONPATH=collector python bench/step_ratio.py [--pairs 250] [--quick]

Two steps: one bound by the GPU (matrix products, at least 10 ms) and one bound by the launch of some hundred tiny
kernels (about 6 ms). In one process, blocks of steps with and without the probe alternate in the order off-on-on-off,
so that drifts of clock and temperature hit both alike; without means: hook unregistered, nothing read, no ticks.
``ratio`` is the median of the pairs' ratios: neighbours in time share the machine's mood, which moves a launch-bound
step by some per cent. The interval is the central 95 % of 2,000 bootstrap resamples. Targets: 1.001 and 1.01.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TARGETS = {"compute_bound": 1.001, "launch_bound": 1.01}


def compute_bound(torch: Any, size: int, layers: int) -> Callable[[], None]:
    """A stack of square layers; ``layers`` sets the time."""
    model = torch.nn.Sequential(*[torch.nn.Linear(size, size, device="cuda") for _ in range(layers)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    batch = torch.randn(size, size, device="cuda")

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def launch_bound(torch: Any, layers: int) -> Callable[[], None]:
    """Many tiny layers, so that the CPU is what takes the time."""
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16, device="cuda") for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    batch = torch.randn(16, 16, device="cuda")

    def step() -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Switch:
    """Takes the probe out of this process and puts it back, as completely as can be."""

    def __init__(self, torch: Any) -> None:
        import tidegauge
        from tidegauge.probe import entry

        self._hooks = sys.modules[torch.optim.Optimizer.__module__]._global_optimizer_post_hooks
        before = set(self._hooks)
        tidegauge.attach(level="stats")
        (self._key,) = set(self._hooks) - before
        self._hook = self._hooks[self._key]
        assert entry._probe is not None
        self.probe = entry._probe

    def on(self) -> None:
        if not self.probe.switch_on("stats"):
            raise SystemExit("the probe does not watch this process; see the line above")
        self._hooks[self._key] = self._hook

    def off(self) -> None:
        self._hooks.pop(self._key, None)
        self.probe.detach()


def block_ms(torch: Any, step: Callable[[], None], steps: int) -> float:
    """Milliseconds a step of one block, the GPU's work included."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps * 1e3


def calibrated(torch: Any, make: Callable[[int], Callable[[], None]], target_ms: float, layers: int) -> tuple[Any, int]:
    """A step of about ``target_ms`` and its number of layers."""
    for _ in range(6):
        step = make(layers)
        block_ms(torch, step, 10)
        measured_ms = block_ms(torch, step, 20)
        if 0.9 * target_ms <= measured_ms <= 1.3 * target_ms:
            break
        layers = max(2, min(4000, round(layers * 1.05 * target_ms / measured_ms)))
    return step, layers


def compare(torch: Any, switch: Switch, step: Callable[[], None], *, pairs: int, steps: int) -> dict[str, Any]:
    """Alternate blocks with and without the probe."""
    modes = {"off": switch.off, "on": switch.on}
    times: dict[str, list[float]] = {"off": [], "on": []}
    for pair in range(pairs):
        for mode in ("off", "on") if pair % 2 == 0 else ("on", "off"):
            modes[mode]()
            block_ms(torch, step, 3)
            times[mode].append(block_ms(torch, step, steps))
    ratios = [on / off for on, off in zip(times["on"], times["off"])]
    low, high = bootstrap_interval(ratios)
    return {
        "step_ms": round(statistics.median(times["off"]), 3),
        "ratio": round(statistics.median(ratios), 5),
        "interval_95": [round(low, 5), round(high, 5)],
        "pairs": pairs,
        "steps_in_block": steps,
    }


def bootstrap_interval(ratios: list[float]) -> tuple[float, float]:
    """The central 95 % of the median of resampled ratios."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


@contextmanager
def own_run_dir() -> Iterator[None]:
    """Rings of the benchmark in a folder of their own, on the same kind of file system as ever."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as scratch:
        os.environ["TIDEGAUGE_RUN_DIR"] = scratch
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=250, help="pairs of blocks (default 250)")
    parser.add_argument("--quick", action="store_true", help="a few small blocks, to see that it runs")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("step_ratio: torch sees no CUDA device", file=sys.stderr)
        return 3
    pairs, steps = (4, 5) if args.quick else (args.pairs, 20)
    size = 256 if args.quick else 4096
    torch.manual_seed(0)
    with own_run_dir():
        torch.cuda.init()
        switch = Switch(torch)
        switch.off()
        result: dict[str, Any] = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(0),
        }
        step, layers = calibrated(torch, lambda layers: compute_bound(torch, size, layers), 12.0, 8)
        result["compute_bound"] = {"layers": layers, **compare(torch, switch, step, pairs=pairs, steps=steps)}
        step, layers = calibrated(torch, lambda layers: launch_bound(torch, layers), 6.0, 60)
        result["launch_bound"] = {"layers": layers, **compare(torch, switch, step, pairs=pairs, steps=steps)}
        for case, target in TARGETS.items():
            result[case]["target"] = target
            result[case]["met"] = result[case]["ratio"] <= target
        # A ratio of 1 would also come out if nothing had been recorded.
        result["steps_counted"] = switch.probe.steps.steps
        result["probe_errors"] = switch.probe.faults.count
    print(json.dumps(result, indent=2))
    recorded = result["steps_counted"] > 0 and result["probe_errors"] == 0
    return 0 if recorded and all(result[case]["met"] for case in TARGETS) else 1


if __name__ == "__main__":
    sys.exit(main())
