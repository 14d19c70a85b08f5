"""Namespaces of processes as ``/proc/PID/ns`` tells them, see namespaces(7)."""

from __future__ import annotations

import array
import fcntl
import os
from contextlib import ExitStack

from tidegauge.agent.opening.safe_files import closing_fd, opened

# The user who made a process's user namespace: with a range of uids in it (``/etc/subuid``) one user can be many on the
# host. See user_namespaces(7) and ioctl_ns(2).

_GET_PARENT = 0xB702
_GET_OWNER_UID = 0xB704
_MAX_DEPTH = 33
"""The kernel nests 32."""


def owner_of_user_namespace(pid: int, proc: str = "/proc") -> int | None:
    """Uid that made a process's outermost user namespace below ours; ``None``: it is in ours, has ended, or cannot be
    looked into."""
    try:
        with ExitStack() as open_now:
            own = os.stat(f"{proc}/self/ns/user").st_ino
            fd = open_now.enter_context(opened(f"{proc}/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
            if os.fstat(fd).st_ino == own:
                return None
            for _ in range(_MAX_DEPTH):
                parent = open_now.enter_context(closing_fd(fcntl.ioctl(fd, _GET_PARENT)))
                if os.fstat(parent).st_ino == own:
                    owner = array.array("I", [0])
                    fcntl.ioctl(fd, _GET_OWNER_UID, owner)
                    return owner[0]
                fd = parent
    except OSError:
        pass
    return None
