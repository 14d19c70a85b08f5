"""A job whose ranks are Ray actors, as in Ray Train: two of them, each noting its environment in the given folder."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray


class Rank:
    def note(self, folder: str) -> None:
        uploaded = Path("beside.txt").read_text()  # in the working directory, which came from the owner's machine
        part = Path(folder) / f"{os.getpid()}.part"
        part.write_text(json.dumps({**os.environ, "UPLOADED": uploaded}))
        part.rename(Path(folder) / f"{os.getpid()}.json")


ray.init()
actor: Any = ray.remote(num_cpus=0)(Rank)
ranks = [actor.remote() for _ in range(2)]
ray.get([rank.note.remote(sys.argv[1]) for rank in ranks])
while True:
    time.sleep(1)
