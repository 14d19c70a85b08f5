"""Becomes another user and then an actor of these tests: ``as_user.py UID ACTOR [ARGUMENT]…``.

The interpreter may lie where that user cannot look, so all that an actor needs is imported before.
"""

from __future__ import annotations

import ctypes
import os
import sys

from integration.security import actors

PR_SET_DUMPABLE = 4


def main() -> None:
    uid, actor, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    act = actors.ACTORS[actor]
    libc = ctypes.CDLL(None, use_errno=True)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    # As any process of theirs: one that changed its uid would otherwise be root's below /proc.
    if libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    act(*arguments)


if __name__ == "__main__":
    main()
