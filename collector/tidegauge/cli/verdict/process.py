"""The process that judges a job beside ``tidegauge run``, and the way to start it and to ask for its verdict.

It is nobody's child and in a session of its own, so the keeper's family is the job alone and Ctrl-C reaches the job
alone. It ends with ``tidegauge run``, however that ends: then its standard input is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import queue
import select
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tidegauge.agent.run_dirs.presence import LOOK_EVERY_S, is_watched
from tidegauge.cli.errors import CommandError
from tidegauge.core.ids import JobKey
from tidegauge.core.run_dirs import DEFAULT_RUN_DIRS
from tidegauge.launch.keeper import say
from tidegauge.probe.levels import PROFILE_VARIABLE

if TYPE_CHECKING:
    from tidegauge.cli.verdict.judge import Judge

BEGIN_AFTER_S = 1.5
"""A command that is over by then gets no verdict, and its end waits for nothing."""
TURN_S = 0.5
END_WITHIN_S = 30.0
"""From the end of the command to the last line of the verdict."""
LIVE_EVERY_S = 10.0
FIGURES_EVERY_S = 10.0
"""Of a job that a service judges: ranks are found while they live, and read again when they have ended."""
NICE = 10
SERVER = "tidegauge.cli.verdict.process"
"""This module, which is the process."""
NO_NVML = "no OOM forecast and no memory outside PyTorch: they need nvidia-ml-py (pip install 'tidegauge[agent]')"
_ENDED = b"ended\n"


def run_dirs(environ: Mapping[str, str]) -> list[Path]:
    """The run directories in which the job's ranks leave their files."""
    chosen = environ.get("TIDEGAUGE_RUN_DIR")
    return [Path(chosen).resolve()] if chosen else [Path(name) for name in DEFAULT_RUN_DIRS]


class VerdictProcess:
    """The judging process, as ``tidegauge run`` sees it. Its failures cost the verdict, nothing else."""

    def __init__(self, control: int, done: int) -> None:
        self._control = control
        self._done = done
        self._began_s = time.monotonic()

    def end(self) -> None:
        """The command has ended: let the verdict be printed, and wait for that. Ctrl-C ends the waiting."""
        with contextlib.suppress(OSError, KeyboardInterrupt):
            if time.monotonic() - self._began_s >= BEGIN_AFTER_S:
                os.write(self._control, _ENDED)
                if not select.select([self._done], [], [], END_WITHIN_S)[0]:
                    say(f"no verdict within {END_WITHIN_S:.0f} s")
        self.close()

    def close(self) -> None:
        """Let the process end without a verdict, if it still runs."""
        for descriptor in (self._control, self._done):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def start_verdict(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    report: Path | None = None,
    live: bool = False,
    figures: bool = False,
) -> VerdictProcess:
    """Start to judge the job that ``environ`` is for; with ``figures`` only tell what it used. Raises ``OSError``."""
    arguments = [sys.executable, "-m", SERVER, environ["TIDEGAUGE_JOB_ID"]]
    arguments += ["--job-name", environ.get("TIDEGAUGE_JOB_NAME", ""), "--command", shlex.join(command)]
    arguments += ["--report", str(report)] * (report is not None) + ["--live"] * live + ["--figures"] * figures
    theirs_in, control = os.pipe()
    done, theirs_out = os.pipe()
    try:
        # The training environment's packages are none of its business, and it is not to be watched itself.
        _start_detached(arguments, {**os.environ, PROFILE_VARIABLE: "off"}, theirs_in, theirs_out)
    except OSError:
        os.close(control)
        os.close(done)
        raise
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    return VerdictProcess(control, done)


