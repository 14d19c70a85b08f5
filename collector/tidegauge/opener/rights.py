"""Gives up all rights of root's but two, for good. See capabilities(7) and prctl(2)."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

CAP_DAC_OVERRIDE, CAP_SYS_PTRACE = 1, 19
KEPT = 1 << CAP_DAC_OVERRIDE | 1 << CAP_SYS_PTRACE
_VERSION_3 = 0x20080522
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
_MAX_CAPABILITY = 63


class MissingRightsError(Exception):
    """This process cannot do its work. The message is for people."""


def keep_two_rights() -> None:
    """Before any thread is started. Raises ``MissingRightsError``."""
    if os.geteuid() != 0:
        raise MissingRightsError("it is not root: ranks answer to root, and trust files of root's")
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(_MAX_CAPABILITY + 1):
        if not KEPT >> capability & 1:
            with suppress(
                OSError
            ):  # without CAP_SETPCAP; then no program that it might start gets more by no_new_privs
                _call(libc, "prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
    _call(libc, "prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _call(libc, "prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if rights_of("self") & KEPT != KEPT:
        raise MissingRightsError("it needs CAP_DAC_OVERRIDE and CAP_SYS_PTRACE")
    if rights_of("self") != KEPT:  # under the unit there are no others, and no call to give them up
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        _call(libc, "capset", header, (ctypes.c_uint32 * 6)(KEPT, KEPT, 0, 0, 0, 0))
    if rights_of("self") != KEPT:
        raise MissingRightsError("it could not give up its other rights")


def rights_of(pid: int | str) -> int:
    """Permitted, effective, inheritable and ambient capabilities of a process, all in one. Raises ``OSError``."""
    status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    held = 0
    for number in re.findall(r"^Cap(?:Inh|Prm|Eff|Amb):\s+([0-9a-f]+)$", status, re.MULTILINE):
        held |= int(number, 16)
    return held


def _call(libc: ctypes.CDLL, name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
