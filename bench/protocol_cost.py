"""What the messages between nodes cost, beside pickles of the same values in the same run.

    PYTHONPATH=collector:bench .venv/bin/python bench/protocol_cost.py [--nodes 1250]

For one node, the agent's report and the reply to it; for the coordinator, a report of every node read and its reply
written. Processor time, the best of several runs; the fleet is that of ``fleet.summaries``, eight ranks to a node.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any

from fleet.summaries import Fleet

from tidegauge.core.views import NodeSummary
from tidegauge.protocol.coding import decode, encode
from tidegauge.protocol.messages import ReportReply

BEGAN_S = 1.8e9
ADVANCE_S = 60
RUNS = 5


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=5)


def cpu_us(work: Callable[[Any], object], values: Sequence[Any]) -> float:
    """For one of ``values``, in microseconds."""
    took = []
    for _ in range(RUNS):
        began_s = time.process_time()
        for value in values:
            work(value)
        took.append(time.process_time() - began_s)
    return 1e6 * min(took) / len(values)


def line(what: str, form: type, values: Sequence[Any], *, reads: bool, writes: bool) -> float:
    """Print and return the ratio of our processor time to pickle's."""
    ours, theirs = [encode(value) for value in values], [_pickled(value) for value in values]
    own_us = pickle_us = 0.0
    if writes:
        own_us, pickle_us = own_us + cpu_us(encode, values), pickle_us + cpu_us(_pickled, values)
    if reads:
        own_us += cpu_us(lambda data: decode(form, data), ours)
        pickle_us += cpu_us(pickle.loads, theirs)
    sizes = sum(map(len, ours)) / len(ours), sum(map(len, theirs)) / len(theirs)
    print(
        f"{what:34} {own_us:7.0f} us, pickle {pickle_us:6.0f} us: {own_us / pickle_us:4.1f} times;"
        f" {sizes[0]:6.0f} bytes, pickle {sizes[1]:6.0f}: {sizes[0] / sizes[1]:.2f}"
    )
    return own_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1250)
    nodes = parser.parse_args().nodes
    fleet = Fleet(nodes, ranks_per_node=8, incidents_per_minute=50 * nodes / 1250, now_s=BEGAN_S)
    for second in range(ADVANCE_S):
        fleet.advance(BEGAN_S + second)
    reports = [fleet.summary(node, BEGAN_S + ADVANCE_S) for node in fleet.nodes]
    replies = [ReportReply(accepted=True, coordinator="c1", snapshots_wanted=frozenset(), report_every_s=7.8)] * nodes
    gc.disable()
    line("one report, written and read", NodeSummary, reports[:8], reads=True, writes=True)
    line("one reply, written and read", ReportReply, replies[:8], reads=True, writes=True)
    read_us = line("coordinator: a report read", NodeSummary, reports, reads=True, writes=False)
    write_us = line("coordinator: a reply written", ReportReply, replies, reads=False, writes=True)
    print(f"coordinator, one report of each of {nodes} nodes: {nodes * (read_us + write_us) / 1e3:.0f} ms")


if __name__ == "__main__":
    main()
