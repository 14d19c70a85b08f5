"""Integration tests side by side: whole files are given to shards, the longest first.

A shard is a worker of pytest-xdist in namespaces of its own (``scripts/own_namespaces.sh``): its ports, processes,
rings and named networks are nobody else's. ``scripts/integration.sh`` starts them.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

HERE = Path(__file__).parent
FILE_SECONDS = HERE / "file_seconds.json"
"""How long each file takes, as ``scripts/durations.py --keep`` wrote it; a file that is not in it counts as short."""


TOGETHER = ("integration/allocator",)
"""Folders whose files share what is made once a session, and so go to one shard."""


def unit_of(file: str) -> str:
    """What a shard takes as a whole: a file below ``tests/``, or a folder of files that go together."""
    return next((folder for folder in TOGETHER if file.startswith(f"{folder}/")), file)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives out files, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid.split("::", 1)[0].removeprefix("tests/"))


def longest_file_first(items: list[pytest.Item]) -> None:
    """Order tests by how long their units take. Tests of a file stay together, in the order they have in it."""
    seconds: dict[str, int] = defaultdict(int)
    for file, took_s in json.loads(FILE_SECONDS.read_text()).items():
        seconds[unit_of(file)] += took_s

    def place(item: pytest.Item) -> tuple[int, str, str]:
        file = str(item.path.relative_to(HERE.parent))
        return -seconds[unit_of(file)], unit_of(file), file

    items.sort(key=place)
