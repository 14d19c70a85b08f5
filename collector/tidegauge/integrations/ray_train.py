"""Attaches the probe within Ray Train's ``train_loop_per_worker`` (TorchTrainer); saves checkpoints on request.

The user's Ray, in the user's environment; Tidegauge's own is another (docs/adr/0001-ranks-never-speak-ray.md).
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, Optional

import tidegauge
from tidegauge.integrations.callback_guard import guest, import_framework, log

ray_train = import_framework("ray.train", install="ray[train]")

SaveInto = Callable[[str], object]
"""Writes this rank's part of the state into the folder that it is given."""


def attach(level: str = "auto") -> None:
    """Have this worker watched; the first line of the training function. ``level`` is ``tidegauge.attach``'s.

    The job gets the name of the run (``RunConfig.name``) unless it has one. Raises ``ValueError`` for an unknown level.
    """
    _name_the_job()
    tidegauge.attach(level)


@guest
def _name_the_job() -> None:
    os.environ.setdefault("TIDEGAUGE_JOB_NAME", ray_train.get_context().get_experiment_name())


@guest
def save_on_request(save: SaveInto) -> None:
    """Let Tidegauge ask for a checkpoint: ``save(folder)`` on every rank after the same step, then Ray Train's own
    registration, so that ``ray.train.get_checkpoint()`` finds it after a restart.

    ``save`` writes this rank's part into an empty local folder; at least one rank must write something. Call this on
    all ranks, in the training function. Where Ray Train lacks support, one line gives the reason, and nothing is
    registered.
    """
    problem = _why_unable()
    if problem is None:
        tidegauge.on_checkpoint_request(lambda request: _save(request, save))
    else:
        log.warning("tidegauge: no checkpoint can be asked for: %s", problem)


def _why_unable() -> Optional[str]:
    look = getattr(ray_train, "get_all_reported_checkpoints", None)
    modes = all(hasattr(ray_train, name) for name in ("CheckpointConsistencyMode", "CheckpointUploadMode"))
    if look is None or not modes or "timeout_s" not in inspect.signature(look).parameters:
        return "this Ray Train cannot say when a checkpoint is registered (a newer one, V2, can; Ray 2.60 is tested)"
    context = ray_train.get_context()
    if not hasattr(context.get_storage(), "persist_current_checkpoint"):
        return "this Ray Train gives no way to its storage"
    if context.get_world_size() > 1 and _process_group() is None:
        return "there is no torch.distributed process group, in which the workers could agree that all have saved"
    return None


def _save(request: tidegauge.CheckpointRequest, save: SaveInto) -> None:
    """Each rank writes and uploads its part, all agree that all have, and only then all report.

    For ``ray.train.report`` is collective: a rank that failed before it, or in its upload, and trained on would leave
    the others in it, and the run could only be ended.
    """
    name = f"tidegauge-step-{request.step}-{hashlib.sha256(request.request_id.encode()).hexdigest()[:8]}"
    checkpoint, problem = None, None
    try:
        checkpoint = _uploaded(save, name)
    except Exception as error:
        problem = error
    verdicts = _gathered((problem is None, checkpoint is not None))
    if problem is not None:
        raise problem
    if not all(fine for fine, _ in verdicts):
        raise RuntimeError(f"{sum(not fine for fine, _ in verdicts)} other workers failed to save: nothing is reported")
    if not any(written for _, written in verdicts):
        raise RuntimeError("no worker wrote a file: nothing is reported")
    upload = ray_train.CheckpointUploadMode.NO_UPLOAD
    ray_train.report({}, checkpoint=checkpoint, checkpoint_dir_name=name, checkpoint_upload_mode=upload)
    _wait_until_registered(name, request.deadline_unix_s)


def _uploaded(save: SaveInto, name: str) -> Any:
    """This rank's part, in the folder ``name`` of the run's storage; ``None`` if it wrote nothing."""
    with tempfile.TemporaryDirectory(prefix="tidegauge-") as folder:
        save(folder)
        if not os.listdir(folder):
            return None
        storage = ray_train.get_context().get_storage()
        return storage.persist_current_checkpoint(ray_train.Checkpoint.from_directory(folder), name)


def _wait_until_registered(name: str, deadline_unix_s: float) -> None:
    """Until the controller has written down that there is this checkpoint, and would start from it."""
    reported = ray_train.get_all_reported_checkpoints(
        consistency_mode=ray_train.CheckpointConsistencyMode.COMMITTED,
        timeout_s=max(1.0, deadline_unix_s - time.time()),
    )
    if name not in {os.path.basename(one.checkpoint.path.rstrip("/")) for one in reported}:
        raise TimeoutError(f"Ray Train's controller had not registered {name} by the deadline")


def _process_group() -> Optional[Any]:
    """``torch.distributed`` if it has a default process group, else ``None``."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def _gathered(verdict: tuple[bool, bool]) -> list[tuple[bool, bool]]:
    """The results of all ranks, gathered on each."""
    distributed = _process_group()
    if distributed is None:
        return [verdict]
    verdicts = [verdict] * distributed.get_world_size()
    distributed.all_gather_object(verdicts, verdict)
    return verdicts
