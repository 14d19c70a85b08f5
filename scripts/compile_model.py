"""Compiles the allocator's model, once for each change of its sources, so that no test's time limit meets that."""

from __future__ import annotations

from array import array

from tidegauge.core.allocator.compiled import is_ready
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.trace import Trace

if not is_ready():
    print("compiling the allocator's model (half a minute, once) …", flush=True)
    one = Trace(
        action=array("B", [0]), address=array("Q", [1]), size_bytes=array("Q", [512]), stream=array("H", [0]),
        time_us=array("q"), pool=array("H"), stack=array("i"),
    )  # fmt: skip
    replay(one)
