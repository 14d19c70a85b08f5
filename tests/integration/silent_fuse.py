"""Mounts a FUSE file system on the folder that it is given, says so, and never answers a request."""

from __future__ import annotations

import ctypes
import os
import signal
import sys


def main() -> None:
    descriptor = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},allow_other"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"silent", os.fsencode(sys.argv[1]), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
