"""What mounts a process sees, and which of them can be walked through without asking anybody who may not answer.

A lookup in a FUSE file system waits for the process behind it, for ever and beyond SIGKILL if that process likes; one
in a network file system waits for a server. /proc/PID/mountinfo is the kernel's own word and asks nobody.
"""

from __future__ import annotations

import fcntl
import os
from typing import NamedTuple

from tidegauge.agent.run_dirs.safe_files import opened

MAX_MOUNTINFO_BYTES = 1 << 20
"""A container has some 50 mounts of some 150 bytes; whoever makes ten thousand is not looked into."""

LOCAL = frozenset(
    ["tmpfs", "ramfs", "rootfs", "devtmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "squashfs", "erofs"]
)
"""File systems that only an admin can mount, or that are memory: none of them waits for another process."""
STACKED = frozenset({"overlay"})
"""As good as what is below, which is not told: an admin's is believed, a user may put one on their own FUSE."""

_NS_GET_USERNS = 0xB701
"""ioctl_ns(2): a descriptor of the user namespace that owns this namespace."""


class Mounts(NamedTuple):
    """The mounts of one mount namespace as one of its processes sees them."""

    mountinfo: bytes
    """Lines of proc_pid_mountinfo(5); one at the end that is cut off does not count. Spaces and ends of lines in what
    a user may choose are written as \\040 and \\012."""
    made_by_admin: bool
    """Whether mounting there needs the rights of root in our own user namespace."""

    def file_system(self, mount: int) -> str | None:
        """Type of the file system of a mount id. A mount that is not there, because it is out of reach for that
        process, is not to be walked."""
        # Of thousands of lines two or three are asked for.
        start = 0 if self.mountinfo.startswith(b"%d " % mount) else self.mountinfo.find(b"\n%d " % mount) + 1
        end = self.mountinfo.find(b"\n", start)
        if end < 0 or not self.mountinfo.startswith(b"%d " % mount, start):
            return None
        _, _, tail = self.mountinfo[start:end].partition(b" - ")
        file_system, space, _ = tail.partition(b" ")
        return file_system.decode(errors="replace") if space else None

    def harmless(self, mount: int) -> bool:
        """Whether names can be looked up on this mount without waiting for anybody."""
        name = self.file_system(mount)
        return name in LOCAL or (self.made_by_admin and name in STACKED)


def read_mounts(proc: int, namespace: int) -> Mounts:
    """``proc`` is a descriptor of /proc/PID, ``namespace`` of its ns/mnt. Raises ``OSError``."""
    with opened("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc) as fd:
        chunks = []
        left = MAX_MOUNTINFO_BYTES
        while left > 0 and (chunk := os.read(fd, left)):
            chunks.append(chunk)
            left -= len(chunk)
    return Mounts(b"".join(chunks), _is_of_our_users(namespace))


def _is_of_our_users(namespace: int) -> bool:
    try:
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    except OSError:  # it belongs to no user namespace that is ours or below
        return False
    try:
        return os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino
    finally:
        os.close(owner)
