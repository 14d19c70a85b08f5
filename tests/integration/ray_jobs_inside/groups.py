"""A job with two groups of workers, each a training of its own with one Ray actor a rank: as Ray Train starts them.

``groups.py SCRIPT GROUPS``: GROUPS is a JSON list with a list of arguments for each group's two ranks.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ray


class Worker:
    def train(self, script: str, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        os.environ.update(environ)
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")


def free_port() -> int:
    """Below those that the kernel gives to connections: Ray and gloo take many before the group meets here."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def main() -> None:
    script, groups = sys.argv[1], json.loads(sys.argv[2])
    ray.init()
    actor: Any = ray.remote(num_cpus=0)(Worker)
    running = []
    for arguments in groups:
        meets = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        for rank in "01":
            # Ray hides the GPUs of an actor that asks for none.
            place = {"RANK": rank, "LOCAL_RANK": rank, "CUDA_VISIBLE_DEVICES": "0,1"}
            running.append(actor.remote().train.remote(script, arguments, {**meets, **place}))
    ray.get(running)


main()
