"""Shared code of the callbacks: imports an optional framework, and keeps exceptions out of the training loop."""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

log = logging.getLogger("tidegauge")

Hook = TypeVar("Hook", bound=Callable[..., None])


def import_framework(*names: str, install: str) -> Any:
    """The first of these modules that is installed. Raises ``ImportError`` with the command that installs one.

    A framework that is there and cannot be imported raises what it raises.
    """
    for name in names:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return importlib.import_module(name)
    raise ImportError(f"{' or '.join(names)} is needed here and not installed; say: pip install '{install}'")


def guest(hook: Hook) -> Hook:
    """``hook`` of a callback, raising no ``Exception`` into training: its first is logged, the others are dropped.

    What is not an ``Exception`` is the job's own (``KeyboardInterrupt``, ``SystemExit``) and goes through.
    """
    said = False

    @functools.wraps(hook)
    def guarded(*args: Any, **kwargs: Any) -> None:
        nonlocal said
        try:
            hook(*args, **kwargs)
        except Exception:
            if not said:
                said = True
                log.warning("tidegauge: %s failed; training goes on", hook.__qualname__, exc_info=True)

    return cast(Hook, guarded)
