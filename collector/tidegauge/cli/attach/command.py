"""``tidegauge attach`` starts or stops profiling of a running process (docs/attach.md)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.agent.processes.procfs import ProcFs
from tidegauge.cli.arguments import add_examples, add_json
from tidegauge.cli.attach.process import AttachTarget, NoTargetError, SeenProcess, socket_of, targets_of
from tidegauge.cli.errors import ENVIRONMENT, FINE, CommandError
from tidegauge.cli.output import print_json, print_table, print_wrapped, progress
from tidegauge.launch.remote_exec import FIRST_PYTHON, NotExecutedError, RemoteTarget, begin_probe
from tidegauge.probe.levels import AUTO, LEVELS, OFF, PROFILE_VARIABLE, WATCHING_LEVELS

HELP = "watch a process that is already running, or stop watching it (--detach)"

HEADER = ("pid", "rank", "user", "state", "level", "result")
WAIT_S = 30.0
ASK_TIMEOUT_S = 30.0
"""Timeout of a request, seconds: the probe answers in turn, and ``empty_cache`` may wait 10 s for a step."""
NEXT_TIME = (
    "To be able to attach next time, start the job with `tidegauge run --memory-profile=dormant -- CMD`, or with "
    "TIDEGAUGE_PROFILE=dormant if the job's environment has Tidegauge. Now: `py-spy dump --pid {pid}` shows its "
    "stacks, or restart it from a checkpoint with the probe."
)
FINDING_WORDS = {
    "off": f"the process itself set {PROFILE_VARIABLE}=off, which rules out a probe",
    "no_torch": "it has not imported PyTorch (yet)",
    "importing": "it is importing PyTorch: try again in a moment",
    "no_device": "its PyTorch has no device to watch",
    "many_hooks": "it has several optimizer hooks of its own, and adding another while it trains is unsafe",
    "watching": "the probe started, but its command socket was not found; see the stderr of the process",
    "dormant": "the probe is loaded but cannot record; see the stderr of the process",
}
"""The ``launch.remote_script.FINDINGS`` without profiling, with what to do."""


class AttachOutcome(NamedTuple):
    """The outcome for one process."""

    target: AttachTarget
    state: str
    """``watched``, ``dormant``, ``waiting`` (for the process to initialise CUDA) or ``refused``."""
    way: Optional[str]
    """``probe``: over an existing probe's socket; ``remote_exec``: by PEP 768."""
    level: Optional[str]
    said: str
    """A sentence for people."""

    @property
    def good(self) -> bool:
        return self.state != "refused"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="+", metavar="PID|JOB",
        help="pid of a rank or of a launcher (torchrun, `tidegauge run`: all its ranks), or a job id (its ranks on "
        "this host)",
    )  # fmt: skip
    parser.add_argument("--level", choices=WATCHING_LEVELS, default=AUTO, help=f"profiling level (default: {AUTO})")
    parser.add_argument("--detach", action="store_true", help="stop watching: the probe is detached")
    parser.add_argument("--job", action="store_true", help="treat numeric arguments as job ids, not pids")
    parser.add_argument(
        "--wait", type=_seconds, default=WAIT_S, metavar="S",
        help=f"how long to wait for a process to start its probe (default: {WAIT_S:g} s)",
    )  # fmt: skip
    add_json(parser)
    add_examples(
        parser,
        "tidegauge attach 12345                one rank, or all ranks of a launcher",
        "tidegauge attach 4711 --job           the ranks of job 4711 on this host",
        "tidegauge attach 12345 --detach       stop watching",
    )


def run(args: argparse.Namespace) -> int:
    try:
        found = [target for word in args.what for target in targets_of(word, os.environ, is_job=args.job)]
    except NoTargetError as error:
        raise CommandError(str(error)) from error
    targets = list({target.seen.process: target for target in found}.values())
    with progress("attach") as say:
        outcomes = [
            detach(target) if args.detach else attach(target, args.level, wait_s=args.wait, environ=os.environ, say=say)
            for target in targets
        ]
    if args.json:
        print_json({"processes": [_as_json(outcome) for outcome in outcomes]})
    else:
        _print(outcomes)
    return FINE if all(outcome.good for outcome in outcomes) else ENVIRONMENT


def _print(outcomes: Sequence[AttachOutcome]) -> None:
    """Print the outcome of each process, and below them each refusal once."""
    names = ProcFs()
    rows = []
    refusals: dict[str, list[int]] = {}
    for outcome in outcomes:
        seen = outcome.target.seen
        if not outcome.good:
            refusals.setdefault(outcome.said, []).append(seen.process.pid)
        rows.append(
            (
                str(seen.process.pid),
                "-" if seen.rank is None else str(seen.rank),
                names.user_name(seen.uid),
                outcome.state,
                outcome.level or "-",
                outcome.said if outcome.good else "see below",
            )
        )
    print_table(HEADER, rows, gives_way=("user", "level"))
    for said, pids in refusals.items():
        print_wrapped(f"pid {', '.join(map(str, pids))}: ", said)


def _as_json(outcome: AttachOutcome) -> dict[str, Any]:
    seen = outcome.target.seen
    return {
        "pid": seen.process.pid,
        "rank": seen.rank,
        "uid": seen.uid,
        "state": outcome.state,
        "way": outcome.way,
        "level": outcome.level,
        "said": outcome.said,
    }


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and at most 3600")
    return seconds


