"""Recorded series as `Series`.

tests/data/series: from real GPUs, in view while the detector was made. tests/data/series_rig: from the fake-GPU rig.
tests/data/series_h200: a part of what bench/gpu_recordings.py recorded on an H200, after the detector was made.
tests/data/series_wild: what it recorded with `--wild` on an H100 (seeds 1, 2; 7 in h100_later) and an H200 (3 and 4):
real out-of-memory errors below a cap; in h200_slow (seed 5) each step takes 0.2 s longer, in h100_slow (seed 6) 0.1 s,
except in the two loops that set their own pace; h100_another (seeds 1, 2), h200_another (3, 4) and h100_another_later
(5, 6) are loops of another author (wild_loops_by_another.py). The forecast was made with h100 in view, and with the
private pools of that author; the others only tell how good it is.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from leakseries.machine import Row, Series

_DATA = Path(__file__).resolve().parents[1] / "data"
RIG_FOLDER = _DATA / "series_rig"
H200_FOLDER = _DATA / "series_h200"
WILD_CARDS = (
    "h100", "h100_later", "h100_slow", "h200", "h200_slow", "h100_another", "h200_another", "h100_another_later",
)  # fmt: skip
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
        return _rows(lines)


def _rows(lines: Iterable[str]) -> list[Row]:
    return [
        Row(
            int(row["step"]), float(row["t"]), int(row["allocated"]), int(row["reserved"]),
            int(row["peak_allocated"]), int(row["nvml_process"]),
            int(row["inactive_split"]) if "inactive_split" in row else None,
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


class Capped(NamedTuple):
    """A loop that ran below a cap, and when it ran out of memory."""

    series: Series
    cap_bytes: int
    """Of the allocator alone, as `torch.cuda.set_per_process_memory_fraction` sets it."""
    oom_step: Optional[int]
    oom_s: Optional[float]
    """On the clock of the rows; `None` when it did not run out of memory."""

    def limit_bytes(self, row: Row) -> int:
        """Of the whole process, as the detector is told it."""
        return self.cap_bytes + max(row.nvml_process - row.reserved, 0)


def wild_recordings(source: str | Path) -> Iterator[Capped]:
    """What was recorded on one of `WILD_CARDS`, or is in an archive of bench/gpu_recordings.py."""
    path = source if isinstance(source, Path) else _DATA / "series_wild" / f"{source}.tar.gz"
    with tarfile.open(path) as archive:

        def read(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        for name, truth in json.loads(read("truth.json")).items():
            loop, seed = name.rsplit("_", 1)
            rows = _rows(io.StringIO(gzip.decompress(read(f"{name}.csv.gz")).decode()))
            series = Series(loop, int(seed), rows, truth["leak"], truth.get("signal"), truth.get("onset_step"))
            yield Capped(series, truth["cap_bytes"], truth.get("oom_step"), truth.get("oom_t"))


KNOWN_MISSES = frozenset({("leak_with_walk", 1), ("leak_queue", 2)})
"""Loop and seed of recordings that leak less than their usual reversal, or by fits and starts: not found so far."""
