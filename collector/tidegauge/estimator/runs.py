"""Runs a job on tensors without memory and replays its events in the allocator's model. Runs beside torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from tidegauge.core.alloc_conf import conf_names
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import AllocatorSettings, parse_settings
from tidegauge.estimator.breakdown import PeakMoment, peak_moment, step_peaks, without_the_making
from tidegauge.estimator.functions import dropped_output
from tidegauge.estimator.gpus import CONTEXT_BYTES, Target, nccl_bytes
from tidegauge.estimator.model_facts import Build
from tidegauge.estimator.recording import Phase, RecordedKind, Recording
from tidegauge.estimator.results import Breakdown, StepPeak
from tidegauge.estimator.training import record_training

_PHASES = {
    Phase.BUILD: "model creation",
    Phase.INPUT: "outside forward and backward",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
}


@dataclass(frozen=True)
class Conditions:
    """The conditions of a run, the same for all changes."""

    target: Target
    world_size: int
    steps: int
    """How many training steps are run."""
    alloc_conf: Optional[str]
    """As in ``PYTORCH_ALLOC_CONF``; ``None``: what the environment says."""
    made_sharded: bool
    """Whether what lived only while FUNCTION made the model is left out."""


@dataclass(frozen=True)
class Measured:
    """A run and its replay in the allocator's model. Bytes."""

    recording: Recording
    """The events that count."""
    settings: AllocatorSettings
    alloc_conf: str
    torch_version: str
    """Of the job."""
    replayed: Replay
    moment: PeakMoment
    """When allocated memory was at its peak."""
    outside_bytes: int
    """CUDA context and NCCL."""

    @property
    def device_bytes(self) -> int:
        return self.replayed.peak_reserved_bytes + self.outside_bytes


def run(build: Build, conditions: Conditions) -> Measured:
    """Run FUNCTION's job.

    Raises ``EstimateError``, ``ValueError`` for settings that this torch would refuse, and what FUNCTION raises.
    """
    recording = record_training(build, target=conditions.target, steps=conditions.steps)
    if conditions.made_sharded:
        recording = without_the_making(recording)
    torch_version = conditions.target.torch_version or recording.torch_version
    conf = conditions.alloc_conf
    if conf is None:
        conf = conf_in_force(os.environ, torch_version)
    settings = parse_settings(conf, torch_version)
    return Measured(
        recording=recording,
        settings=settings,
        alloc_conf=conf,
        torch_version=torch_version,
        replayed=replay(recording.trace, settings, cap_bytes=None),
        moment=peak_moment(recording.trace, recording.kinds, len(RecordedKind)),
        outside_bytes=CONTEXT_BYTES + nccl_bytes(conditions.world_size),
    )


def run_again(build: Build, conditions: Conditions) -> Measured:
    """The same for a further run of a job: what FUNCTION prints is dropped, as the first run has shown it."""
    with dropped_output():
        return run(build, conditions)


def conf_in_force(environ: Mapping[str, str], torch_version: str) -> str:
    """The allocator settings that a job with this environment and this torch would run under."""
    return next((environ[name] for name in conf_names(torch_version) if environ.get(name, "").strip()), "")


def breakdown_of(measured: Measured, conditions: Conditions) -> Breakdown:
    """The parts of the device's memory; the allocator's share is what its peak is above what was asked for."""
    by_kind = measured.moment.requested_by_category
    nccl = nccl_bytes(conditions.world_size)
    return Breakdown(
        parameters=by_kind[RecordedKind.PARAMETER],
        buffers=by_kind[RecordedKind.BUFFER],
        gradients=by_kind[RecordedKind.GRADIENT],
        optimizer_state=by_kind[RecordedKind.OPTIMIZER_STATE],
        activations=by_kind[RecordedKind.ACTIVATION],
        temporaries=by_kind[RecordedKind.TEMPORARY],
        workspaces=by_kind[RecordedKind.WORKSPACE],
        inputs=by_kind[RecordedKind.INPUT],
        other=by_kind[RecordedKind.OTHER],
        allocator=measured.replayed.peak_reserved_bytes - sum(by_kind),
        context=measured.outside_bytes - nccl,
        nccl=nccl,
    )


def peak_in_words(measured: Measured) -> str:
    """ "step 2, backward, model.layers.11.mlp: aten.mm"."""
    event, recording = measured.moment.event, measured.recording
    if event < 0:
        return "nothing was allocated on the device"
    step = sum(event >= end for end in recording.trace.marks["step"]) + 1
    phase = Phase(recording.phases[event])
    site = recording.sites[event]
    words = [] if phase is Phase.BUILD else [f"step {step}"]
    return ", ".join([*words, _PHASES[phase], *([recording.site_names[site]] if site >= 0 else [])])


def peaks_by_step(measured: Measured) -> tuple[StepPeak, ...]:
    """Allocated within each step, reserved up to its end."""
    trace = measured.recording.trace
    ends = trace.marks["step"]
    found = []
    for number, ((_, allocated_bytes), end) in enumerate(zip(step_peaks(trace, ends), ends), start=1):
        so_far = replay(trace.first(end), measured.settings, cap_bytes=None)
        found.append(StepPeak(number, allocated_bytes, so_far.peak_reserved_bytes))
    return tuple(found)


def retries_within(measured: Measured, total_bytes: int) -> Optional[int]:
    """Cache flushes (retries) on a device of ``total_bytes``; ``None`` if the job runs out of memory there."""
    capacity = total_bytes - measured.outside_bytes
    if capacity <= 0:
        return None
    squeezed = replay(measured.recording.trace, measured.settings, cap_bytes=None, capacity_bytes=capacity)
    return None if squeezed.ooms else squeezed.alloc_retries
