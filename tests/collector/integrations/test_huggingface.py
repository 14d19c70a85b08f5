from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from collector.integrations.frameworks import FakeTidegauge, anything, integration, with_framework


class FakeTrainer:
    def __init__(self, *, only_model: bool = False, search: object = None) -> None:
        self.args = anything(save_only_model=only_model)
        self.hp_search_backend = search
        self.state = anything(global_step=3)
        self.control = anything(should_save=True)
        self.model = "model"
        self.events: list[str] = []
        self.callback_handler = anything(on_save=self._on_save)

    def _on_save(self, _args: Any, _state: Any, control: Any) -> None:
        control.should_save = False  # as transformers' CallbackHandler does
        self.events.append("on_save")

    def _save_checkpoint(self, model: str, trial: None) -> None:
        assert self.control.should_save
        self.events.append(f"saved {model}")


class OtherTrainer(FakeTrainer):
    _save_checkpoint = None  # type: ignore[assignment] # one that is made otherwise


@pytest.fixture
def huggingface(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[ModuleType, FakeTidegauge]:
    with_framework(monkeypatch, tmp_path, {"transformers": "class TrainerCallback:\n    pass\n"})
    return integration(monkeypatch, "huggingface")


def call(callback: Any, hook: str) -> None:
    """As ``CallbackHandler.call_event`` does."""
    state = anything(is_world_process_zero=True)
    assert getattr(callback, hook)("args", state, "control", model="model", optimizer=None) is None


def test_each_end_of_a_step_is_one(huggingface: tuple[ModuleType, FakeTidegauge]) -> None:
    module, tidegauge = huggingface
    callback = module.TidegaugeCallback(level="stats")
    call(callback, "on_train_begin")
    call(callback, "on_step_end")
    call(callback, "on_step_end")
    call(callback, "on_train_end")
    assert tidegauge.calls == ["attach stats", "step", "step"]
    assert tidegauge.save is None


def test_huggingface_callback_saves_once_as_the_trainer_does(
    huggingface: tuple[ModuleType, FakeTidegauge],
) -> None:
    module, tidegauge = huggingface
    trainer = FakeTrainer()
    callback = module.TidegaugeCallback(save_with=trainer)
    call(callback, "on_train_begin")
    assert tidegauge.save is not None
    tidegauge.save()
    assert trainer.events == ["saved model", "on_save"]
    assert trainer.control.should_save is False
    call(callback, "on_train_end")
    assert tidegauge.save is None


@pytest.mark.parametrize(
    ("trainer", "reason"),
    [
        (FakeTrainer(only_model=True), "the optimizer's state would be lost"),
        (FakeTrainer(search="optuna"), "hyperparameter search"),
        (OtherTrainer(), "has no _save_checkpoint"),
    ],
    ids=["only the model", "search", "another trainer"],
)
def test_a_trainer_that_cannot_save_is_not_asked(
    huggingface: tuple[ModuleType, FakeTidegauge], caplog: pytest.LogCaptureFixture, trainer: Any, reason: str
) -> None:
    module, tidegauge = huggingface
    call(module.TidegaugeCallback(save_with=trainer), "on_train_begin")
    assert tidegauge.save is None
    (record,) = caplog.records
    assert reason in record.message


def test_a_trainer_that_failed_is_not_kept_alive(huggingface: tuple[ModuleType, FakeTidegauge]) -> None:
    """Its model would stay on the device, while the script tries again with a smaller batch."""
    module, tidegauge = huggingface
    trainer = FakeTrainer()
    callback = module.TidegaugeCallback(save_with=trainer)
    call(callback, "on_train_begin")
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None
    assert tidegauge.save is not None
    with pytest.raises(RuntimeError, match="gone"):
        tidegauge.save()


def test_huggingface_hook_failure_does_not_reach_the_trainer(
    huggingface: tuple[ModuleType, FakeTidegauge], caplog: pytest.LogCaptureFixture
) -> None:
    module, tidegauge = huggingface
    callback = module.TidegaugeCallback()
    tidegauge.fails = OSError("gone")
    call(callback, "on_step_end")
    call(callback, "on_step_end")
    assert len(caplog.records) == 1


def test_huggingface_profiles_two_whole_steps_behind_the_warm_up_of_each_train(
    huggingface: tuple[ModuleType, FakeTidegauge], capsys: pytest.CaptureFixture[str]
) -> None:
    module, tidegauge = huggingface
    callback = module.TidegaugeCallback(profile=True)
    for steps in (11, 20):  # the first one raises
        call(callback, "on_train_begin")
        for _ in range(steps):
            call(callback, "on_step_end")
    call(callback, "on_train_end")
    calls = [call for call in tidegauge.calls if call.startswith("profile")]
    assert calls == ["profile of model and None", "profile begins", "profile ends"] * 2
    assert [tidegauge.calls[:at].count("step") for at, one in enumerate(tidegauge.calls) if one == "profile ends"] == [
        11, 23,
    ]  # fmt: skip
    assert capsys.readouterr().out == "what fills the GPU\n"
    assert str(callback.memory_profile) == "what fills the GPU"
