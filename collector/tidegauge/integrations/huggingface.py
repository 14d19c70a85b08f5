"""A callback for the Trainer of Hugging Face's transformers, and of the libraries that build on it (trl, …)."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Optional

import tidegauge
from tidegauge.integrations.callback_guard import guest, import_framework, log
from tidegauge.integrations.profiled_steps import ProfiledSteps, Wanted

_TrainerCallback: Any = import_framework("transformers", install="transformers[torch]").TrainerCallback


class TidegaugeCallback(_TrainerCallback):  # type: ignore[misc] # SAFETY: transformers is not there where mypy runs
    """Attaches the probe, counts steps as ``state.global_step`` does, and can save checkpoints on request.

    ``level`` is ``tidegauge.attach``'s. With ``save_with=trainer`` Tidegauge may ask for a checkpoint: the ordinary
    ``output_dir/checkpoint-N``, written at the end of a step on all ranks, for
    ``trainer.train(resume_from_checkpoint=True)``. As the trainer is needed, add the callback to it:
    ``trainer.add_callback(TidegaugeCallback(save_with=trainer))``. It takes the place of a function that was given to
    ``tidegauge.on_checkpoint_request`` before, from the beginning of ``train()`` to its end.
    ``profile=True``: the first rank profiles its memory in two steps after the first ten, and prints that at the end of
    ``train()``; ``memory_profile`` has it. A path: also as a page.
    Raises ``ValueError`` for an unknown level.
    """

    def __init__(self, level: str = "auto", *, save_with: Optional[Any] = None, profile: Wanted = False) -> None:
        super().__init__()
        # Weak, for a trainer that failed is never told to the callback, and its model must not be kept on the device.
        self._trainer = None if save_with is None else weakref.ref(save_with)
        self._registered = False
        self._profiled = None if profile is False else ProfiledSteps(profile, tidegauge.profile)
        tidegauge.attach(level)

    @property
    def memory_profile(self) -> Optional[Any]:
        """What ``tidegauge.profile`` gives, once the profiled steps are over."""
        return None if self._profiled is None else self._profiled.profile

    @guest
    def on_train_begin(self, *_args: Any, **_kwargs: Any) -> None:
        if self._profiled is not None:
            self._profiled.abandon()  # a train() that raised is not told to a callback
            self._profiled.start()
        trainer = None if self._trainer is None else self._trainer()
        if trainer is None:
            return
        problem = _why_unable(trainer)
        if problem is not None:
            log.warning("tidegauge: no checkpoint can be asked for: %s", problem)
            return
        tidegauge.on_checkpoint_request(functools.partial(_save, weakref.ref(trainer)))
        self._registered = True

    @guest
    def on_step_end(self, _args: Any, state: Any, *_more: Any, **kwargs: Any) -> None:
        tidegauge.step()
        if self._profiled is not None and state.is_world_process_zero:
            self._profiled.step_ended(kwargs.get("model"), kwargs.get("optimizer"))

    @guest
    def on_train_end(self, _args: Any, state: Any, *_more: Any, **_kwargs: Any) -> None:
        if self._registered:
            self._registered = False
            tidegauge.on_checkpoint_request(None)
        if self._profiled is not None and state.is_world_process_zero:
            self._profiled.show()


def _why_unable(trainer: Any) -> Optional[str]:
    """Why this trainer cannot save a state to go on from at any step, or ``None``."""
    if not callable(getattr(trainer, "_save_checkpoint", None)):
        return "this Trainer has no _save_checkpoint (which has been there since transformers 3)"
    if trainer.args.save_only_model:
        return "with save_only_model the optimizer's state would be lost"
    if getattr(trainer, "hp_search_backend", None) is not None:
        return "this is a hyperparameter search, whose trials have folders of their own"
    return None


def _save(trainer_reference: Any) -> None:
    """Called on all ranks, inside ``on_step_end``: where the Trainer itself would save next.

    A callback can only ask the Trainer to save after it has returned (``control.should_save``), and the return of
    this function has to mean that the state is saved. So it calls the Trainer's own method, as transformers' callback
    for checkpoints at SIGTERM does, and tells the other callbacks as the Trainer would.
    """
    trainer = trainer_reference()
    if trainer is None:
        raise RuntimeError("the Trainer is gone")
    trainer._save_checkpoint(trainer.model, trial=None)
    # This also takes back a should_save of this step: it would be written over while it counts as saved.
    trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)
