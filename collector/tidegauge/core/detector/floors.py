"""Window minima ("floors") of one signal on geometric scales: the only history that the detector keeps.

A floor is the lowest value in a window. Spikes, evaluation and checkpoints lift single samples and leave the floor
alone; what lifts the floor was not given back.
"""

from __future__ import annotations

from typing import Optional

from tidegauge.core.detector.params import Params
from tidegauge.core.detector.state_dicts import StateDict, packed, plain, set_plain, unpacked

_INFINITE = float("inf")
_SCALE_STATE = ("width", "width_parts", "current", "filled", "forgotten", "new", "pending")
_FLOORS_STATE = ("_current", "filled", "look_from", "samples")


class Scale:
    """The last floors of one window length. Plain lists: built-ins work on them at C speed."""

    __slots__ = ("current", "filled", "forgotten", "mins", "new", "pending", "steps", "times", "width", "width_parts")

    def __init__(self, width: int, width_parts: int) -> None:
        self.width = width
        """Samples per floor."""
        self.width_parts = width_parts
        """Floors of the finer scale (samples, on the finest) per floor."""
        self.mins: list[float] = []
        self.steps: list[int] = []
        """Training step at the end of each window."""
        self.times: list[float] = []
        """Seconds at the end of each window."""
        self.current = _INFINITE
        self.filled = 0
        self.forgotten = 0
        """Floors that were dropped at the old end."""
        self.new = 0
        """Floors since the last look."""
        self.pending = False
        """The last look found a leak that another one has to confirm, which comes after half as many floors."""

    def state_dict(self) -> StateDict:
        lists = {name: packed(getattr(self, name)) for name in ("mins", "steps", "times")}
        return {**plain(self, _SCALE_STATE), **lists}

    def load_state_dict(self, state: StateDict) -> None:
        set_plain(self, _SCALE_STATE, state)
        self.mins, self.steps, self.times = (unpacked(state[name]) for name in ("mins", "steps", "times"))


class Floors:
    """The scales of one signal. `push` is the hot path: one call a sample."""

    __slots__ = ("_current", "_params", "_window", "filled", "first", "look_from", "samples", "scales")

    def __init__(self, params: Params) -> None:
        self._params = params
        self._window = params.window_samples
        self._current: float = _INFINITE
        self.filled = -params.skip_samples
        """Samples in the open floor of the finest scale; 0 when the last one closed it."""
        self.look_from = -_INFINITE
        """Floor at or above which all scales are looked at whether due or not: the owner raises it at each look."""
        self.first = (0, 0.0)
        """Step and seconds of the first sample."""
        self.samples = 0
        """Samples in completed floors of the finest scale."""
        self.scales = [Scale(params.window_samples, params.window_samples)]

    def state_dict(self) -> StateDict:
        scales = [scale.state_dict() for scale in self.scales]
        return {**plain(self, _FLOORS_STATE), "first": self.first, "scales": scales}

    def load_state_dict(self, state: StateDict) -> None:
        set_plain(self, _FLOORS_STATE, state)
        step, time_s = state["first"]
        self.first = (step, time_s)
        self.scales = []
        for one in state["scales"]:
            scale = Scale(one["width"], one["width_parts"])
            scale.load_state_dict(one)
            self.scales.append(scale)

    def push(self, value: float, step: int, time_s: float) -> Optional[list[Scale]]:
        """Add one sample; returns the scales with enough new floors for another look, or None (nearly always)."""
        filled = self.filled + 1
        self.filled = filled
        if value < self._current:
            self._current = value
        if filled < self._window:
            if filled <= 0:
                self._current = _INFINITE
                if filled == 1 - self._params.skip_samples:
                    self.first = (step, time_s)
            return None
        floor = self._current
        self._current = _INFINITE
        self.filled = 0
        self.samples += self._window
        return self._close(floor, step, time_s)

    def _close(self, floor: float, step: int, time_s: float) -> Optional[list[Scale]]:
        params = self._params
        due: Optional[list[Scale]] = None
        index = 0
        while True:
            scale = self.scales[index]
            mins = scale.mins
            if len(mins) >= params.floors_kept:
                cut = params.floors_kept // 4
                del mins[:cut], scale.steps[:cut], scale.times[:cut]
                scale.forgotten += cut
            mins.append(floor)
            scale.steps.append(step)
            scale.times.append(time_s)
            scale.new += 1
            if scale.new >= params.look_floors and self._is_due(scale):
                scale.new = 0
                due = [scale] if due is None else [*due, scale]
            elif index == 0 and floor >= self.look_from:
                due = []
            index += 1
            if index == len(self.scales):
                if index == params.scales:
                    return due
                self.scales.append(Scale(scale.width * params.scale_ratio, params.scale_ratio))
            coarser = self.scales[index]
            if floor < coarser.current:
                coarser.current = floor
            coarser.filled += 1
            if coarser.filled < coarser.width_parts:
                return due
            floor = coarser.current
            coarser.current = _INFINITE
            coarser.filled = 0

    def _is_due(self, scale: Scale) -> bool:
        params = self._params
        count = len(scale.mins)
        if count < params.young_floors:
            return count >= params.floors_min and scale.new >= 2 * params.look_floors
        share = params.look_share_recent if scale.forgotten else params.look_share
        return scale.new >= (share / 2 if scale.pending else share) * count
