"""Recorded series as `Series`.

tests/data/series: from real GPUs, in view while the detector was made. tests/data/series_rig: from the fake-GPU rig.
tests/data/series_h200: a part of what bench/gpu_recordings.py recorded on an H200, after the detector was made.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from leakseries.machine import Row, Series

_DATA = Path(__file__).resolve().parents[1] / "data"
RIG_FOLDER = _DATA / "series_rig"
H200_FOLDER = _DATA / "series_h200"
FOLDER = _DATA / "series"


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


def loop_recordings(folder: Path = H200_FOLDER) -> Iterator[Series]:
    """What bench/gpu_recordings.py recorded, unpacked, with the truths in its truth.json."""
    for name, truth in json.loads((folder / "truth.json").read_text()).items():
        loop, seed = name.rsplit("_", 1)
        yield Series(
            family=loop,
            seed=int(seed),
            rows=read_rows(folder / f"{name}.csv.gz"),
            leak=truth["leak"],
            signal=truth.get("signal"),
            onset_step=truth.get("onset_step"),
            note=truth.get("note", False),
        )


KNOWN_MISSES = frozenset({("leak_with_walk", 1), ("leak_queue", 2)})
"""Loop and seed of recordings that leak less than their usual reversal, or by fits and starts: not found so far."""
