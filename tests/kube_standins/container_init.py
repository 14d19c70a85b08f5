"""Runs one container of a stand-in pod: ``python -I -S container_init.py PLAN PARENT``. Standard library alone.

Needs root. PLAN is a JSON file with the fields of ``containers.ContainerPlan``. The container's first process is the
first of a pid namespace of its own, in mount, UTS and IPC namespaces of its own; above this machine's root lies a layer
in memory, which the container writes to. Says ``started PID`` once the command runs, or ``failed WHY``; ends with the
command's exit code, or 128 + the signal that ended it. Ends with its parent, whose pid is PARENT, however that ends,
and takes the container along.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

# unshare(2), mount(2), umount2(2), prctl(2)
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x4000000, 0x8000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 23, 24, 38

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
"""Major and minor numbers (Linux allocated devices)."""
OUTSIDE = "/.outside"
"""Where the machine's root is while the container is being made."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> int:
    encoded = [os.fsencode(each) if isinstance(each, str) else each for each in arguments]
    result: int = getattr(_libc, name)(*encoded)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")
    return result


def _mount(source: str, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
    _call("mount", source, target, kind, ctypes.c_ulong(flags), data)


def _bind(source: str, target: str, *, read_only: bool) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        Path(target).touch()
    _mount(source, target, None, MS_BIND | MS_REC)
    if read_only:
        _mount("none", target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def _make_root(scratch: str) -> None:
    """The machine's root below, what is written in memory above. The machine's stays at ``OUTSIDE``."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    os.makedirs(scratch, exist_ok=True)
    _mount("tmpfs", scratch, "tmpfs", 0, "mode=0755")
    os.chdir(scratch)  # overlay(5) splits its options at commas and colons, which a folder's name may have
    for name in ("above", "work", "root"):
        os.mkdir(name, 0o755)
    _mount("overlay", "root", "overlay", 0, "lowerdir=/,upperdir=above,workdir=work")
    os.chdir("root")
    os.makedirs(OUTSIDE[1:], exist_ok=True)
    _call("pivot_root", ".", OUTSIDE[1:])
    os.chdir("/")


def _make_system_folders(shm: str) -> None:
    for folder, mode in (("/dev", "0755"), ("/run", "0755"), ("/tmp", "1777")):
        os.makedirs(folder, exist_ok=True)
        _mount("tmpfs", folder, "tmpfs", MS_NOSUID, f"mode={mode}")
    _mount("proc", "/proc", "proc")
    _mount(f"{OUTSIDE}/sys", "/sys", None, MS_BIND)
    _mount("none", "/sys", None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    os.umask(0)
    for name, (major, minor) in DEVICES.items():
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(major, minor))
    os.umask(0o022)
    for link, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"/dev/{link}")
    os.mkdir("/dev/pts")
    _mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=0620")
    os.symlink("pts/ptmx", "/dev/ptmx")
    _bind(OUTSIDE + shm, "/dev/shm", read_only=False)


def _open_way(folder: str) -> None:
    """Every user may pass through the folders above: in the container's own layer, which changes nothing outside."""
    for parent in Path(folder).parents:
        mode = parent.stat().st_mode
        if not mode & 0o001:
            parent.chmod(mode & 0o7777 | 0o111)


def _make(plan: dict[str, Any]) -> None:
    for cgroup in plan["cgroups"]:
        Path(cgroup, "cgroup.procs").write_text("0")  # this process
    _call("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)
    socket.sethostname(plan["hostname"])
    _make_root(plan["scratch"])
    _make_system_folders(plan["shm"])
    for mount in plan["mounts"]:
        _bind(OUTSIDE + mount["source"], mount["target"], read_only=mount["read_only"])
        if mount["open_way"]:
            _open_way(mount["target"])
    _call("umount2", OUTSIDE, MNT_DETACH)
    os.rmdir(OUTSIDE)
    if plan["read_only_root"]:
        _mount("none", "/", None, MS_BIND | MS_REMOUNT | MS_RDONLY)


def _become(plan: dict[str, Any]) -> None:
    """The user, with no more capabilities than the plan's. A root gets those of the bounding set by execve(2)."""
    number = 0
    while _libc.prctl(PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        if number not in plan["capabilities"]:
            _call("prctl", PR_CAPBSET_DROP, number, 0, 0, 0)
        number += 1
    os.setgroups(plan["groups"])
    os.setresgid(plan["gid"], plan["gid"], plan["gid"])
    os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user has cleared it
    if plan["no_new_privileges"]:
        _call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _be_container(plan: dict[str, Any], failures: int) -> NoReturn:
    try:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        _make(plan)
        os.chdir(plan["working_dir"])
        _become(plan)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.execvpe(plan["command"][0], plan["command"], plan["environ"])
    except (OSError, ValueError) as error:
        os.write(failures, str(error).encode()[:1000])
    os._exit(128)


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[2]):
        os._exit(128)  # it has ended already
    failed, failures = os.pipe()  # closed by execve(2)
    os.set_inheritable(1, False)
    _call("unshare", CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        fcntl.fcntl(failures, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        _be_container(plan, failures)
    os.close(failures)
    why = os.read(failed, 1000).decode(errors="replace").replace("\n", " ")
    print(f"failed {why}" if why else f"started {pid}", flush=True)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
