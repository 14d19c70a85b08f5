"""Attaches to one process and detaches from it: by its probe's socket, else by PEP 768, else not, and why not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.cli.attach.process import SeenProcess, socket_of
from tidegauge.cli.attach.targets import AttachTarget
from tidegauge.launch.remote.run import FIRST_PYTHON, NotExecutedError, RemoteTarget, begin_probe
from tidegauge.probe.levels import LEVELS, OFF, PROFILE_VARIABLE

ASK_TIMEOUT_S = 30.0
"""The probe's one thread answers between other commands; ``empty_cache`` may wait 10 s for a step."""
NEXT_TIME = (
    "So that it works next time, start the job with `tidegauge run --memory-profile=dormant -- CMD`, or with "
    "TIDEGAUGE_PROFILE=dormant where the job's environment has Tidegauge. Now: `py-spy dump --pid {pid}` shows where "
    "it is without touching it, and a restart from a checkpoint can be watched."
)


class AttachOutcome(NamedTuple):
    """How it ended for one process."""

    target: AttachTarget
    state: str
    """``watched``, ``dormant``, ``waiting`` (for the process to initialise CUDA) or ``refused``."""
    way: Optional[str]
    """``probe``: it was there already. ``remote_exec``: PEP 768."""
    level: Optional[str]
    said: str
    """A sentence for people."""

    @property
    def good(self) -> bool:
        return self.state != "refused"


def attach(
    target: AttachTarget, level: str, *, wait_s: float, environ: Mapping[str, str], say: Callable[[str], None]
) -> AttachOutcome:
    """Have the process watched at ``level``. ``say`` shows what is waited for."""
    if target.socket is not None:
        return _ask(target, target.socket, level, way="probe")
    because = obstacle(target.seen)
    if because is not None:
        return _refused(target, because)
    return _remotely(target, level, wait_s=wait_s, environ=environ, say=say)


def detach(target: AttachTarget) -> AttachOutcome:
    """Have the process left alone again."""
    if target.socket is None:
        return _refused(target, "it has no probe to detach")
    return _ask(target, target.socket, None, way="probe")


def _ask(target: AttachTarget, socket: ProcessSocket, level: Optional[str], *, way: str) -> AttachOutcome:
    """``level`` ``None`` detaches."""
    try:
        before = ask(socket, {"command": "ping"}, timeout_s=ASK_TIMEOUT_S)
        request = {"command": "detach"} if level is None else {"command": "attach", "level": level}
        after = ask(socket, request, timeout_s=ASK_TIMEOUT_S)
    except NotAskedError as error:
        return _refused(target, str(error))
    if after.get("ok") is not True:
        return _refused(target, f"its probe answers: {after.get('error', 'nothing that is understood')}")
    now = str(after.get("level"))
    said = _change(before, after, now)
    note = after.get("note")
    state = "watched" if after.get("watching") is True else "dormant"
    return AttachOutcome(target, state, way, now, f"{said}; {note}" if isinstance(note, str) else said)


def _change(before: Mapping[str, Any], after: Mapping[str, Any], now: str) -> str:
    at = f"at step {after.get('step')}"
    watched, was = before.get("watching") is True, str(before.get("level"))
    if after.get("watching") is not True:
        return f"detached {at}; its probe sleeps" if watched else "was not watched; its probe sleeps"
    if not watched:
        return f"attached {at}"
    return "was watched already" if was == now else f"was watched at level {was} already; now at {now}"


def obstacle(seen: SeenProcess) -> Optional[str]:
    """Why a process without a probe's socket cannot be attached to, or ``None`` if PEP 768 can be tried."""
    if seen.environ is None or seen.mapped is None:
        return (
            "it has no probe's socket that can be found from here, and the kernel shows nothing more of it: that takes "
            f"its own user{', or root' if os.geteuid() else ' or CAP_SYS_PTRACE, which this root lacks'}"
        )
    pid = seen.process.pid
    given = seen.environ.get(PROFILE_VARIABLE, "").strip().lower()
    if given == OFF:
        return f"it was started with {PROFILE_VARIABLE}=off: whoever started it wants no probe in it"
    if seen.python is None:
        return "it is not a Python process"
    if not seen.torch:
        return "it has not loaded PyTorch, so there is no GPU memory of PyTorch's to watch (yet)"
    if not seen.cuda_build:
        return "its PyTorch is a build without CUDA: there is no GPU memory to watch"
    if given in LEVELS and not seen.cuda_used:
        return (
            f"its probe ({PROFILE_VARIABLE}={given}) waits for it to initialise CUDA, and takes no commands before: "
            "try again when it trains"
        )
    if given in LEVELS and seen.python < FIRST_PYTHON:
        return (
            f"it was started with {PROFILE_VARIABLE}={given}, but no probe of it answers. A fork of a rank has none "
            f"(attach to the rank: its parent is pid {seen.stat.parent_pid}), nor has a Python started with -S or -I "
            "that does not have Tidegauge installed; its own stderr says if its run directory could not be used"
        )
    if seen.python < FIRST_PYTHON:
        version, first = (".".join(map(str, one)) for one in (seen.python, FIRST_PYTHON))
        return (
            f"it runs without Tidegauge's probe, and Python {version} lets nothing in from outside (that begins with "
            f"{first}, PEP 768). {NEXT_TIME.format(pid=pid)}"
        )
    if seen.elsewhere:
        return (
            "it runs in a container and without Tidegauge's probe: only from inside that container can it be asked to "
            f"begin one. Run `tidegauge attach {seen.inner_pid}` there (kubectl exec, srun --overlap, docker exec)"
        )
    return None


def _remotely(
    target: AttachTarget, level: str, *, wait_s: float, environ: Mapping[str, str], say: Callable[[str], None]
) -> AttachOutcome:
    seen = target.seen
    assert seen.python is not None
    assert seen.environ is not None
    remote = RemoteTarget(seen.process, seen.uid, seen.gid, seen.groups, seen.python, seen.environ)
    waiting = (
        f"waiting for pid {seen.process.pid} to come to it; a rank inside a collective does not until that returns"
    )
    try:
        finding = begin_probe(remote, level, timeout_s=wait_s, asked=lambda: say(waiting))
    except NotExecutedError as error:
        return _refused(target, str(error))
    socket = socket_of(seen, environ) if finding in ("watching", "dormant") else None
    if socket is not None:
        return _ask(target, socket, level, way="remote_exec")
    if finding == "waiting":
        said = "the probe is in it now, and begins when it initialises CUDA"
        return AttachOutcome(target, "waiting", "remote_exec", level, said)
    word, _, problem = finding.partition(" ")
    return _refused(target, FINDING_WORDS.get(word, f"the probe could not begin in it: {problem or word}"))


FINDING_WORDS = {
    "off": f"it has set {PROFILE_VARIABLE}=off itself: no probe",
    "no_torch": "it has not imported PyTorch (yet)",
    "importing": "it is just importing PyTorch: try again in a moment",
    "no_device": "its PyTorch has no device whose memory could be watched",
    "many_hooks": "it has several optimizer hooks of its own, to which none can be added while it trains without risk",
    "watching": "the probe began, but its command socket is not where it is looked for; its stderr may say more",
    "dormant": "the probe is in it, but can record nothing; its stderr says why",
}
"""``launch.remote.script.FINDINGS`` with which nothing is watched, as a person can act on them."""


def _refused(target: AttachTarget, because: str) -> AttachOutcome:
    return AttachOutcome(target, "refused", None, None, because)
