"""Becomes a command under a system call filter of systemd's sets: ``seccomp_exec.py ALLOWED DENIED COMMAND …``.

As a unit with ``SystemCallFilter=ALLOWED``, ``SystemCallFilter=~DENIED`` and ``SystemCallErrorNumber=EPERM``: what the
sets hold is asked of systemd-analyze(1), the filter is built by libseccomp(3), as systemd's is.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import subprocess
import sys

SCMP_ACT_ALLOW = 0x7FFF0000
SCMP_ACT_ERRNO = 0x00050000
PR_SET_NO_NEW_PRIVS = 38
NO_SUCH_CALL = -1


@functools.cache
def calls_in(group: str) -> frozenset[str]:
    """The system calls of a set such as ``@system-service``, those of the sets in it included."""
    done = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    found: set[str] = set()
    for line in done.stdout.splitlines()[1:]:
        name = line.strip().partition(" ")[0]
        if name.startswith("@"):
            found |= calls_in(name)
        elif name and not name.startswith("#"):
            found.add(name)
    return frozenset(found)


def calls_of(words: str) -> frozenset[str]:
    """Of several names of sets and calls."""
    return frozenset().union(*(calls_in(word) if word.startswith("@") else {word} for word in words.split()))


def load(allowed: frozenset[str]) -> None:
    """For this process and all that come from it. All other calls fail with EPERM."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    filters = ctypes.c_void_p(library.seccomp_init(SCMP_ACT_ERRNO | errno.EPERM))
    for name in sorted(allowed):
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number <= NO_SUCH_CALL:
            continue  # of another architecture
        if library.seccomp_rule_add(filters, SCMP_ACT_ALLOW, number, 0) != 0:
            raise OSError(f"no rule for {name}")
    if library.seccomp_load(filters) != 0:
        raise OSError("the filter was not taken")


def main() -> None:
    allowed, denied, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    calls = calls_of(allowed) - calls_of(denied)
    load(calls | {"execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn"})  # systemd.exec(5): implied
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
