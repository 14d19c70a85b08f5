"""Which files this process has open. Standard library only: the probe's tests run under every Python that it does."""

from __future__ import annotations

import os
from contextlib import suppress


def open_below(folder: str | os.PathLike[str]) -> list[str]:
    """The paths below ``folder`` that are open here, once for each descriptor, deleted ones too.

    Only these: what other tests of the process left for the garbage collector may be closed at any moment.
    """
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    place = os.path.realpath(folder)
    return sorted(path for path in paths if path == place or path.startswith(place + "/"))
