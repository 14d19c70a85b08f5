"""A container that its user fills with mounts, folders and names; one of the attacks of ``hostile_polls.py``.

In user and mount namespaces of its own (``unshare --user --map-root-user --mount``), where any user may mount::

    python hostile_container.py RUN_DIR --mounts 8192 --folders 300 --names 200

Says ``ready``; changes every folder, and says so, for each line that it reads; ends with the standard input.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from pathlib import Path

MS_BIND, MS_PRIVATE, MS_REC = 4096, 1 << 18, 16384

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int = 0) -> None:
    """mount(2). Raises ``OSError``."""
    encoded = [None if each is None else each.encode() for each in (source, target, kind)]
    if _libc.mount(*encoded, ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--mounts", type=int, default=0)
    parser.add_argument("--folders", type=int, default=0)
    parser.add_argument("--names", type=int, default=0, help="of rings in each folder, without a process")
    told = parser.parse_args()
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", str(told.run_dir.parent), "tmpfs")
    told.run_dir.mkdir()
    folders = [told.run_dir / str(uid) for uid in range(told.folders)]
    for folder in folders:
        folder.mkdir()
        for pid in range(told.names):
            (folder / f"{pid + 2}-1.ring").touch()
    for number in range(told.mounts):
        target = told.run_dir.parent / f"m{number}"
        target.mkdir()
        mount(str(target), str(target), None, MS_BIND)
    print("ready", flush=True)
    for _ in sys.stdin:
        for folder in folders:
            name = folder / "x"
            name.unlink() if name.exists() else name.touch()
        print("changed", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
