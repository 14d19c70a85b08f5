"""Starts the probe at interpreter start if ``TIDEGAUGE_PROFILE`` is set: takes settings, waits for ``import torch``.

``tidegauge-probe.pth`` and ``pythonpath/sitecustomize.py`` import this module, and the import starts it. As
a module is imported once, both together start it once.
"""

from __future__ import annotations

import os
import sys

from tidegauge.probe.levels import LEVELS, OFF, PROFILE_VARIABLE, unknown_level

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs more to import than all of this
    from collections.abc import MutableMapping
    from types import ModuleType


def start(environ: MutableMapping[str, str]) -> None:
    """Arm the probe at the level ``TIDEGAUGE_PROFILE``; prints one line for an unknown level. Never raises."""
    level = environ.get(PROFILE_VARIABLE, "").strip().lower()
    if level in ("", OFF):
        return
    try:
        if level in LEVELS:
            from tidegauge.probe.job_settings import take_settings  # not for a job that is not watched
            from tidegauge.probe.torch_import import when_torch_is_imported

            news = take_settings(environ)
            when_torch_is_imported(lambda torch: _arm(torch, level, news, environ))
        elif sys.stderr is not None:
            sys.stderr.write(f"tidegauge: {unknown_level(level)}\n")
    except Exception:
        return  # not even a reason to be noticed


def _arm(torch: ModuleType, level: str, news: str | None, environ: MutableMapping[str, str]) -> None:
    try:
        from tidegauge.probe import entry

        if news is not None:
            from tidegauge.probe.job_settings import tell

            tell(news, environ)
        entry.arm(torch, level)
    except Exception as error:
        if sys.stderr is not None:
            sys.stderr.write(f"tidegauge: the probe could not start ({error!r}); the job runs without it\n")


start(os.environ)
