"""Runs a command on a machine that stands still at times: its processes are stopped and continued at random.

    .venv/bin/python scripts/stand_still.py --seed 202 --longest-s 12 -- .venv/bin/python -m pytest tests/integration/…

What depends on how fast one of many processes gets on shows itself within minutes so, and on a busy machine once in a
hundred runs. The exit code is the command's. Nobody is stopped but the command and its descendants, orphans too.

SIGSTOP is not quite a machine that is busy elsewhere: parents may be told of it, and when a process group loses its
last tie to its session while one of it is stopped, the kernel sends all of it SIGHUP. A service that was "asked to
stop" by nobody was asked by that.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.kernel_calls import become_subreaper
from tidegauge.osproc.processes import descendants, send_signal, stat_of

LOOK_EVERY_S = 0.1
AT_ONCE = 3
"""Processes that stand still at the same time; with more the whole machine does, and nobody is ahead of anybody."""


class Weather:
    """Who stands still, and until when. ``chance`` draws it; ``told`` takes a line for each stop."""

    def __init__(self, chance: random.Random, *, per_s: float, longest_s: float, told: TextIO) -> None:
        self._chance = chance
        self._per_look = per_s * LOOK_EVERY_S
        self._longest_s = longest_s
        self._told = told
        self._until_s: dict[ProcessId, float] = {}

    def pass_over(self, now_s: float) -> None:
        """Let go on whose time is over, and perhaps stop another one."""
        for process in [process for process, until_s in self._until_s.items() if until_s <= now_s]:
            self._let_go(process)
        if len(self._until_s) < AT_ONCE and self._chance.random() < self._per_look:
            # Not who stands still already ("T"): stopped by us, or by a test that wants it so.
            running = [stat for stat in descendants(os.getpid()) if not stat.ended and stat.state != "T"]
            if running:
                self._stop(self._chance.choice(running), now_s)

    def clear(self) -> None:
        """Let everybody go on."""
        for process in [*self._until_s]:
            self._let_go(process)

    def _stop(self, stat: ProcStat, now_s: float) -> None:
        # Mostly about a second, as on a busy machine; one in five of any length.
        any_s = self._chance.uniform(0.0, self._longest_s)
        for_s = any_s if self._chance.random() < 0.2 else min(self._chance.expovariate(1.0), self._longest_s)
        if send_signal(stat.process, signal.SIGSTOP):
            self._until_s[stat.process] = now_s + for_s
            line = (time.strftime("%H:%M:%S"), f"{for_s:.1f} s", str(stat.process.pid), _command(stat.process.pid))
            print("\t".join(line), file=self._told, flush=True)

    def _let_go(self, process: ProcessId) -> None:
        del self._until_s[process]
        stat = stat_of(process.pid)
        parent = None if stat is None else stat_of(stat.parent_pid)
        send_signal(process, signal.SIGCONT)
        # nsenter(1) stops itself with its child, and relies on somebody who continues both, as a shell does.
        if parent is None or parent.process in self._until_s:
            return
        if (parent.name, parent.state) == ("nsenter", "T"):
            send_signal(parent.process, signal.SIGCONT)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--seed", type=int, default=0, help="of the chance (default 0); who runs when is not ours to say"
    )
    parser.add_argument("--per-s", type=float, default=1.0, help="stops in a second (default 1)")
    parser.add_argument("--longest-s", type=float, default=8.0, help="the longest of them (default 8)")
    parser.add_argument("--told", type=Path, help="file for a line each (default: stderr)")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT):  # also where a shell that went on without us had them ignored
        signal.signal(number, lambda *_: sys.exit(130))
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(args.told.open("w")) if args.told else sys.stderr
        weather = Weather(random.Random(args.seed), per_s=args.per_s, longest_s=args.longest_s, told=told)
        command = subprocess.Popen(args.command)
        stack.callback(weather.clear)
        try:
            while command.poll() is None:
                weather.pass_over(time.monotonic())
                _reap_orphans(but=command.pid)
                time.sleep(LOOK_EVERY_S)
        except SystemExit:
            weather.clear()
            command.send_signal(signal.SIGINT)
            command.wait()
    for stat in descendants(os.getpid()):
        if not stat.ended:
            print(f"still there: {stat.process.pid}\t{_command(stat.process.pid)}", file=sys.stderr)
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


def _reap_orphans(*, but: int) -> None:
    """Those that ended; not the command itself, whose end ``Popen`` waits for."""
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    while ended is not None and ended.si_pid != but:
        os.waitpid(ended.si_pid, 0)
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _command(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    return " ".join(line.replace(b"\0", b" ").decode(errors="replace").split())[:160]


if __name__ == "__main__":
    sys.exit(main())
