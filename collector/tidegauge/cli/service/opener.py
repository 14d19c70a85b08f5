"""What ``tidegauge status`` says of this node's opener: whether it runs and answers, and what it has refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.opening.remote import ANSWER_S, OpenerAwayError, OpenerConnection
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.opening.wire import Kind, OpenerRequest, OpenerStatus, WireError, decode_status
from tidegauge.cluster.views import SILENT_OPENER
from tidegauge.core.text import one_line
from tidegauge.core.units import format_count, format_duration

NEXT = "see `systemctl status tidegauge-opener`, on Kubernetes the log of the agent's container `opener`"


class OpenerLook(NamedTuple):
    """One look at the opener behind ``socket``; figures as of ``OpenerStatus``, ``None`` where it told none."""

    socket: str
    answers: bool | None
    """As ``NodeSummary.opener_answers``; ``None``: not known."""
    problem: str | None = None
    """What is wrong, and what to do."""
    runs_for_s: float | None = None
    refused_connections: int | None = None
    refused_requests: int | None = None
    longest_act_s: float | None = None


def look_at_opener(path: Path, uid: int, run_dirs: Collection[str]) -> OpenerLook:
    """Ask the opener of an agent of user ``uid`` that watches ``run_dirs``; takes ``ANSWER_S`` where it does not
    answer. Raises nothing."""
    try:
        with closing(OpenerConnection(path, is_awake=lambda: False)) as connection:
            reply, _ = connection.ask(OpenerRequest(Kind.STATUS))
        status = decode_status(reply.tail)
        problem = _is_anothers(status, uid, run_dirs)
        return OpenerLook(
            str(path), problem is None, problem, status.runs_for_s, status.refused_connections, status.refused_requests,
            status.longest_act_s,
        )  # fmt: skip
    except OpenerAwayError as error:
        return _without_answer(path, error, uid)
    except (OSError, UnsafeFileError, WireError) as error:
        return OpenerLook(str(path), True, f"the opener is of another version ({error}): restart it")


def _is_anothers(status: OpenerStatus, uid: int, run_dirs: Collection[str]) -> str | None:
    """Why an opener that answers is of no use to this agent, and what to do."""
    if status.uid != uid:
        return f"{SILENT_OPENER} (it serves uid {status.uid} alone, the agent's is {uid}); start it with --user {uid}"
    lacking = [path for path in run_dirs if path not in status.run_dirs]
    if lacking:
        served, wanted = " and ".join(status.run_dirs), " ".join(f"--run-dir {path}" for path in lacking)
        return f"{SILENT_OPENER} (it opens files in {served}, not in {' and '.join(lacking)}); start it with {wanted}"
    return None


def _without_answer(path: Path, error: OpenerAwayError, uid: int) -> OpenerLook:
    cause = error.__cause__
    if isinstance(cause, PermissionError) and cause.errno == errno.EACCES:
        if os.geteuid() == uid:
            why = f"the agent's user may not connect to {path}: it serves another one"
            return OpenerLook(str(path), False, f"{SILENT_OPENER} ({why}); start it with --user {uid}")
        why = f"the opener cannot be asked by this user: {path}: {cause.strerror}"
        return OpenerLook(str(path), None, f"{why}; run this as root or as the service's user")
    if cause is None or isinstance(cause, (BrokenPipeError, ConnectionResetError)):
        why = "the opener hangs up: it is of an older version, or all its places are taken, as its log says"
        return OpenerLook(str(path), None, f"{why}; {NEXT}")
    if isinstance(cause, (TimeoutError, BlockingIOError)):
        why = f"no answer at {path} within {ANSWER_S:.0f} s: it is stopped, or hangs"
    elif isinstance(cause, (FileNotFoundError, ConnectionRefusedError)):
        why = f"nobody listens at {path}: it does not run"
    else:
        why = f"{path}: {one_line(str(cause))}"
    return OpenerLook(str(path), False, f"{SILENT_OPENER} ({why}); {NEXT}")


def in_words(look: OpenerLook) -> Sequence[str]:
    """What there is to say of it, a line each."""
    lines = []
    if look.runs_for_s is not None:
        counts = (look.refused_connections or 0, "connection"), (look.refused_requests or 0, "request")
        refused = " and ".join(format_count(number, what) for number, what in counts if number)
        lines.append(f"answers, runs for {format_duration(look.runs_for_s)}, has refused {refused or 'nothing'}")
    if look.longest_act_s is not None and look.longest_act_s > ANSWER_S:
        lines.append(
            f"one request hangs for {format_duration(look.longest_act_s)}, over a process or a disk; others do not wait"
        )
    return [*lines, *([look.problem] if look.problem else [])]
