from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from collector.integrations.frameworks import FakeBlock, FakeTidegauge, anything, integration, with_framework

CALLBACK = "class Callback:\n    pass\n"


class FakeTrainer:
    """One rank's."""

    def __init__(self, *, zero: bool = True) -> None:
        self.global_step = 0
        self.is_global_zero = zero
        self.model, self.optimizers = "model", ["optimizer"]
        self.barriers: list[str] = []
        self.strategy = anything(barrier=self.barriers.append)
        self.saves: Callable[[str], object] = lambda path: Path(path).write_text("state")

    def save_checkpoint(self, path: str) -> None:
        self.saves(path)
        self.barriers.append("Trainer.save_checkpoint")


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[ModuleType, FakeTidegauge]:
    with_framework(monkeypatch, tmp_path / "packages", {"lightning.pytorch": CALLBACK})
    return integration(monkeypatch, "lightning")


def fitting(module: ModuleType, trainer: FakeTrainer, **arguments: Any) -> Any:
    callback = module.TidegaugeCallback(**arguments)
    callback.setup(trainer, None, stage="fit")
    callback.on_train_start(trainer, None)
    return callback


def batch(callback: Any, trainer: FakeTrainer, *, steps: int) -> None:
    trainer.global_step += steps
    callback.on_train_batch_end(trainer, None, None, None, 0)


def test_a_batch_counts_if_an_optimizer_stepped_in_it(lightning: tuple[ModuleType, FakeTidegauge]) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    trainer.global_step = 100  # gone on from a checkpoint
    callback = fitting(module, trainer)
    for steps in (0, 1, 0, 1, 2):
        batch(callback, trainer, steps=steps)
    assert tidegauge.calls == ["attach auto", "attach auto", "step", "step", "step"]


