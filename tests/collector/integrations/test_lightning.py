from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from collector.integrations.frameworks import FakeTidegauge, anything, integration, with_framework

CALLBACK = "class Callback:\n    pass\n"


class FakeTrainer:
    """One rank's."""

    def __init__(self, *, zero: bool = True) -> None:
        self.global_step = 0
        self.is_global_zero = zero
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
