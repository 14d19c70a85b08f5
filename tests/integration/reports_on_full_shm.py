"""On a node whose /dev/shm is full, one actor sends another what reports of a busy node are like; see the test."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import ray

from integration.small_disks import fill

SIZES_BYTES = (1_000, 90_000, 400_000, 4_000_000)


class Coordinator:
    def report(self, summary: bytes) -> int:
        return len(summary)


class Agent:
    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def send(self, size_bytes: int) -> int:
        return int(ray.get(self._coordinator.report.remote(os.urandom(size_bytes)), timeout=30.0))

    def pid(self) -> int:
        return os.getpid()


def _actor(of: type, *arguments: Any) -> Any:
    return ray.remote(of).options(num_cpus=0).remote(*arguments)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tg-", dir="/tmp") as folder:
        ray.init(
            include_dashboard=False, num_cpus=1, object_store_memory=80_000_000, log_to_driver=False,
            _temp_dir=folder, _node_ip_address="127.0.0.1",
        )  # fmt: skip
        try:
            coordinator = _actor(Coordinator)
            assert ray.get(coordinator.report.remote(b""), timeout=120.0) == 0  # both live before the room is gone
            agent = _actor(Agent, coordinator)
            before = ray.get(agent.pid.remote(), timeout=120.0)
            fill(Path("/dev/shm"))
            arrived = [ray.get(agent.send.remote(size), timeout=60.0) for size in SIZES_BYTES]
            same = ray.get(agent.pid.remote(), timeout=60.0) == before
            json.dump({"arrived": arrived, "same_agent": same}, sys.stdout)
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
