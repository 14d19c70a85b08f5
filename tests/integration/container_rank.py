"""A rank in a container, as far as its ring and its command socket go: ``container_rank.py JOB_ID``.

Both are made by the probe's own code; no torch. Says ``ready``, the path of its ring and its own pid, and lives until
its standard input ends. The standard library and ``tidegauge`` (``PYTHONPATH``) are all it needs.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time

from tidegauge.core.ids import GlobalRank, JobId, LocalRank, RankIdentity
from tidegauge.core.run_dirs import socket_name
from tidegauge.core.samples import RecordKind
from tidegauge.probe.process_facts import read_process_facts
from tidegauge.probe.run_files.command_socket import CommandSocket
from tidegauge.probe.run_files.own_user import allowed_peers
from tidegauge.probe.run_files.ring_writer import open_ring

MIB = 1 << 20


def main() -> None:
    process = read_process_facts().process
    folder, ring, refused = open_ring(os.environ, process, device_count=1)
    assert folder is not None, refused
    assert ring is not None, refused
    ring.publish(RankIdentity(JobId(sys.argv[1]), 0, GlobalRank(0), LocalRank(0), 1, socket.gethostname()))
    ring.reserve(0)
    allocated, reserved = 100 * MIB, 120 * MIB
    counts = (allocated, reserved, allocated, 0, allocated, *(allocated, reserved, allocated, 0, allocated), *[0] * 6)
    for step in range(1, 4):
        ring.append(0, counts, kind=RecordKind.STEP, steps=step, raw_steps=step)
    commands = CommandSocket(
        folder, socket_name(process), lambda _: {"ok": True, "pid": process.pid}, allowed_uids=allowed_peers()
    )
    print("ready", ring.path, process.pid, flush=True)
    while True:
        with selectors.DefaultSelector() as waiting:
            for descriptor in [0, *commands.descriptors()]:
                waiting.register(descriptor, selectors.EVENT_READ)
            ready = [key.fd for key, _ in waiting.select()]
        if 0 in ready:
            return
        for descriptor in ready:
            commands.serve(descriptor, now_s=time.monotonic())


if __name__ == "__main__":
    main()
