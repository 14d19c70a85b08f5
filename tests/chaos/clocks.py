"""A node whose service has a wrong wall clock, which can be set while it runs.

The clock of the machine is left alone: a module that Python imports at its start puts another ``time.time`` before the
service's processes (``wrong_clock/sitecustomize.py``). Ray's C++ keeps the true clock, because it sleeps by it: a
sleep until a time of day ends when a real clock is set, and would not end here (libfaketime, which tries, breaks the
sleeps of Python 3.11). Training keeps the true clock too, so that a rank and the service differ by just as much.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from chaos.disks import WHOLE_WITHIN_S
from chaos.nodes import Node
from chaos.site import ChaosSite

HOUR_S = 3600
CLOSE_S, SET_WITHIN_S = 10.0, 20.0
OFFSET_FILE = "clock-offset"
OFFSET_VARIABLE = "CHAOS_CLOCK_OFFSET_FILE"
WRONG_CLOCK = Path(__file__).with_name("wrong_clock")


def give_settable_clock(site: ChaosSite, node: Node) -> None:
    """Start the node's service anew with a clock that ``set_clock`` sets; it stays so. True until then."""
    if OFFSET_VARIABLE in node.environ:
        return
    set_clock(node, 0)
    node.down()
    node.environ[OFFSET_VARIABLE] = str(_offset_file(node))
    node.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WRONG_CLOCK), node.environ.get("PYTHONPATH")]))
    node.up()
    site.wait_full_service(WHOLE_WITHIN_S)


def set_clock(node: Node, offset_s: int) -> None:
    """From now on the node's service sees the time ``offset_s`` from now."""
    path = _offset_file(node)
    fresh = path.with_suffix(".new")
    fresh.write_text(f"{offset_s}\n")
    fresh.replace(path)


def check_clock(site: ChaosSite, node: Node, offset_s: int) -> None:
    """Wait until it is so: a test of a clock that was never wrong would prove nothing. Raises ``AssertionError``."""
    site.eventually(
        lambda: abs(_clock_says(site, node) - time.time() - offset_s) < CLOSE_S,
        f"the clock of {node.name} is {offset_s:+d} s off", within_s=SET_WITHIN_S,
    )  # fmt: skip


def _clock_says(site: ChaosSite, node: Node) -> float:
    """Unix seconds by the coordinator, or by the Python of the node's service: an agent does not tell its own."""
    if node.is_head:
        return float(site.api("/api/v1/status")["now_unix_s"])
    done = node.run_in([sys.executable, "-c", "import time; print(time.time())"], env=node.environ)
    return float(done.stdout)


def _offset_file(node: Node) -> Path:
    return node.folder / OFFSET_FILE
