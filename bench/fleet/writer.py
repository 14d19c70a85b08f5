"""The ranks of one node, written by a process of their own, so that they cost the measured one nothing.

    PYTHONPATH=bench python -m fleet.writer --run-dir DIR [--ranks 8] [--steps-per-s 2] [--churn-s 60] …

Says what it began in one line of JSON, then writes until its standard input ends, and cleans up its processes. The
rings stay.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.ranks import SimulatedNode
from fleet.series import choose
from tidegauge.core.ring_layout import DEFAULT_CAPACITY

BENCH = Path(__file__).resolve().parents[1]
FIRST_UID = 40_000
"""Of simulated users; nobody has a login of that number."""
RANKS_PER_USER = 256
READY_S = 300.0


def uids_for(ranks: int) -> list[int]:
    """Enough users for so many ranks: an agent does not watch thousands of one user. Only root can be another user."""
    if os.geteuid() != 0:
        return [os.geteuid()]
    return [FIRST_UID + user for user in range(-(-ranks // RANKS_PER_USER))]


@contextmanager
def ranks_written(run_dir: Path, *, ranks: int, steps_per_s: float, **options: object) -> Iterator[int]:
    """Such a writer for the length of a ``with``; ``options`` as on its command line. The value is its pid."""
    given = {"run_dir": run_dir, "ranks": ranks, "steps_per_s": steps_per_s, **options}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])}
    writer = subprocess.Popen(
        [sys.executable, "-m", "fleet.writer", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        readable, _, _ = select.select([writer.stdout], [], [], READY_S)
        begun = json.loads(writer.stdout.readline() or "{}") if readable else {}
        if begun.get("ranks") != ranks:
            raise RuntimeError(f"the writer of {ranks} ranks did not begin: it said {begun}")
        yield writer.pid
    finally:
        writer.stdin.close()
        writer.stdout.close()
        try:
            writer.wait(60)
        except subprocess.TimeoutExpired:
            writer.kill()
            writer.wait()


def main() -> None:
    args = _arguments()
    args.run_dir.mkdir(exist_ok=True)
    node = SimulatedNode(
        args.run_dir,
        steps_per_s=args.steps_per_s,
        uids=uids_for(args.ranks),
        churn_s=args.churn_s,
        capacity=args.capacity,
        seed=args.seed,
    )
    try:
        played = choose(args.ranks, leak_share=args.leak_share, seed=args.seed)
        for first in range(0, args.ranks, args.ranks_per_job):
            node.begin(played[first : first + args.ranks_per_job])
        print(json.dumps({"ranks": args.ranks, "leaks": sum(one.leak for one in played)}), flush=True)
        due_s = time.monotonic()
        while not select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
            due_s = node.write_due()
    finally:
        node.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--ranks-per-job", type=int, default=8)
    parser.add_argument("--steps-per-s", type=float, default=2.0)
    parser.add_argument("--churn-s", type=float, help="jobs live for so long on average; without it for ever")
    parser.add_argument("--leak-share", type=float, default=0.05)
    parser.add_argument("--capacity", type=int, default=DEFAULT_CAPACITY, help="records of a ring")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
