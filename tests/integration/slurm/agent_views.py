"""Runs a real node agent until it is ended: ``agent_views.py FILE``, which always holds its last view as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from integration.agent_console import plain
from tidegauge.agent.node_agent import open_node_agent
from tidegauge.settings import Settings


def main() -> None:
    file = Path(sys.argv[1])
    draft = file.with_suffix(".new")
    agent = open_node_agent(Settings(linger_s=0))
    while True:
        agent.poll()
        draft.write_text(json.dumps(plain(agent.view())))
        draft.replace(file)
        time.sleep(0.1)  # between two polls; nothing is decided by it


if __name__ == "__main__":
    main()
