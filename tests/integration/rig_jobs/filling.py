"""A training loop that keeps a tensor of each step, in what has a bound or in what has none; trains until it is killed.

    python filling.py KIND ITEMS [--pace SECONDS]

KIND is ``cache`` (``lru_cache(maxsize=ITEMS)``), ``window`` (``deque(maxlen=ITEMS)``) or ``unbounded``, a deque without
``maxlen``: that loop ends its steps with the last item.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections import deque
from collections.abc import Callable

import torch

KEPT_FLOATS = 1 << 19
"""2 MiB."""


def kept(_: int) -> torch.Tensor:
    return torch.empty(KEPT_FLOATS, device="cuda")


def keeping(kind: str, items: int) -> Callable[[int], object]:
    if kind == "cache":
        return functools.lru_cache(maxsize=items)(kept)
    window: deque[torch.Tensor] = deque(maxlen=items if kind == "window" else None)
    return lambda step: window.append(kept(step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["cache", "window", "unbounded"])
    parser.add_argument("items", type=int)
    parser.add_argument("--pace", type=float, default=0.15, metavar="SECONDS", help="between two steps")
    args = parser.parse_args()
    torch.backends.cudnn.enabled = False
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 8)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    features = keeping(args.kind, args.items)
    for step in range(args.items if args.kind == "unbounded" else 1 << 20):
        model(torch.zeros(32, 256, device="cuda")).sum().backward()
        features(step)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.pace)
    time.sleep(600.0)


if __name__ == "__main__":
    main()
