"""What the callbacks of ``tidegauge.integrations`` add to a training step. Prints JSON.

    python tests/fakegpu/rig.py run -- env PYTHONPATH=collector .trainers/venv/bin/python bench/callback_cost.py

Calls the hooks of the real callbacks through the frameworks' own dispatch, with their own trainer's counters, in a
process that is not watched: what remains is the way to ``tidegauge.step()``, which writes the record that the
optimizer's hook would write otherwise. CPU time of the calling thread; the best of several rounds counts, because
everything else on a shared machine only adds to it. The target is 10 us.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["TIDEGAUGE_PROFILE"] = "off"

TARGET_US = 10.0
ROUNDS = 9


def best_us(call: Callable[[], object], times: int) -> float:
    """CPU microseconds of one call in the best of the rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, time.thread_time() - began)
    return best / times * 1e6


def lightning_us(times: int) -> float:
    """Lightning's call of the callback's hook, in a step; without the same call of a callback that does nothing."""
    pl: Any = importlib.import_module("lightning.pytorch")
    dispatch = importlib.import_module("lightning.pytorch.trainer.call")._call_callback_hooks
    ours = importlib.import_module("tidegauge.integrations.lightning").TidegaugeCallback()

    def with_callback(callback: Any) -> float:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = pl.Trainer(accelerator="cpu", callbacks=[callback], enable_model_summary=False, **quiet)
        trainer.strategy._lightning_module = pl.LightningModule()
        progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total

        def one_step() -> None:
            progress.completed += 1
            dispatch(trainer, "on_train_batch_end", None, None, 0)

        return best_us(one_step, times)

    return with_callback(ours) - with_callback(pl.Callback())


def hugging_face_us(times: int) -> float:
    """As ``lightning_us``, for transformers' ``CallbackHandler``."""
    importlib.import_module("transformers.utils.logging").set_verbosity_error()  # about callbacks that it misses
    callbacks: Any = importlib.import_module("transformers.trainer_callback")
    ours = importlib.import_module("tidegauge.integrations.huggingface").TidegaugeCallback()

    def with_callback(callback: Any) -> float:
        handler = callbacks.CallbackHandler([callback], None, None, None, None)
        state, control = callbacks.TrainerState(), callbacks.TrainerControl()
        return best_us(lambda: handler.on_step_end(None, state, control), times)

    return with_callback(ours) - with_callback(callbacks.TrainerCallback())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000, help="steps in one round (default 20000)")
    args = parser.parse_args()
    costs = {"lightning_us": lightning_us(args.steps), "hugging_face_us": hugging_face_us(args.steps)}
    result: dict[str, Any] = {"python": platform.python_version(), "target_us": TARGET_US}
    result |= {name: round(cost, 2) for name, cost in costs.items()}
    result["met"] = max(costs.values()) <= TARGET_US
    print(json.dumps(result))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
