"""A callback for Lightning 2.x, under either of its names (``lightning.pytorch``, ``pytorch_lightning``)."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from typing import Any, Optional, Union

import tidegauge
from tidegauge.integrations.callback_guard import guest, import_framework
from tidegauge.integrations.profiled_steps import ProfiledSteps, Wanted

_NAMES = ("lightning.pytorch", "pytorch_lightning")
_ENDING = ".ckpt"
_UNFINISHED = ".partial"


def _callback_class() -> Any:
    """``Callback`` of the Lightning in use. The two names are two packages with a class each, and both may be in one
    process: then it is a class of both, so that a trainer of either takes it for a callback."""
    loaded = [sys.modules[name] for name in _NAMES if name in sys.modules]
    classes = [one.Callback for one in loaded or [import_framework(*_NAMES, install="lightning")]]
    return classes[0] if len(classes) == 1 else type("Callback", tuple(classes), {})


_Callback: Any = _callback_class()


class TidegaugeCallback(_Callback):  # type: ignore[misc] # SAFETY: which of two packages has it is known at run time
    """Attaches the probe, counts steps as ``trainer.global_step`` does, and can save checkpoints on request.

    ``level`` is ``tidegauge.attach``'s. A step ends at the end of the batch in which an optimizer stepped, when
    Lightning's own counters and schedulers have had their turn: that is where a checkpoint can be gone on from. With
    ``checkpoint_dir``, a folder that all ranks see, Tidegauge may ask for one: ``tidegauge-step-N.ckpt`` in it, with
    N = ``trainer.global_step``, by ``trainer.save_checkpoint`` on every rank. It takes the place of a function that was
    given to ``tidegauge.on_checkpoint_request`` before, from the start of ``fit`` to its end.
    ``profile=True``: the first rank profiles its memory in two steps after the first ten, and prints that at the end of
    ``fit``; ``memory_profile`` has it. A path: also as a page.
    Raises ``ValueError`` for an unknown level and for a ``checkpoint_dir`` that is not a folder's path.
    """

    def __init__(
        self,
        level: str = "auto",
        *,
        checkpoint_dir: Optional[Union[str, os.PathLike[str]]] = None,
        profile: Wanted = False,
    ) -> None:
        super().__init__()
        self._folder = None if checkpoint_dir is None else _local_folder(checkpoint_dir)
        self._level = level
        self._stepped = 0
        self._registered = False
        self._profiled = None if profile is False else ProfiledSteps(profile, tidegauge.profile)
        tidegauge.attach(level)  # here, for a cap has to be in force before the device is first used

    @property
    def memory_profile(self) -> Optional[Any]:
        """What ``tidegauge.profile`` gives, once the profiled steps are over."""
        return None if self._profiled is None else self._profiled.profile

    @guest
    def setup(self, *_args: Any, **_kwargs: Any) -> None:
        tidegauge.attach(self._level)  # ranks that were spawned got this object without its __init__

    @guest
    def on_train_start(self, trainer: Any, *_args: Any) -> None:
        self._stepped = trainer.global_step
        if self._folder is not None:
            tidegauge.on_checkpoint_request(functools.partial(_save, trainer, self._folder))
            self._registered = True
        if self._profiled is not None:
            self._profiled.start()

    @guest
    def on_train_batch_end(self, trainer: Any, *_args: Any) -> None:
        stepped = trainer.global_step
        if stepped != self._stepped:  # not so for a batch whose gradients are only accumulated
            self._stepped = stepped
            tidegauge.step()
            if self._profiled is not None and trainer.is_global_zero:
                self._profiled.step_ended(trainer.model, trainer.optimizers)

    @guest
    def on_train_end(self, trainer: Any, *_args: Any) -> None:
        self._unregister()
        if self._profiled is not None and trainer.is_global_zero:
            self._profiled.show()

    @guest
    def on_exception(self, *_args: Any) -> None:
        self._unregister()
        if self._profiled is not None:
            self._profiled.abandon()

    @guest
    def teardown(self, *_args: Any, **_kwargs: Any) -> None:
        self._unregister()

    def _unregister(self) -> None:
        if self._registered:
            self._registered = False
            tidegauge.on_checkpoint_request(None)


def latest_checkpoint(checkpoint_dir: Union[str, os.PathLike[str]]) -> Optional[str]:
    """The newest complete ``*.ckpt`` in the folder, for ``trainer.fit(…, ckpt_path=…)``; ``None`` if there is none.

    Ours, and those of a ``ModelCheckpoint`` that writes to the same folder.
    """
    try:
        with os.scandir(checkpoint_dir) as entries:
            found = [(entry.stat().st_mtime_ns, entry.path) for entry in entries if entry.name.endswith(_ENDING)]
    except FileNotFoundError:
        return None
    return max(found)[1] if found else None


def _local_folder(path: Union[str, os.PathLike[str]]) -> str:
    if "://" in os.fspath(path):
        raise ValueError(
            f"checkpoint_dir={os.fspath(path)!r}: a folder that is mounted on all nodes is needed, not a URL"
        )
    return os.path.abspath(path)


def _save(trainer: Any, folder: str) -> None:
    """Called on all ranks after the same step. What it raises is Tidegauge's to report."""
    path = os.path.join(folder, f"tidegauge-step-{trainer.global_step}{_ENDING}")
    try:
        if trainer.is_global_zero:
            os.makedirs(folder, exist_ok=True)
        trainer.save_checkpoint(path + _UNFINISHED)
    except Exception:
        # save_checkpoint ends in a barrier. The ranks that are fine wait in it for one that is not, and would meet
        # its next gradient exchange there.
        trainer.strategy.barrier("tidegauge: saving failed")
        raise
    if trainer.is_global_zero:  # no barrier after this: a rename that fails must not leave the others in it
        if os.path.isdir(path):  # a sharded one of the same step, from before a restart
            shutil.rmtree(path)
        os.replace(path + _UNFINISHED, path)
