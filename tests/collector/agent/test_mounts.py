"""What is made of /proc/PID/mountinfo."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.agent.mounts import Mounts, file_systems_in

CONTAINER = r"""1178 1003 0:325 / / rw,relatime master:381 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d
1179 1178 0:328 / /proc rw,nosuid - proc proc rw
1181 1178 0:331 / /dev/shm rw,nosuid shared:5 master:7 - tmpfs shm rw,size=65536k
1190 1178 0:340 / /data\040-\040tmpfs\040x rw - fuse.squashfuse squashfuse rw,user_id=0
"""
"""A pod's; the last mount is on a folder called "data - tmpfs x"."""


def test_every_mount_has_the_file_system_after_the_dash() -> None:
    assert file_systems_in(CONTAINER) == {1178: "overlay", 1179: "proc", 1181: "tmpfs", 1190: "fuse.squashfuse"}


def test_a_line_that_is_cut_off_is_no_mount() -> None:
    assert file_systems_in(CONTAINER[: CONTAINER.index("squashfuse")]).keys() == {1178, 1179, 1181}
    assert 1190 not in file_systems_in(CONTAINER.rstrip("\n")), "its type may go on: fuse, fuse.squashfuse"


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    assert all(mount >= 0 for mount in file_systems_in(text))


def test_only_what_answers_by_itself_is_harmless() -> None:
    mounts = Mounts({1: "tmpfs", 2: "fuse.x", 3: "overlay", 4: "nfs4"}, made_by_admin=True)
    assert [mounts.harmless(mount) for mount in (1, 2, 3, 4, 5)] == [True, False, True, False, False]


def test_a_users_own_overlay_may_be_on_anything() -> None:
    assert not Mounts({3: "overlay"}, made_by_admin=False).harmless(3)
