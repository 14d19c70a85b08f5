"""The probe of *this* process, and its entry points: ``boot``, ``tidegauge.attach()`` and ``step()`` call them."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Optional

from tidegauge.probe.faults import Faults, say
from tidegauge.probe.levels import DORMANT, LEVELS, OFF, PROFILE_VARIABLE, WATCHING_LEVELS
from tidegauge.probe.requests import Save, saver
from tidegauge.probe.runtime.backend import choose_backend, has_step_hook, register_step_hook
from tidegauge.probe.session.probe import Probe
from tidegauge.probe.torch_import import when_torch_is_imported

_probe: Optional[Probe] = None
_save: Optional[Save] = None
_lock = threading.Lock()


def arm(torch: Any, level: str) -> None:
    """Make the probe of this process, once; ``torch`` has just been imported, or was before."""
    global _probe
    with _lock:
        if _probe is not None:
            return
        if not has_step_hook(torch):
            say(f"torch {torch.__version__} is too old to be watched (2.2 or later is needed); the job runs unwatched")
            return
        backend = choose_backend(torch)
        if backend is None:
            if os.environ.get("LOCAL_RANK", "0") == "0":
                _say_at_first_step(torch)
            return
        _probe = Probe(level, backend, save=_save)
        os.register_at_fork(after_in_child=_after_fork)
        atexit.register(_probe.end)
        atexit.register(_probe.last_words)  # the last one registered is the first one called
    _probe.arm()


def attach(level: str) -> None:
    """Watch this process from its code; see ``tidegauge.attach``."""
    if level not in LEVELS:
        raise ValueError(f"{level!r} is not a level: choose one of {', '.join(LEVELS)}")
    if level == OFF or os.environ.get(PROFILE_VARIABLE, "").strip().lower() == OFF:
        return
    if _probe is None:
        when_torch_is_imported(lambda torch: arm(torch, level))
    elif level in WATCHING_LEVELS and _probe.level == DORMANT:
        _probe.switch_on(level)


def step() -> None:
    """A training step ended; see ``tidegauge.step``."""
    if _probe is not None:
        _probe.explicit_step()


def on_checkpoint_request(fn: Optional[Callable[..., object]]) -> None:
    """Register the job's function that saves its state; see ``tidegauge.on_checkpoint_request``."""
    global _save
    save = None if fn is None else saver(fn)
    with _lock:  # or a probe that is just being made would miss it
        _save = save
        probe = _probe
    if probe is not None:
        probe.save_with(save)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    if _probe is not None:
        _probe.after_fork()


def _say_at_first_step(torch: Any) -> None:
    """Tell a job whose torch has no device to watch, once, when it really trains."""

    line = f"this torch ({torch.__version__}) has no device whose memory can be watched; the job runs unwatched"
    faults = Faults()
    register_step_hook(torch, lambda *_: faults.say_once(line))
