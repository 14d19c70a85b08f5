"""Log files of the service's processes."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

LOG_BYTES = 5_000_000


def log_to(path: Path) -> None:
    """Our log lines go to a file that outlives the engine's own folder, at INFO, with a bounded size."""
    # delay: on a full disk the file may not be made now, and a line that is lost is no reason to end.
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=2, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for package in ("tidegauge", "tidegauge_exporter", "tidegauge_scheduler_hooks"):
        ours = logging.getLogger(package)
        ours.setLevel(logging.INFO)
        ours.addHandler(handler)
        ours.propagate = False
