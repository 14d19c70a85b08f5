"""Runs without a GPU: what the recorder says of a job of ``small_jobs.py``.

Usage: small_job_estimated.py JOB STEPS OUT; OUT gets JSON: ``events`` as ``[[action, size, kind, phase], …]`` without
workspaces, ``assumptions``, ``changed`` (names of what is not as it was before) and ``by_kind`` (bytes ever asked for).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "collector"), str(ROOT / "tests")]


def main(name: str, steps: int, out: Path) -> None:
    from integration.estimate.odd_jobs import ODD_JOBS
    from integration.estimate.small_jobs import JOBS
    from tidegauge.estimator.recording import Phase, RecordedKind
    from tidegauge.estimator.training import record_training

    before = attributes()
    recording = record_training({**JOBS, **ODD_JOBS}[name], steps=steps)
    trace, by_kind = recording.trace, Counter[str]()
    events = []
    for index, action in enumerate(trace.action):
        kind = RecordedKind(recording.kinds[index])
        if action < 2 and kind is not RecordedKind.WORKSPACE:
            word = ("alloc", "free_requested")[action]
            events.append([word, trace.size_bytes[index], kind.name, Phase(recording.phases[index]).name])
        if action == 0:
            by_kind[kind.name] += trace.size_bytes[index]
    changed = [name for name, value in attributes().items() if before.get(name) is not value]
    found = {"events": events, "assumptions": recording.assumptions, "changed": changed, "by_kind": by_kind}
    out.write_text(json.dumps(found))


def attributes() -> Mapping[str, Any]:
    """Everything that the pretence could have changed, by name."""
    import torch
    from torch._subclasses import fake_tensor
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    owners = {
        "torch": torch, "cuda": torch.cuda, "random": torch.cuda.random, "Tensor": torch.Tensor, "utils": torch.utils,
        "storage": torch.UntypedStorage, "Module": torch.nn.Module, "_C": torch._C, "version": torch.version,
        "optimizer": optimizer, "foreach": _foreach_utils, "accelerator": torch.accelerator,
        "subclasses": torch._subclasses, "fake": fake_tensor.FakeTensor, "fake_tensor": fake_tensor,
        "recurrent": torch.nn.RNNBase,
    }  # fmt: skip
    return {f"{owner}.{name}": value for owner, thing in owners.items() for name, value in vars(thing).items()}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
