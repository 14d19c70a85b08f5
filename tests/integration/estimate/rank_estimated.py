"""Runs beside a torch without a GPU: the requests that the estimate has for the job of ``rank_on_the_rig.py``.

Usage: rank_estimated.py KIND OUT; OUT gets the same as there, without the workspaces that are tables here.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "collector"), str(ROOT / "examples" / "estimate"), str(Path(__file__).parent)]


def main(kind: str, out: Path) -> None:
    from tidegauge.core.allocator.trace import Action
    from tidegauge.estimator.distributed import lone_rank, with_ddp, with_fsdp2
    from tidegauge.estimator.recording import RecordedKind
    from tidegauge.estimator.training import record_training

    train, ranks = importlib.import_module("train"), importlib.import_module("rank_on_the_rig")
    builds: dict[str, Any] = {
        "none": partial(train.build, **ranks.SIZES),
        "ddp": with_ddp(partial(train.build, **ranks.SIZES)),
        "ddp_own": partial(train.build_parallel, **ranks.SIZES),
        "ddp_view": partial(train.build_parallel, bucket_view=True, **ranks.SIZES),
        "fsdp2": with_fsdp2(partial(train.build, **ranks.SIZES), ranks.WORLD_SIZE),
    }
    with lone_rank(ranks.WORLD_SIZE):
        recording = record_training(builds[kind], steps=3)
    trace = recording.trace
    ready = trace.marks["build"][0] if kind == "fsdp2" else 0
    found = [
        (trace.size_bytes[index], trace.stream[index] != 0)
        for index in range(ready, len(trace))
        if trace.action[index] == Action.ALLOC and recording.kinds[index] != RecordedKind.WORKSPACE
    ]
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
