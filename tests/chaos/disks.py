"""Disks of a node that can be filled: its state directory on a small file system of its own, and its /dev/shm."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from chaos.nodes import Node
from chaos.site import ChaosSite
from integration.security.opener_rig import SERVICE
from integration.small_disks import fill, make_room

STATE_BYTES = 512 << 20
"""Room for all that a node writes in a suite, and for snapshots, which leave 256 MiB free."""
WHOLE_WITHIN_S = 150.0
TAKE_EVERY_S = 0.1

_MOVE = """
set -e
if mountpoint -q "$0"; then exit 0; fi
mount -t tmpfs -o size="$1",mode=700,uid="$2",gid="$2" tidegauge-chaos "$0.small"
cp -a "$0/." "$0.small"
mount --move "$0.small" "$0"
"""


def inside(node: Node, path: Path) -> Path:
    """``path`` as the node sees it, which may have mounts of its own there."""
    return Path(f"/proc/{node.pid}/root") / path.relative_to("/")


def put_state_on_a_small_disk(site: ChaosSite, node: Node) -> None:
    """Move the node's state to a small file system; its service is stopped and started for that. It stays there."""
    node.down()
    small = node.state_dir.with_name(f"{node.state_dir.name}.small")
    small.mkdir(exist_ok=True)
    done = node.run_in(["sh", "-c", _MOVE, str(node.state_dir), str(STATE_BYTES), str(SERVICE)])
    assert done.returncode == 0, done.stderr
    node.up()
    site.wait_full_service(WHOLE_WITHIN_S)


def leave_no_room_in_the_log(node: Node) -> None:
    """What the head's database has written is in its main file: the next write needs room. SQLite uses what its log
    once grew to again, and could write for a while on a disk without a free byte."""
    database = sqlite3.connect(inside(node, node.state_dir / "tidegauge.db"), timeout=30)
    with closing(database):
        busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy, "the log of the database is being read"


@contextmanager
def full(node: Node, path: Path) -> Iterator[None]:
    """Not a byte is free on the node's file system at ``path``; at the end there is room again.

    What the node deletes meanwhile is taken too: the database's log, when its last connection closes, would otherwise
    make room for the next one.
    """
    folder, over = inside(node, path), threading.Event()

    def take_what_becomes_free() -> None:
        while not over.wait(TAKE_EVERY_S):
            with suppress(AssertionError):  # something was deleted just now
                fill(folder)

    keeper = threading.Thread(target=take_what_becomes_free, daemon=True)
    try:
        fill(folder)
        keeper.start()
        yield
    finally:
        over.set()
        if keeper.ident is not None:
            keeper.join()
        make_room(folder)