def attach(
    target: AttachTarget, level: str, *, wait_s: float, environ: Mapping[str, str], say: Callable[[str], None]
) -> AttachOutcome:
    """Start profiling the process at ``level``; ``say`` shows progress."""
    if target.socket is not None:
        return _ask(target, target.socket, level, way="probe")
    because = obstacle(target.seen)
    if because is not None:
        return _refused(target, because)
    return _remotely(target, level, wait_s=wait_s, environ=environ, say=say)


def detach(target: AttachTarget) -> AttachOutcome:
    """Stop profiling the process."""
    if target.socket is None:
        return _refused(target, "no probe to detach")
    return _ask(target, target.socket, None, way="probe")


def _ask(target: AttachTarget, socket: ProcessSocket, level: Optional[str], *, way: str) -> AttachOutcome:
    """Send the level to the probe; ``None`` detaches."""
    try:
        before = ask(socket, {"command": "ping"}, timeout_s=ASK_TIMEOUT_S)
        request = {"command": "detach"} if level is None else {"command": "attach", "level": level}
        after = ask(socket, request, timeout_s=ASK_TIMEOUT_S)
    except NotAskedError as error:
        return _refused(target, str(error))
    if after.get("ok") is not True:
        return _refused(target, f"the probe answered: {after.get('error', 'an unknown reply')}")
    now = str(after.get("level"))
    said = _change(before, after, now)
    note = after.get("note")
    state = "watched" if after.get("watching") is True else "dormant"
    return AttachOutcome(target, state, way, now, f"{said}; {note}" if isinstance(note, str) else said)


def _change(before: Mapping[str, Any], after: Mapping[str, Any], now: str) -> str:
    at = f"at step {after.get('step')}"
    watched, was = before.get("watching") is True, str(before.get("level"))
    if after.get("watching") is not True:
        return f"detached {at}; the probe is dormant" if watched else "was not watched; the probe is dormant"
    if not watched:
        return f"attached {at}"
    return "already watched" if was == now else f"level changed from {was} to {now}"


def obstacle(seen: SeenProcess) -> Optional[str]:
    """The reason why PEP 768 cannot be tried on a process without a probe's socket; ``None`` if it can."""
    if seen.environ is None or seen.mapped is None:
        return (
            "no probe socket found, and the kernel denies access to the process: run this as its own user"
            f"{' or as root' if os.geteuid() else ', or with CAP_SYS_PTRACE (which this root user lacks)'}"
        )
    pid = seen.process.pid
    given = seen.environ.get(PROFILE_VARIABLE, "").strip().lower()
    if given == OFF:
        return f"it was started with {PROFILE_VARIABLE}=off, which rules out a probe"
    if seen.python is None:
        return "it is not a Python process"
    if not seen.torch:
        return "it has not loaded PyTorch (yet)"
    if not seen.cuda_build:
        return "its PyTorch is a build without CUDA: no GPU memory to watch"
    if given in LEVELS and not seen.cuda_used:
        return (
            f"its probe ({PROFILE_VARIABLE}={given}) takes no commands until the process initialises CUDA: try again "
            "once it trains"
        )
    if given in LEVELS and seen.python < FIRST_PYTHON:
        return (
            f"it was started with {PROFILE_VARIABLE}={given}, but its probe does not answer. A fork of a rank has no "
            f"probe (attach to its parent: pid {seen.stat.parent_pid}), nor does a Python started with -S or -I "
            "without Tidegauge installed. If its run directory was unusable, its stderr says so"
        )
    if seen.python < FIRST_PYTHON:
        version, first = (".".join(map(str, one)) for one in (seen.python, FIRST_PYTHON))
        return (
            f"it runs without the Tidegauge probe, and Python {version} cannot be attached to from outside (PEP 768 "
            f"needs {first}). {NEXT_TIME.format(pid=pid)}"
        )
    if seen.elsewhere:
        return (
            "it runs in a container without the Tidegauge probe, which can only be started from inside that container: "
            f"run `tidegauge attach {seen.inner_pid}` there (kubectl exec, srun --overlap, docker exec)"
        )
    return None


def _remotely(
    target: AttachTarget, level: str, *, wait_s: float, environ: Mapping[str, str], say: Callable[[str], None]
) -> AttachOutcome:
    seen = target.seen
    assert seen.python is not None
    assert seen.environ is not None
    remote = RemoteTarget(seen.process, seen.uid, seen.gid, seen.groups, seen.python, seen.environ)
    waiting = f"waiting for pid {seen.process.pid} to start the probe; a rank inside a collective starts it afterwards"
    try:
        finding = begin_probe(remote, level, timeout_s=wait_s, asked=lambda: say(waiting))
    except NotExecutedError as error:
        return _refused(target, str(error))
    socket = socket_of(seen, environ) if finding in ("watching", "dormant") else None
    if socket is not None:
        return _ask(target, socket, level, way="remote_exec")
    if finding == "waiting":
        said = "probe loaded; watching starts when the process initialises CUDA"
        return AttachOutcome(target, "waiting", "remote_exec", level, said)
    word, _, problem = finding.partition(" ")
    return _refused(target, FINDING_WORDS.get(word, f"the probe failed to start: {problem or word}"))


def _refused(target: AttachTarget, because: str) -> AttachOutcome:
    return AttachOutcome(target, "refused", None, None, because)