def test_lightning_callback_without_a_checkpoint_dir_leaves_registered_saves_alone(
    lightning: tuple[ModuleType, FakeTidegauge], tmp_path: Path
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    callback = fitting(module, trainer, level="stats")
    assert tidegauge.save is None
    theirs = tidegauge.save = len
    callback.on_train_end(trainer, None)
    callback.teardown(trainer, None, stage="fit")
    assert tidegauge.save is theirs  # a function that somebody else registered stays


@pytest.mark.parametrize("end", ["on_train_end", "on_exception", "teardown"])
def test_lightning_callback_removes_its_save_at_the_end(
    lightning: tuple[ModuleType, FakeTidegauge], tmp_path: Path, end: str
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    callback = fitting(module, trainer, checkpoint_dir=tmp_path)
    assert tidegauge.save is not None
    getattr(callback, end)(trainer, None)
    assert tidegauge.save is None


def test_a_checkpoint_gets_its_name_when_it_is_whole(
    lightning: tuple[ModuleType, FakeTidegauge], tmp_path: Path
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    folder = tmp_path / "not" / "there" / "yet"
    callback = fitting(module, trainer, checkpoint_dir=folder)
    batch(callback, trainer, steps=12)
    latest_while_saving: list[str | None] = []

    def save(path: str) -> None:
        Path(path).mkdir()  # as sharded checkpoints are
        latest_while_saving.append(module.latest_checkpoint(folder))

    trainer.saves = save
    assert tidegauge.save is not None
    for _ in range(2):  # the second time after a restart from an older one
        tidegauge.save()
        assert os.listdir(folder) == ["tidegauge-step-12.ckpt"]
    checkpoint = str(folder / "tidegauge-step-12.ckpt")
    assert latest_while_saving == [None, checkpoint]
    assert module.latest_checkpoint(folder) == checkpoint


def test_other_ranks_than_the_first_rename_nothing(lightning: tuple[ModuleType, FakeTidegauge], tmp_path: Path) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer(zero=False)
    fitting(module, trainer, checkpoint_dir=tmp_path / "checkpoints")
    trainer.saves = len
    assert tidegauge.save is not None
    tidegauge.save()
    assert not (tmp_path / "checkpoints").exists()


def test_a_rank_that_cannot_save_meets_the_others_in_their_barrier_and_tells(
    lightning: tuple[ModuleType, FakeTidegauge], tmp_path: Path
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    fitting(module, trainer, checkpoint_dir=tmp_path)

    def disk_full(path: str) -> None:
        raise OSError("no space left on device")

    trainer.saves = disk_full
    assert tidegauge.save is not None
    with pytest.raises(OSError, match="no space"):
        tidegauge.save()
    assert len(trainer.barriers) == 1


def test_the_newest_checkpoint_counts_whoever_wrote_it(
    lightning: tuple[ModuleType, FakeTidegauge], tmp_path: Path
) -> None:
    module, _ = lightning
    assert module.latest_checkpoint(tmp_path / "none") is None
    assert module.latest_checkpoint(tmp_path) is None
    for age, name in enumerate(("epoch=1.ckpt", "tidegauge-step-90.ckpt", "tidegauge-step-99.ckpt.partial")):
        (tmp_path / name).write_text("state")
        os.utime(tmp_path / name, (1e9 + age, 1e9 + age))
    assert module.latest_checkpoint(tmp_path) == str(tmp_path / "tidegauge-step-90.ckpt")
    os.utime(tmp_path / "epoch=1.ckpt")
    assert module.latest_checkpoint(tmp_path) == str(tmp_path / "epoch=1.ckpt")


def test_a_url_is_refused_before_training(lightning: tuple[ModuleType, FakeTidegauge]) -> None:
    module, _ = lightning
    with pytest.raises(ValueError, match="mounted on all nodes"):
        module.TidegaugeCallback(checkpoint_dir="s3://bucket/run")


def test_lightning_hook_failure_is_logged_once_and_training_continues(
    lightning: tuple[ModuleType, FakeTidegauge], caplog: pytest.LogCaptureFixture
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    callback = fitting(module, trainer)
    tidegauge.fails = OSError("gone")
    for _ in range(3):
        batch(callback, trainer, steps=1)
    assert [record.message for record in caplog.records] == [
        "tidegauge: TidegaugeCallback.on_train_batch_end failed; training goes on"
    ]
    tidegauge.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        batch(callback, trainer, steps=1)


def test_lightning_callback_subclasses_both_lightning_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_framework(monkeypatch, tmp_path, {"lightning.pytorch": CALLBACK, "pytorch_lightning": CALLBACK})
    import lightning.pytorch  # type: ignore[import-not-found] # the stand-in
    import pytorch_lightning  # type: ignore[import-not-found] # the stand-in

    module, _ = integration(monkeypatch, "lightning")
    callback = module.TidegaugeCallback()
    assert isinstance(callback, lightning.pytorch.Callback)
    assert isinstance(callback, pytorch_lightning.Callback)


def profiled(tidegauge: FakeTidegauge) -> list[str]:
    """What was recorded, each with the number of steps before it."""
    calls = tidegauge.calls
    return [f"{calls[:at].count('step')}: {call}" for at, call in enumerate(calls) if call.startswith("profile")]


def test_lightning_profiles_two_whole_steps_behind_the_warm_up_and_prints_them_at_the_end(
    lightning: tuple[ModuleType, FakeTidegauge], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    callback = fitting(module, trainer, profile=tmp_path / "page.html")
    for _ in range(20):
        assert callback.memory_profile is None or len(profiled(tidegauge)) == 3
        batch(callback, trainer, steps=0)  # gradients are accumulated
        batch(callback, trainer, steps=1)
    expected = ["10: profile of model and ['optimizer']", "10: profile begins", "12: profile ends"]
    assert profiled(tidegauge) == expected
    callback.on_train_end(trainer, None)
    assert capsys.readouterr().out == f"what fills the GPU\ntidegauge: memory profile: {tmp_path / 'page.html'}\n"
    assert str(callback.memory_profile) == "what fills the GPU"


@pytest.mark.parametrize(("zero", "arguments"), [(True, {}), (False, {"profile": True})])
def test_lightning_profiles_on_the_first_rank_alone_and_only_if_asked(
    lightning: tuple[ModuleType, FakeTidegauge], zero: bool, arguments: dict[str, bool]
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer(zero=zero)
    callback = fitting(module, trainer, **arguments)
    for _ in range(20):
        batch(callback, trainer, steps=1)
    callback.on_train_end(trainer, None)
    assert profiled(tidegauge) == []
    assert callback.memory_profile is None


@pytest.mark.parametrize("end", ["on_train_end", "on_exception"])
def test_lightning_ends_a_profile_with_a_training_that_ends_in_it(
    lightning: tuple[ModuleType, FakeTidegauge], end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module, tidegauge = lightning
    trainer = FakeTrainer()
    callback = fitting(module, trainer, profile=True)
    for _ in range(11):
        batch(callback, trainer, steps=1)
    getattr(callback, end)(trainer, None)
    assert profiled(tidegauge)[1:] == ["10: profile begins", "11: profile ends"]
    assert callback.memory_profile is None
    assert capsys.readouterr().out == ""


def test_a_page_that_cannot_be_written_costs_the_page_alone(
    lightning: tuple[ModuleType, FakeTidegauge],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def to_html(_block: FakeBlock, path: str) -> Path:
        raise FileNotFoundError(path)

    module, _tidegauge = lightning
    monkeypatch.setattr(FakeBlock, "to_html", to_html)
    trainer = FakeTrainer()
    callback = fitting(module, trainer, profile=tmp_path / "page.html")
    for _ in range(12):
        batch(callback, trainer, steps=1)
    callback.on_train_end(trainer, None)
    assert capsys.readouterr().out == "what fills the GPU\n"
    [told] = caplog.messages
    assert told == f"tidegauge: the page of the memory profile is not written: {tmp_path / 'page.html'}"
