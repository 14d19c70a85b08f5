"""Runs a real node agent that polls when it is told to: a line on stdin is a poll, a line on stdout the view as JSON.

For tests that need the agent in a process of its own, because the NVML of the fake-GPU rig comes by LD_LIBRARY_PATH.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from enum import Enum
from typing import Any

from tidegauge.agent.node_agent import open_node_agent

try:
    from tidegauge.settings import Settings
except ModuleNotFoundError:  # the agent of an earlier release (test_upgrade_mixed.py)
    from tidegauge.agent.settings import Settings  # type: ignore[import-not-found,no-redef]


def plain(value: Any) -> Any:
    """Dataclasses and named tuples as objects by field name."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def main() -> None:
    agent = open_node_agent(Settings(linger_s=0))
    for _ in sys.stdin:
        agent.poll()
        print(json.dumps(plain(agent.view())), flush=True)
    agent.close()


if __name__ == "__main__":
    main()
