"""How much longer the call of a module takes while the probe takes calls of modules for step boundaries.

    python bench/module_hook.py [MODULES]        # with a torch, no GPU needed

Modules that do nothing, in pairs below one. Prints one line.
"""

from __future__ import annotations

import sys
import timeit
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "collector")]

import torch  # noqa: E402

from tidegauge.probe.runtime.backend import register_module_hook  # noqa: E402

CALLS, TIMES = 200, 7


def call_s(model: torch.nn.Module, batch: torch.Tensor) -> float:
    """The fastest of some tries."""
    return min(timeit.repeat(lambda: model(batch), number=CALLS, repeat=TIMES)) / CALLS


def main() -> None:
    pairs = int(sys.argv[1]) // 2 if sys.argv[1:] else 50
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Identity()) for _ in range(pairs)))
    batch = torch.ones(1)
    without_s = call_s(model, batch)
    remove = register_module_hook(torch, lambda _module: None)
    assert remove is not None
    with_s = call_s(model, batch)
    remove()
    modules = 2 * pairs + 1
    each_us = (with_s - without_s) / modules * 1e6
    print(
        f"torch {torch.__version__}, {modules} modules: {without_s * 1e6:.0f} us without, {with_s * 1e6:.0f} us with "
        f"the hook, {each_us:.1f} us each"
    )


if __name__ == "__main__":
    main()
