"""One container of a stand-in pod: the plan for it, made of values, and the process that carries it out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from kube_standins.api import Object
from kube_standins.pod_environ import UnsupportedError

INIT = Path(__file__).with_name("container_init.py")

# capabilities(7), as include/uapi/linux/capability.h counts them.
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
DEFAULT_CAPABILITIES = frozenset((
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "NET_BIND_SERVICE",
    "NET_RAW", "SYS_CHROOT", "MKNOD", "AUDIT_WRITE", "SETFCAP",
))  # fmt: skip
"""What containerd, CRI-O and Docker give."""


@dataclass(frozen=True)
class Mount:
    """``source`` is a path of this machine, ``target`` one of the container."""

    source: str
    target: str
    read_only: bool = False
    open_way: bool = False
    """Every user may pass through the folders above ``target``."""


@dataclass(frozen=True)
class User:
    """Whom a container runs as, and with what."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    capabilities: tuple[int, ...]
    no_new_privileges: bool


@dataclass(frozen=True)
class ContainerPlan:
    """What ``container_init.py`` makes. Paths are those of this machine, but for those of the command."""

    hostname: str
    scratch: str
    shm: str
    log: str
    cgroups: Sequence[str]
    mounts: Sequence[Mount]
    user: User
    read_only_root: bool
    working_dir: str
    environ: Mapping[str, str]
    command: Sequence[str]

    def json(self) -> str:
        fields = asdict(self)
        return json.dumps({**fields, **fields.pop("user")})


def user_of(container: Object, pod: Object, image_user: int = 0) -> User:
    """By the security contexts of the container and of its pod, and the image. Raises ``UnsupportedError`` for a
    capability that there is not, and for root where the pod says ``runAsNonRoot``."""
    own, common = container.get("securityContext") or {}, pod["spec"].get("securityContext") or {}
    both = {**common, **own}
    uid, gid = both.get("runAsUser", image_user), both.get("runAsGroup", 0)
    if uid == 0 and both.get("runAsNonRoot"):
        raise UnsupportedError(f"container {container['name']} has runAsNonRoot and would run as root")
    groups = {gid, *common.get("supplementalGroups", ()), *([common["fsGroup"]] if "fsGroup" in common else [])}
    asked = own.get("capabilities") or {}
    dropped, added = (frozenset(asked.get(word) or ()) for word in ("drop", "add"))
    unknown = (dropped | added) - {"ALL", *CAPABILITIES}
    if unknown:
        raise UnsupportedError(f"container {container['name']}: no such capability: {', '.join(sorted(unknown))}")
    kept = frozenset[str]() if "ALL" in dropped else DEFAULT_CAPABILITIES - dropped
    kept |= frozenset(CAPABILITIES) if "ALL" in added or own.get("privileged") else added
    numbers = tuple(number for number, name in enumerate(CAPABILITIES) if name in kept)
    return User(uid, gid, tuple(sorted(groups)), numbers, own.get("allowPrivilegeEscalation") is False)


@dataclass(frozen=True)
class Ended:
    """How a container's process ended, as a kubelet writes it."""

    exit_code: int
    reason: str
    message: str
    began: str
    finished: str


class ContainerProcess:
    """A container that was begun: by the thread that calls ``look`` and that outlives it, for the kernel ends it with
    the thread that began it (PR_SET_PDEATHSIG, prctl(2))."""

    def __init__(self, plan: ContainerPlan, plan_path: Path) -> None:
        plan_path.write_text(plan.json())
        self.began = now()
        self.pid: int | None = None
        """Of its first process, as the machine counts, once it runs."""
        self._failure: str | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", INIT, plan_path, str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.words: int = self._process.stdout.fileno()
        """Readable when ``look`` has something new to see."""

    def look(self) -> Ended | None:
        """To be called when ``words`` is readable: takes down that it runs, or how it ended."""
        line = os.read(self.words, 4096).decode(errors="replace")
        for said in line.splitlines():
            word, _, rest = said.partition(" ")
            if word == "started":
                self.pid = int(rest)
            else:
                self._failure = rest
        if line:
            return None
        code = self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        reason = "StartError" if self._failure is not None else "Completed" if code == 0 else "Error"
        return Ended(code, reason, self._failure or "", self.began, now())

    def signal(self, number: signal.Signals) -> None:
        """To the container's first process. SIGKILL ends all of it, also while it is being made."""
        try:
            if self.pid is not None:
                os.kill(self.pid, number)
            elif number is signal.SIGKILL:
                self._process.kill()
        except ProcessLookupError:
            pass


def now() -> str:
    """As the API writes times (metav1.Time)."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
