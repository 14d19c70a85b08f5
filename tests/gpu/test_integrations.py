"""The callbacks for trainers on a real GPU: the examples, asked to save, killed, and started again."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from integration.training_job import ROOT, TrainingJob

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


class OneCard:
    """``training_job.Devices``: the first GPU of this machine."""

    def environ(self, *, devices: int, total_bytes: int, state: Path, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, "CUDA_VISIBLE_DEVICES": "0"}


class GpuJob(TrainingJob):
    python = Path(sys.executable)


@pytest.mark.parametrize(
    ("example", "library", "goes_on_from"),
    [
        ("lightning", "lightning", "goes on from step {step}"),
        ("huggingface", "transformers", "goes on from output/checkpoint-{step}"),
    ],
)
def test_example_saves_on_request_and_goes_on_from_there(
    tmp_path: Path, example: str, library: str, goes_on_from: str
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed for {sys.executable}")
    command: list[str | Path] = [ROOT / "examples" / example / "train.py", "--steps=1000000"]
    first = GpuJob(OneCard(), tmp_path, command, TIDEGAUGE_PROFILE="stats")
    try:
        (saved,) = first.saves_on_request()
        assert saved["stage"] == "done", saved
        (rank,) = first.ranks()
    finally:
        first.end()
    assert rank.samples[-1].allocated_bytes > 0
    again = GpuJob(OneCard(), tmp_path, command, TIDEGAUGE_PROFILE="stats")
    try:
        line = goes_on_from.format(step=saved["step"])
        assert again.wait_for(lambda: line in again.said())
    finally:
        again.end()
