"""A server of a model that answers requests of its own making: no optimizer, no steps. Stopped by SIGTERM.

    python serving.py --full FILE

When ``FILE`` is there, one request asks for more memory than there is: the server catches the error and serves on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

PACE_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", type=Path, required=True)
    full = parser.parse_args().full
    model = torch.nn.Linear(64, 64).cuda().eval()
    cache = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    was_full = False
    while True:
        with torch.inference_mode():
            model(torch.zeros(8, 64, device="cuda"))
        if full.exists() and not was_full:
            was_full = True
            try:
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                print(f"full, with a cache of {cache.numel()} bytes", flush=True)
        time.sleep(PACE_S)


if __name__ == "__main__":
    main()
