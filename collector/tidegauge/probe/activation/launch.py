"""Environment variables that a launcher sets to have a job watched (``tidegauge run``, the schedulers' hooks)."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tidegauge.probe.levels import LEVELS, PROFILE_VARIABLE

PYTHONPATH_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pythonpath")
"""The folder for ``PYTHONPATH``: works in environments that do not have Tidegauge, and is read only."""


def activation_environ(level: str, environ: Mapping[str, str], *, pythonpath: bool = False) -> dict[str, str]:
    """The variables to add to ``environ`` so that Python processes started with it are watched at ``level``.

    With ``pythonpath`` the probe comes through a folder *prepended* to ``PYTHONPATH``, for jobs whose environment
    does not have Tidegauge; without it, through the ``.pth`` line of an environment that has. Both together are fine.
    Raises ``ValueError`` for an unknown level, and if the folder's name cannot be part of a ``PYTHONPATH``.
    """
    if level not in LEVELS:
        raise ValueError(f"{level!r} is not a level: choose one of {', '.join(LEVELS)}")
    additions = {PROFILE_VARIABLE: level}
    if pythonpath:
        if os.pathsep in PYTHONPATH_FOLDER:
            raise ValueError(f"{PYTHONPATH_FOLDER} contains {os.pathsep!r} and cannot be put on PYTHONPATH")
        # An empty entry would mean the current directory: only real entries are kept.
        theirs = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        rest = [entry for entry in theirs if entry != PYTHONPATH_FOLDER]
        additions["PYTHONPATH"] = os.pathsep.join([PYTHONPATH_FOLDER, *rest])
    return additions
