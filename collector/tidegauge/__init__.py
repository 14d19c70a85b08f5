"""Tidegauge watches GPU memory of ``torch.distributed`` jobs. ``import tidegauge`` needs the standard library alone."""

from __future__ import annotations

__all__ = ["__version__", "attach", "step"]

__version__ = "0.1.0.dev0"


def attach(level: str = "stats") -> None:
    """Watch the GPU memory of this process, as ``TIDEGAUGE_PROFILE=level`` does; before or after ``import torch``.

    Levels: ``off``, ``dormant``, ``stats``, ``auto``, ``trace``. A process that is watched already stays as it is, a
    dormant one wakes up, and ``TIDEGAUGE_PROFILE=off`` in the environment wins. Never initialises CUDA.
    Raises ``ValueError`` for an unknown level.
    """
    from tidegauge.probe import entry

    entry.attach(level)


def step() -> None:
    """Say that a training step has ended here, for loops without an optimizer or with an unusual one.

    Once it was called, optimizer steps are not counted as training steps any more. Does nothing when the process is
    not watched, and never raises.
    """
    from tidegauge.probe import entry

    entry.step()
