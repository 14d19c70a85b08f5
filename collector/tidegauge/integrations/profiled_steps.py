"""The memory profile of two training steps for the callbacks, by ``tidegauge.profile``, without a service."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Optional, Union

from tidegauge.integrations.callback_guard import log

WARM_UP_STEPS = 10
"""By then the optimizer has its state, and libraries their workspaces."""
PROFILED_STEPS = 2

Wanted = Union[bool, str, "os.PathLike[str]"]
"""``True``: print the profile when training has ended. A path: write it there as a page, too."""


class ProfiledSteps:
    """Counts steps, and records two of them. ``begin``: ``tidegauge.profile``."""

    def __init__(self, wanted: Wanted, begin: Callable[[Any, Any], Any]) -> None:
        self._page = None if isinstance(wanted, bool) else os.path.abspath(wanted)
        self._begin = begin
        self.start()

    def start(self) -> None:
        """Training begins, perhaps once more."""
        self._steps = 0
        self._recording: Optional[Any] = None
        self.profile: Optional[Any] = None
        """The block of ``tidegauge.profile`` once both steps are over."""

    def step_ended(self, model: Any, optimizers: Any) -> None:
        self._steps += 1
        if self._steps == WARM_UP_STEPS:
            self._recording = self._begin(model, optimizers)
            self._recording.__enter__()
        elif self._steps == WARM_UP_STEPS + PROFILED_STEPS:
            self.profile = self._stop()

    def show(self) -> None:
        """Training has ended: print the profile, and write its page."""
        self._stop()
        if self.profile is None:
            needed = WARM_UP_STEPS + PROFILED_STEPS
            log.warning("tidegauge: no memory profile: it needs %d steps, and there were %d", needed, self._steps)
            return
        print(self.profile, flush=True)
        if self._page is not None and self.profile.problem is None:
            self._write(self.profile, self._page)

    def _write(self, profile: Any, page: str) -> None:
        try:
            print(f"tidegauge: memory profile: {profile.to_html(page)}", flush=True)
        except Exception as error:  # a package that is not installed, a folder that is not there
            log.warning("tidegauge: the page of the memory profile is not written: %s", error)

    def abandon(self) -> None:
        """Training has failed."""
        self._stop()

    def _stop(self) -> Optional[Any]:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.__exit__(None, None, None)
        return recording