def _start_detached(command: Sequence[str], environ: Mapping[str, str], standard_in: int, standard_out: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.dup2(standard_in, 0)
                os.dup2(standard_out, 1)
                os.execve(command[0], list(command), dict(environ))
        finally:
            os._exit(0)
    os.waitpid(child, 0)


class _Leaving:
    """Ends this process at once, and leaves nothing behind."""

    def __init__(self) -> None:
        self.judge: Judge | None = None

    def now(self) -> NoReturn:
        if self.judge is not None:
            self.judge.discard()
        os._exit(0)


class _Command:
    """The end of the command, as standard input tells it. Where that is closed before, this process ends at once."""

    def __init__(self, leaving: _Leaving) -> None:
        self._leaving = leaving
        self._ended = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def has_ended(self, *, within_s: float | None) -> bool:
        return self._ended.wait(within_s)

    def _listen(self) -> None:
        if os.read(0, len(_ENDED)):
            self._ended.set()
            os.read(0, 1)
        self._leaving.now()


class _Live:
    """Prints what is new about the ranks while the job runs, and their figures now and then."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._figures_s = time.monotonic()

    def show(self, judge: Judge) -> None:
        from tidegauge.cli.verdict.answer import live_lines

        news = live_lines(judge)
        is_due = time.monotonic() - self._figures_s >= LIVE_EVERY_S
        fresh = [line.text for line in news if is_due or self._said.get(line.about) != line.state]
        self._said = {line.about: line.state for line in news}
        if is_due:
            self._figures_s = time.monotonic()
        if fresh:
            say("\n".join(fresh))


def _serve(process: str) -> NoReturn:
    """Answer the requests of ``watch`` on standard input, a JSON object a line, until it is closed."""
    from tidegauge.cli.verdict.answer import answer_of, as_json
    from tidegauge.cli.verdict.judge import Judge

    requests: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    leaving = _Leaving()

    def listen() -> None:
        with open(0, "rb", closefd=False) as lines:
            for line in lines:
                requests.put(json.loads(line))
        leaving.now()

    judge = Judge(lambda found, _: f"{found.pid}-{found.start_ticks}" == process, run_dirs=run_dirs(os.environ))
    leaving.judge = judge
    threading.Thread(target=listen, daemon=True).start()
    judge.start()
    while True:
        try:
            request = requests.get(timeout=TURN_S)
        except queue.Empty:
            judge.look()
            continue
        ends = request.get("do") == "end"
        try:
            if ends:
                judge.end()
            answer = as_json(answer_of(judge), with_page=ends)
        except Exception as error:
            answer = {"problem": f"no verdict: internal error ({type(error).__name__}: {error})"}
        if ends:
            judge.close()
        with open(1, "wb", closefd=False) as out:
            out.write(json.dumps(answer).encode() + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("job_id", help="with --serve, a process: PID-STARTTIME")
    parser.add_argument("--job-name", default="")
    parser.add_argument("--command", default="")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--figures", action="store_true", help="a service judges the job: tell what it used")
    args = parser.parse_args(argv)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    logging.disable(logging.CRITICAL)  # an agent's log is for admins, and this standard error is the command's
    if args.serve:
        _serve(args.job_id)
    leaving = _Leaving()
    command = _Command(leaving)
    if command.has_ended(within_s=BEGIN_AFTER_S):
        return 0
    try:
        lines = _judge(args, command, leaving)
        if lines:
            say("\n".join(lines))
    except Exception as error:
        command.has_ended(within_s=None)
        say(f"no verdict: internal error ({type(error).__name__}: {error})")
    return 0


def _figures(judge: Judge, command: _Command, *, job_id: str, began_s: float) -> list[str]:
    """Look now and then until the command has ended; lines on what it used."""
    from tidegauge.cli.verdict.answer import figure_lines

    judge.read()
    wait_s = TURN_S
    while not command.has_ended(within_s=wait_s):
        judge.read()
        wait_s = min(2.0 * wait_s, FIGURES_EVERY_S)
    return figure_lines(judge.read(), job_id=job_id, ran_s=time.monotonic() - began_s, page=_page)


def _page(job: JobKey) -> str | None:
    """The address of the job's web page, if the settings here have it."""
    from tidegauge.cli.config import load_settings
    from tidegauge_exporter.links import Links

    try:
        settings = load_settings(argparse.Namespace(config=None, assignments=[]))
    except CommandError:
        return None  # a base install, or settings that are not for this user
    return Links(service_url=settings.pages_url).job_page(job)


def _judge(args: argparse.Namespace, command: _Command, leaving: _Leaving) -> list[str]:
    """Judge until the command has ended; the lines to print then."""
    from tidegauge.cli.verdict import answer as words
    from tidegauge.cli.verdict.judge import Judge, ranks_of

    folders, began_s = run_dirs(os.environ), time.monotonic()
    judge = Judge(ranks_of(args.job_id), run_dirs=folders, asks_for_profiles=True)
    live = _Live() if args.live else None
    leaving.judge = judge
    try:
        if args.figures:
            return _figures(judge, command, job_id=args.job_id, began_s=began_s)
        judge.start()
        look_s = time.monotonic() + LOOK_EVERY_S
        while not command.has_ended(within_s=TURN_S):
            judge.look()
            if live is not None:
                live.show(judge)
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_EVERY_S
                if is_watched(folders):
                    say("a service watches this job now; see `tidegauge jobs`")
                    judge.pause()
                    return _figures(judge, command, job_id=args.job_id, began_s=began_s)
        judge.end()
        answer = words.answer_of(judge)
    finally:
        judge.close()
    lines = words.answer_lines(answer)
    if answer.growing and not judge.has_nvml:
        lines.append(NO_NVML)
    elif not answer.growing:
        lines += words.profile_lines(judge.profiles(), answer.ranks)
        lines += words.size_lines(answer.ranks, ran_s=time.monotonic() - began_s)
    report = args.report or words.default_report(answer, args.job_id)
    if report is not None and answer.ranks:
        lines.append(words.try_report(answer, report, job_name=args.job_name or args.job_id, command=args.command))
    return lines


if __name__ == "__main__":
    os._exit(main())  # without waiting for threads that ask ranks: `tidegauge run` waits for the end of this process
