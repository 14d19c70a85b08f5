"""Who made the user namespace that a process is in: a user may have a range of uids there (``/etc/subuid``), and be as
many users of the host. See user_namespaces(7) and ioctl_ns(2)."""

from __future__ import annotations

import array
import fcntl
import os
from contextlib import ExitStack

_GET_PARENT = 0xB702
_GET_OWNER_UID = 0xB704
_MAX_DEPTH = 33
"""The kernel nests 32."""


def owner_of_user_namespace(pid: int, proc: str = "/proc") -> int | None:
    """Uid that made the outermost user namespace, below ours, that a process is in; ``None``: it is in ours, has ended,
    or cannot be looked into."""
    try:
        with ExitStack() as open_now:
            own = os.stat(f"{proc}/self/ns/user").st_ino
            fd = _kept(open_now, os.open(f"{proc}/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
            if os.fstat(fd).st_ino == own:
                return None
            for _ in range(_MAX_DEPTH):
                parent = _kept(open_now, fcntl.ioctl(fd, _GET_PARENT))
                if os.fstat(parent).st_ino == own:
                    owner = array.array("I", [0])
                    fcntl.ioctl(fd, _GET_OWNER_UID, owner)
                    return owner[0]
                fd = parent
    except OSError:
        pass
    return None


def _kept(open_now: ExitStack, fd: int) -> int:
    open_now.callback(os.close, fd)
    return fd
