"""What is made of /proc/PID/mountinfo."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.agent.opening.ways_in import Mounts

CONTAINER = rb"""1178 1003 0:325 / / rw,relatime master:381 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d
1179 1178 0:328 / /proc rw,nosuid - proc proc rw
1181 1178 0:331 / /dev/shm rw,nosuid shared:5 master:7 - tmpfs shm rw,size=65536k
1190 1178 0:340 / /data\040-\040tmpfs\040x rw - fuse.squashfuse squashfuse rw,user_id=0
"""
"""A pod's; the last mount is on a folder called "data - tmpfs x"."""


def file_systems(mountinfo: bytes, *mounts: int) -> list[str | None]:
    of_namespace = Mounts(mountinfo, made_by_admin=True)
    return [of_namespace.file_system(mount) for mount in mounts]


def test_every_mount_has_the_file_system_after_the_dash() -> None:
    assert file_systems(CONTAINER, 1178, 1179, 1181, 1190) == ["overlay", "proc", "tmpfs", "fuse.squashfuse"]


def test_a_mount_is_told_by_its_own_id_not_by_its_parents_or_a_part_of_it() -> None:
    assert file_systems(CONTAINER, 1003, 117, 179, 78, 0) == [None] * 5


def test_a_line_that_is_cut_off_is_no_mount() -> None:
    assert file_systems(CONTAINER[: CONTAINER.index(b"squashfuse")], 1181, 1190) == ["tmpfs", None]
    assert file_systems(CONTAINER.rstrip(b"\n"), 1190) == [None], "its type may go on: fuse, fuse.squashfuse"


@given(st.binary(), st.integers(0, 99))
def test_no_text_is_too_odd(mountinfo: bytes, mount: int) -> None:
    assert file_systems(mountinfo, mount) == [None] or b" - " in mountinfo


LINES = b"".join(
    b"%d 1 0:1 / / rw - %s none rw\n" % line for line in enumerate([b"tmpfs", b"fuse.x", b"overlay", b"nfs4"], 1)
)


def test_mounts_are_harmless_only_if_the_kernel_answers_alone() -> None:
    mounts = Mounts(LINES, made_by_admin=True)
    assert [mounts.harmless(mount) for mount in (1, 2, 3, 4, 5)] == [True, False, True, False, False]


def test_a_users_own_overlay_may_be_on_anything() -> None:
    assert not Mounts(LINES, made_by_admin=False).harmless(3)
