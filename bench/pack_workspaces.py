"""Packs the workspaces that bench/gpu_peaks.py recorded into the table that `tidegauge estimate` reads.

    python bench/pack_workspaces.py OUT/workspaces.csv

A line for each convolution, type and layout: 13 numbers of the geometry, type, layout, and for each batch
`batch:forward:input:weight` in bytes, or `batch:-` where PyTorch's own depthwise kernel ran.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Mapping
from pathlib import Path

TABLE = Path(__file__).parents[1] / "collector" / "tidegauge" / "estimator" / "kernels" / "h200_convolutions.csv.gz"
PAIRS = ("kernel", "stride", "padding", "dilation")
INPUT_DONE = 2
"""Blocks asked for when a backward call frees the workspace of the input's gradient: that, and the gradient."""


def main(path: Path) -> None:
    """Write the table anew."""
    batches: dict[tuple[str, ...], dict[int, str]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            batches.setdefault(geometry(row), {})[int(row["batch"])] = workspaces(row)
    lines = (
        ",".join([*words, *(f"{batch}:{sizes}" for batch, sizes in sorted(known.items()))])
        for words, known in sorted(batches.items(), key=lambda entry: (*map(int, entry[0][:13]), *entry[0][13:]))
    )
    TABLE.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode("ascii"), 9, mtime=0))


def geometry(row: Mapping[str, str]) -> tuple[str, ...]:
    sides = (side for pair in PAIRS for side in row[pair].split("x"))
    channels = (row[key] for key in ("channels", "out_channels", "height", "width"))
    return (*channels, *sides, row["groups"], row["dtype"], row["layout"])


def workspaces(row: Mapping[str, str]) -> str:
    """The forward one, and of the backward call those for input and weights; what comes last is the bias's sum."""
    if row["backend"] != "Cudnn":
        return "-"
    forward = temporaries(row["forward_temporaries"])
    backward = temporaries(row["backward_temporaries"])
    for_input = backward.pop(0)[0] if backward and backward[0][1] == INPUT_DONE else 0
    weights_done = 4 if for_input else 3
    for_weights = backward[0][0] if backward and backward[0][1] == weights_done else 0
    return f"{forward[0][0] if forward else 0}:{for_input}:{for_weights}"


def temporaries(written: str) -> list[tuple[int, int]]:
    """Bytes and blocks asked for when freed, of `bytes@n bytes@n`."""
    pairs = (word.split("@") for word in written.split())
    return [(int(size), int(blocks)) for size, blocks in pairs]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
