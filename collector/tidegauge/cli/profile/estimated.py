"""An estimate beside the profile of the same job, part by part: the one place where their words meet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tidegauge.analysis.profile.words import signed_bytes
from tidegauge.cli.errors import bad_file
from tidegauge.cli.profile.page import PageTable
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.units import format_bytes
from tidegauge.core.wire import from_wire
from tidegauge.estimator.results import Breakdown, Estimate

MAX_ESTIMATE_BYTES = 16 << 20
FREE = "rounding and free blocks"
"""What the allocator reserves beyond what was asked for."""
OUTSIDE = "outside PyTorch"


class EstimatedPart(NamedTuple):
    """Named as in ``--json``."""

    part: str
    """A category, or one of the two words above."""
    estimate_bytes: int
    profile_bytes: int

    @property
    def difference_bytes(self) -> int:
        return self.profile_bytes - self.estimate_bytes


def read_estimate(file: str) -> Estimate:
    """What ``tidegauge estimate --json`` printed. Raises ``CommandError``."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(MAX_ESTIMATE_BYTES + 1)
        if len(content) > MAX_ESTIMATE_BYTES:
            raise ValueError("it is too large for an estimate")
        raw = json.loads(content)
        if not isinstance(raw, dict) or "breakdown" not in raw:
            raise ValueError("it has no 'breakdown'")
        return from_wire(Estimate, raw)
    except OSError as error:
        raise bad_file(file, ValueError(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        said = f"this is no estimate; --estimate takes what `tidegauge estimate --json` prints: {error}"
        raise bad_file(file, ValueError(said)) from error


def categories_of(breakdown: Breakdown) -> Mapping[Category, int]:
    """What the job asks for at the estimate's peak, in the profile's words."""
    return {
        Category.PARAMETERS: breakdown.parameters,
        Category.BUFFERS: breakdown.buffers,
        Category.GRADIENTS: breakdown.gradients,
        Category.OPTIMIZER_STATE: breakdown.optimizer_state,
        Category.ACTIVATIONS: breakdown.activations,
        Category.TEMPORARIES: breakdown.temporaries,
        Category.WORKSPACES: breakdown.workspaces,
        Category.INPUTS: breakdown.inputs,
        Category.OTHER: breakdown.other,
    }


def against_estimate(
    estimate: Estimate, profile: StepProfile, process_outside_bytes: int | None = None
) -> tuple[EstimatedPart, ...]:
    """All parts that either has, in the order of ``Category``. Without ``OUTSIDE`` they add up to both reserved peaks.

    ``OUTSIDE`` is there where NVML's figure is known. A profile of a snapshot does not tell buffers from parameters:
    then they count to those.
    """
    expected, held = dict(categories_of(estimate.breakdown)), dict(profile.peak.by_category)
    rounding = held.pop(Category.ROUNDING, 0)
    if Category.BUFFERS not in held:
        expected[Category.PARAMETERS] += expected.pop(Category.BUFFERS)
    parts = [EstimatedPart(one.value, expected.get(one, 0), held.get(one, 0)) for one in Category]
    free = rounding + profile.reserved_bytes - profile.peak.allocated_bytes
    parts.append(EstimatedPart(FREE, estimate.breakdown.allocator, free))
    if process_outside_bytes is not None:
        outside = estimate.breakdown.context + estimate.breakdown.nccl
        parts.append(EstimatedPart(OUTSIDE, outside, process_outside_bytes))
    return tuple(one for one in parts if one.estimate_bytes or one.profile_bytes)


class BesideEstimate(NamedTuple):
    """Both, for ``--json`` and for people."""

    parts: tuple[EstimatedPart, ...]
    table: PageTable


def beside_estimate(
    estimate: Estimate, profile: StepProfile, process_outside_bytes: int | None = None
) -> BesideEstimate:
    parts = against_estimate(estimate, profile, process_outside_bytes)
    return BesideEstimate(parts, _table(estimate, profile, parts))


def _table(estimate: Estimate, profile: StepProfile, parts: tuple[EstimatedPart, ...]) -> PageTable:
    peak = EstimatedPart("peak reserved", estimate.peak_reserved_bytes, profile.reserved_bytes)
    allocated = EstimatedPart("peak allocated", estimate.peak_allocated_bytes, profile.peak.allocated_bytes)
    return PageTable(
        "Estimate and profile",
        ("part", "estimate", "profile", "difference"),
        [
            (
                one.part,
                format_bytes(one.estimate_bytes),
                format_bytes(one.profile_bytes),
                signed_bytes(one.difference_bytes),
            )
            for one in (*parts, allocated, peak)
        ],
    )
