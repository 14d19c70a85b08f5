"""This process's uid outside its user namespace (user_namespaces(7)): for the node agent and other processes.

A container may call every user root: ``enroot --root`` does. Folders named for that uid would be one and
the same for all users of a node where they share /dev/shm.
"""

from __future__ import annotations

import os

_HIGHEST_UID = (1 << 32) - 1


def outer_uid(uid: int) -> int:
    """``uid`` as the user namespace around ours calls it; itself where there is none, or nothing is known."""
    return mapped(_read("/proc/self/uid_map"), uid)


def allowed_peers() -> frozenset[int]:
    """Uids that may send commands to this process, as SO_PEERCRED gives them here: its own user, and root.

    In a user namespace without a mapping for it, the node's root has the overflow uid. Others with that uid cannot
    enter the folder, which is its owner's alone.
    """
    allowed = {0, os.geteuid()}
    unnamed = _read("/proc/sys/kernel/overflowuid").strip()
    if in_user_namespace() and unnamed.isdigit():
        allowed.add(int(unnamed))
    return frozenset(allowed)


def in_user_namespace() -> bool:
    """Whether uids here may mean others outside: anything but the map of the first user namespace."""
    uid_map = _read("/proc/self/uid_map").split()
    return bool(uid_map) and uid_map != ["0", "0", str(_HIGHEST_UID)]


def mapped(uid_map: str, uid: int) -> int:
    """``outer_uid`` by lines of three numbers: first uid inside, first uid outside, how many."""
    for line in uid_map.splitlines():
        fields = line.split()
        if len(fields) == 3 and all(field.isdigit() for field in fields):
            inside, outside, count = map(int, fields)
            if inside <= uid < inside + count:
                return outside + uid - inside
    return uid


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read(65536)
    except (OSError, ValueError):
        return ""
