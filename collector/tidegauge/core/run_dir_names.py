"""Paths of the run directories. Every interpreter of a job loads this module at start, so it imports nothing.

The names below them are in ``run_dirs``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_RUN_DIRS = ("/run/tidegauge", "/dev/shm/tidegauge")
"""The site's folder (1777, made by the service) and the one that a job can always make for itself."""

SETTINGS_FOLDER = "jobs"
"""Below a run directory: settings for later attempts of jobs (``core.jobs.settings``). Belongs to the service and is
writable for nobody else."""


def run_dirs(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Run directories in order of preference: ``TIDEGAUGE_RUN_DIR`` alone if set, else the defaults.

    A probe takes the first that it can write to; an agent looks in all of them.
    """
    chosen = environ.get("TIDEGAUGE_RUN_DIR")
    return (chosen,) if chosen else DEFAULT_RUN_DIRS
