"""The releases of Ray that can be the service's engine."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version

MIN_RAY_RELEASE = (2, 57)
"""Found by trial, 2026-11-30: gcs_server knows tokens (``RAY_AUTH_MODE``) from 2.52 on, and keeps its state on disk
(``RAY_gcs_storage=rocksdb``) from 2.57 on."""


def installed_release() -> str | None:
    """The version of Ray that this Python would import; ``None``: there is none."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return None


def why_too_old(release: str | None) -> str | None:
    """Why a release cannot be used, and what to do; ``None``: it can. A version that cannot be read is too old: a Ray
    that knows no tokens would listen to everybody."""
    wanted = ".".join(map(str, MIN_RAY_RELEASE))
    install = f"Install one: pip install 'ray>={wanted}'"
    if release is None:
        return f"Ray is not installed for {sys.executable}. {install}"
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None or (int(found[1]), int(found[2])) < MIN_RAY_RELEASE:
        return (
            f"Ray {release} is too old for the service, which needs {wanted} or newer (older ones keep no cluster "
            f"state, or know no token, and would be open to everybody). {install}"
        )
    return None
