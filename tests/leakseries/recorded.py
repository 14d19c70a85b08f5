"""Recorded series as `Series`: tests/data/series from real GPUs, tests/data/series_rig from the fake-GPU rig."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from leakseries.machine import Row, Series

RIG_FOLDER = Path(__file__).resolve().parents[1] / "data" / "series_rig"
FOLDER = Path(__file__).resolve().parents[1] / "data" / "series"


def recorded_files() -> list[Path]:
    """One file per rank."""
    return sorted([*FOLDER.glob("*/steps.csv.gz"), *FOLDER.glob("*/rank?.csv.gz")])


def truth_of(path: Path) -> dict[str, object]:
    """`leak`, and for leaks `signal`, `onset_step`, `note`: from truth.json beside the recordings."""
    truths = json.loads((FOLDER / "truth.json").read_text())
    name = path.parent.name if path.name == "steps.csv.gz" else f"{path.parent.name}/{path.name.split('.')[0]}"
    truth = truths[name]
    assert isinstance(truth, dict)
    return truth


def read_rows(path: Path) -> list[Row]:
    """The columns that the detector sees."""
    with gzip.open(path, "rt", newline="") as lines:
        return [
            Row(
                int(row["step"]), float(row["t"]), int(row["allocated"]), int(row["reserved"]),
                int(row["peak_allocated"]), int(row["nvml_process"]),
            )
            for row in csv.DictReader(lines)
        ]  # fmt: skip


def recorded_series() -> Iterator[Series]:
    """All of them with their labels."""
    for path in recorded_files():
        truth = truth_of(path)
        onset = truth.get("onset_step")
        yield Series(
            family=f"{path.parent.name}/{path.name.split('.')[0]}",
            seed=0,
            rows=read_rows(path),
            leak=bool(truth["leak"]),
            signal=str(truth["signal"]) if truth.get("signal") else None,
            onset_step=onset if isinstance(onset, int) else None,
            note=bool(truth.get("note")),
        )


def rig_series() -> Iterator[Series]:
    """What rig_loops.py recorded: PyTorch's real allocator; NVML was not read."""
    for path in sorted(RIG_FOLDER.glob("*.csv.gz")):
        name, seed = path.name.split(".")[0].rsplit("_", 1)
        leak = name.startswith("leak_")
        signal = "allocated" if leak else None
        yield Series(name, int(seed), read_rows(path), leak=leak, signal=signal, note=name == "leak_losses")
