"""What the opener does on one connection, as this test's own user."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.opening.wire import MAX_REPLY_BYTES, Kind, OpenerRequest, decode_entries, encode_reply
from tidegauge.opener.acts import OpenerActs
from tidegauge.osproc.processes import identity_of

UID = os.geteuid()
LONG = "x" * 250


def folder_of(run_dir: Path, names: int) -> set[str]:
    """The names in a user's folder."""
    (run_dir / str(UID)).mkdir()
    for number in range(names):
        (run_dir / str(UID) / f"{number:04d}-{LONG}").touch()
    return set(os.listdir(run_dir / str(UID)))


def test_opener_tells_all_names_of_a_folder_in_answers_that_fit(tmp_path: Path) -> None:
    there = folder_of(tmp_path, 100)
    acts = OpenerActs([tmp_path], tmp_path / "kubelet.sock")
    acts.act(OpenerRequest(Kind.FOLDER, uid=UID))
    for _ in range(2):
        found: list[str] = []
        while True:
            reply, descriptor = acts.act(OpenerRequest(Kind.LIST, is_inside=bool(found)))
            assert descriptor is None
            assert len(encode_reply(reply)) <= MAX_REPLY_BYTES
            if not reply.tail:
                break
            found += [os.fsdecode(name) for name in reply.tail.split(b"\0")]
        assert (len(found), set(found)) == (100, there)
    acts.let_go()
    assert not acts.holds_something


def test_opener_hands_over_no_folder_of_a_container(tmp_path: Path) -> None:
    """From a descriptor of one, ".." leads up to all that everybody may read there."""
    folder_of(tmp_path, 1)
    (tmp_path / "jobs").mkdir()
    this = identity_of(os.getpid())
    assert this is not None
    namespace = os.stat("/proc/self/ns/mnt").st_ino
    acts = OpenerActs([tmp_path], tmp_path / "kubelet.sock")
    acts.act(OpenerRequest(Kind.ENTER, pid=this.pid, start_ticks=this.start_ticks, inode=namespace))
    reply, descriptor = acts.act(OpenerRequest(Kind.RUN_DIR))
    assert descriptor is None
    (entry,) = decode_entries(reply.tail)
    status = (tmp_path / str(UID)).stat()
    assert entry == (UID, status.st_ino, status.st_mtime_ns, status.st_mode, UID)
    assert reply.value == 2, "of all kinds"
    _, descriptor = acts.act(OpenerRequest(Kind.FOLDER, is_inside=True, uid=UID))
    assert descriptor is None
    acts.let_go()


def test_opener_hands_over_a_connection_to_the_kubelet_at_a_path_of_its_own(tmp_path: Path) -> None:
    acts = OpenerActs([], tmp_path / "kubelet.sock")
    request = OpenerRequest(Kind.KUBELET, name="1-1.ring")
    with pytest.raises(FileNotFoundError):
        acts.act(request)
    (tmp_path / "kubelet.sock").symlink_to("elsewhere")
    with pytest.raises(UnsafeFileError):
        acts.act(request)
    (tmp_path / "kubelet.sock").unlink()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(tmp_path / "kubelet.sock"))
        kubelet.listen()
        _, descriptor = acts.act(request)
        assert descriptor is not None
        with socket.socket(fileno=descriptor) as connection:
            assert connection.getpeername() == str(tmp_path / "kubelet.sock")
    assert not acts.holds_something
