"""Tidegauge watches GPU memory of ``torch.distributed`` jobs. ``import tidegauge`` needs the standard library alone."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing, or anything else, is left to those who need it
    from collections.abc import Callable
    from typing import Any, Optional, TypeVar

    from tidegauge.core.version import __version__
    from tidegauge.probe.requests import CheckpointRequest

    _Function = TypeVar("_Function", bound=Optional[Callable[..., object]])

__all__ = [
    "CheckpointRequest",
    "__version__",
    "attach",
    "estimate",
    "on_checkpoint_request",
    "profile",
    "step",
    "watch",
]


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


def on_checkpoint_request(fn: _Function) -> _Function:
    """Register ``fn`` to save the job's state when Tidegauge asks for it; usable as a decorator. ``None`` unregisters.

    ``fn`` is called with one ``CheckpointRequest``, or with nothing if it needs nothing, inside ``optimizer.step()`` or
    ``tidegauge.step()`` in the thread that trains, after the same step on every rank that is asked; when it returns,
    the state counts as saved. What it raises is shown on stderr and reported, and training goes on. A later call
    replaces it; in a process that is not watched it is never called. Raises ``TypeError`` for what cannot be called so.
    """
    from tidegauge.probe import entry

    entry.on_checkpoint_request(fn)
    return fn


def estimate(build: Callable[..., Any], **options: Any) -> Any:
    """What the training job that ``build`` makes needs on a GPU, worked out without one: an ``Estimate``.

    ``build()`` returns ``(model, optimizer, step)``; ``step()`` runs one training step. Options are those of
    ``tidegauge.estimator.estimate.estimate``: ``gpu``, ``batch_size``, ``world_size``, ``strategy``, ``alloc_conf``.
    While it runs, ``torch.cuda`` in this process answers for a GPU that is not there, and modules that are imported
    meanwhile keep what they saw: do not train in the same process afterwards.
    """
    from importlib import import_module  # by name, so that whoever imports tidegauge is seen not to depend on this

    return import_module("tidegauge.estimator.estimate").estimate(build, **options)


def watch(level: str = "auto") -> Any:
    """Watch and judge the GPU memory of this process: ``with tidegauge.watch() as w:`` around the training loop.

    Attaches the probe as ``attach(level)`` does, and judges in a process beside this one. ``w.verdict``, ``w.evidence``
    and ``print(w)`` tell what was found, in the block and after it; ``w.report(path)`` writes the HTML report after it.
    Never raises for a failure of its own: ``w.problem`` has it. Raises ``ValueError`` for an unknown level.
    """
    from importlib import import_module

    return import_module("tidegauge.cli.verdict.watch").WatchedBlock(level)


def profile(model: Any = None, optimizer: Any = None) -> Any:
    """Profile the GPU memory of a block: ``with tidegauge.profile(model, optimizer) as p:`` around some training steps.

    ``p.peak`` has what fills the GPU at its fullest, by category; ``p.profile`` lines and phases as well, and
    ``print(p)`` shows them. Allocations are recorded with their Python stacks meanwhile. ``model`` and ``optimizer``
    tell what was there before the block. Never raises for a failure of its own: ``p.problem`` has it.
    """
    from importlib import import_module

    return import_module("tidegauge.cli.profile.block").ProfiledBlock(model, optimizer)


_MAGIC_HELP = """%%tidegauge [LEVEL]
Runs the cell and shows the verdict on its GPU memory, with line, holder, cause and advice.
LEVEL: auto (default), stats or trace; docs/probe.md explains them."""


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext tidegauge``: the cell magic ``%%tidegauge [LEVEL]`` runs a cell in ``watch(level)``.

    The cell's exception is raised, after the verdict, so that "Run All" stops there; IPython has shown it before.
    """

    def run_cell(line: str, cell: str) -> Any:
        if line.strip() in ("-h", "--help"):
            print(_MAGIC_HELP)
            return None
        with watch(line.strip() or "auto") as watching:
            result = ipython.run_cell(cell)
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return watching
        print(watching)
        error._render_traceback_ = lambda: [f"{type(error).__name__}: see above"]
        raise error

    ipython.register_magic_function(run_cell, magic_kind="cell", magic_name="tidegauge")


def __getattr__(name: str) -> Any:
    if name == "CheckpointRequest":
        from tidegauge.probe.requests import CheckpointRequest

        return CheckpointRequest
    if name == "__version__":
        from tidegauge.core.version import __version__

        return __version__
    raise AttributeError(f"module 'tidegauge' has no attribute {name!r}")
