"""What cuDNN's recurrent networks take from the allocator: workspaces and what forward keeps for backward, by size.

    python bench/gpu_recurrent.py OUT        # half a minute on a GPU; OUT/recurrent.csv

A row has the sizes of every block, 256 bytes and larger, that one forward and one backward pass ask for, in order and
with a star where the pass gives it back itself. Under autocast weights are copied into one buffer of the lower type.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_peaks_operators import allocations, begin_trace, tagged, trace

MIN_BLOCK_BYTES = 256


class Case(NamedTuple):
    """A network of `torch.nn` with as many features going in as each direction has."""

    kind: str
    """LSTM, GRU or RNN."""
    autocast: str
    """Lower type; empty: none."""
    layers: int
    directions: int
    hidden: int
    batch: int
    time: int
    dropout: int


def cases() -> Iterator[Case]:
    """Usual sizes in all combinations, then each kind with a few unusual ones."""
    for kind, autocast, layers, directions in product(("LSTM", "GRU", "RNN"), ("", "bfloat16"), (1, 2, 3), (1, 2)):
        for hidden, batch, time in ((256, 16, 50), (512, 32, 100), (1024, 24, 70), (650, 20, 35), (1536, 64, 40)):
            yield Case(kind, autocast, layers, directions, hidden, batch, time, 0)
        yield Case(kind, autocast, layers, directions, 512, 12, 160, 1)
    for kind in ("LSTM", "GRU", "RNN"):
        yield Case(kind, "float16", 2, 1, 512, 32, 100, 0)
        yield Case(kind, "", 2, 1, 100, 7, 33, 0)
        yield Case(kind, "", 4, 1, 1024, 128, 128, 0)


def blocks(case: Case) -> Mapping[str, Sequence[str]]:
    """By pass."""
    features = case.hidden
    options = {"num_layers": case.layers, "bidirectional": case.directions == 2, "dropout": 0.2 * case.dropout}
    network = getattr(torch.nn, case.kind)(features, case.hidden, device="cuda", **options)
    values = torch.randn(case.time, case.batch, features, device="cuda", requires_grad=True)
    lower = torch.autocast("cuda", getattr(torch, case.autocast)) if case.autocast else nullcontext()
    for attempt in range(2):  # the first one makes what is kept: the state of dropout
        begin_trace()
        with lower:
            result = tagged("#forward", lambda: network(values)[0])
        gradient = torch.ones_like(result)
        # Autograd's thread has a tag of its own, so everything untagged after the mark is the backward pass.
        torch.autograd.backward(_Tagging.apply(result), gradient)
        torch.cuda.synchronize()
        found = allocations(trace())
        if attempt:
            return {
                name: [f"{one.requested_bytes}{'*' if one.freed_after is not None else ''}" for one in asked]
                for name, asked in ((part, found.get(f"#{part}", ())) for part in ("forward", "backward"))
            }
    raise AssertionError("two attempts")


class _Tagging(torch.autograd.Function):  # type: ignore[misc]  # torch has no types where mypy runs
    """Passes its input through; when its gradient comes by, the backward pass of what made it begins."""

    @staticmethod
    def forward(_: Any, value: Any) -> Any:
        return value.view_as(value)

    @staticmethod
    def backward(_: Any, gradient: Any) -> Any:
        torch.cuda.memory._set_memory_metadata("#backward")
        return gradient


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what recurrent networks take on a GPU.")
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    with (args.target / "recurrent.csv").open("w", newline="") as table:
        rows = csv.writer(table)
        rows.writerow((*Case._fields, "forward", "backward"))
        for case in cases():
            found = blocks(case)
            rows.writerow((*case, " ".join(found["forward"]), " ".join(found["backward"])))


if __name__ == "__main__":
    main()
