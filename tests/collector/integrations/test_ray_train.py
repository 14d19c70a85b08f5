from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from collector.integrations.frameworks import REQUEST, FakeTidegauge, anything, integration, with_framework

RAY_TRAIN = """
import os, shutil
from types import SimpleNamespace as Some

reports, waits, registers, storage_works = [], [], True, True
folder = None

class Checkpoint:
    def __init__(self, path): self.path = path
    from_directory = classmethod(lambda cls, path: cls(path))

class Storage:
    def persist_current_checkpoint(self, checkpoint, name):
        if not storage_works: raise OSError("the bucket is gone")
        shutil.copytree(checkpoint.path, os.path.join(folder, name))
        return Checkpoint(os.path.join(folder, name))

world_size = 1
context = Some(get_experiment_name=lambda: "night-run", get_world_size=lambda: world_size, get_storage=Storage)
get_context = lambda: context
CheckpointConsistencyMode = Some(COMMITTED="committed")
CheckpointUploadMode = Some(NO_UPLOAD="no upload")

def report(metrics, checkpoint, checkpoint_dir_name, checkpoint_upload_mode):
    reports.append((metrics, checkpoint, checkpoint_dir_name, checkpoint_upload_mode))

def get_all_reported_checkpoints(consistency_mode, timeout_s):
    waits.append((consistency_mode, timeout_s))
    return [Some(checkpoint=each[1]) for each in reports] if registers else []
"""


@pytest.fixture
def ray_train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[ModuleType, FakeTidegauge]:
    with_framework(monkeypatch, tmp_path / "packages", {"ray.train": RAY_TRAIN})
    module, tidegauge = integration(monkeypatch, "ray_train")
    module.ray_train.folder = str(tmp_path)
    return module, tidegauge


def write(folder: str) -> None:
    assert os.listdir(folder) == []
    Path(folder, "state.pt").write_text("state")


def registered(ray_train: tuple[ModuleType, FakeTidegauge], save: Any = write) -> Any:
    module, tidegauge = ray_train
    module.save_on_request(save)
    assert tidegauge.save is not None
    return tidegauge.save


def test_a_worker_is_watched_under_the_name_of_the_run_unless_it_has_one(
    ray_train: tuple[ModuleType, FakeTidegauge], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, tidegauge = ray_train
    monkeypatch.setenv("TIDEGAUGE_JOB_NAME", "mine")
    module.attach()
    assert os.environ["TIDEGAUGE_JOB_NAME"] == "mine"
    monkeypatch.delenv("TIDEGAUGE_JOB_NAME")
    module.attach("stats")
    assert os.environ["TIDEGAUGE_JOB_NAME"] == "night-run"
    assert tidegauge.calls == ["attach auto", "attach stats"]


def test_a_checkpoint_is_saved_when_the_controller_has_registered_it(
    ray_train: tuple[ModuleType, FakeTidegauge], tmp_path: Path
) -> None:
    registered(ray_train)(REQUEST)
    ((metrics, checkpoint, name, mode),) = ray_train[0].ray_train.reports
    assert (metrics, mode) == ({}, "no upload")
    assert name.startswith("tidegauge-step-7-")
    assert Path(checkpoint.path) == tmp_path / name
    assert (tmp_path / name / "state.pt").read_text() == "state"
    ((consistency, timeout_s),) = ray_train[0].ray_train.waits
    assert consistency == "committed"
    assert timeout_s > 1.0


def test_ray_train_save_fails_unless_ray_registers_the_checkpoint(ray_train: tuple[ModuleType, FakeTidegauge]) -> None:
    ray_train[0].ray_train.registers = False
    with pytest.raises(TimeoutError, match="not registered tidegauge-step-7"):
        registered(ray_train)(REQUEST)


def test_a_worker_that_cannot_save_or_upload_or_writes_nothing_reports_nothing(
    ray_train: tuple[ModuleType, FakeTidegauge],
) -> None:
    def disk_full(folder: str) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        registered(ray_train, disk_full)(REQUEST)
    with pytest.raises(RuntimeError, match="no worker wrote a file"):
        registered(ray_train, len)(REQUEST)
    ray_train[0].ray_train.storage_works = False
    with pytest.raises(OSError, match="bucket is gone"):
        registered(ray_train)(REQUEST)
    assert ray_train[0].ray_train.reports == []


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ("get_all_reported_checkpoints", "cannot say when a checkpoint is registered"),
        ("CheckpointUploadMode", "cannot say when a checkpoint is registered"),
        ("get_context", "no way to its storage"),
    ],
)
def test_a_ray_train_that_cannot_do_its_part_is_not_asked(
    ray_train: tuple[ModuleType, FakeTidegauge],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    lacks: str,
    reason: str,
) -> None:
    module, tidegauge = ray_train
    if lacks == "get_context":
        monkeypatch.setattr(module.ray_train, lacks, lambda: anything(get_storage=object))
    else:
        monkeypatch.delattr(module.ray_train, lacks)
    module.save_on_request(write)
    assert tidegauge.save is None
    assert reason in caplog.records[0].message


def test_workers_that_cannot_agree_are_not_asked(
    ray_train: tuple[ModuleType, FakeTidegauge], caplog: pytest.LogCaptureFixture
) -> None:
    module, tidegauge = ray_train
    module.ray_train.world_size = 2
    module.save_on_request(write)
    assert tidegauge.save is None
    assert "no torch.distributed process group" in caplog.records[0].message


def test_a_worker_reports_nothing_when_another_one_failed_to_save(
    ray_train: tuple[ModuleType, FakeTidegauge], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _ = ray_train

    def gather(verdicts: list[tuple[bool, bool]], mine: tuple[bool, bool]) -> None:
        verdicts[:] = [mine, others]

    group = anything(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 2,
        all_gather_object=gather,
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    module.ray_train.world_size = 2
    save = registered(ray_train)
    others = (False, False)
    with pytest.raises(RuntimeError, match="1 other workers failed to save"):
        save(REQUEST)
    assert module.ray_train.reports == []
    others = (True, False)  # one that has nothing to write is fine
    save(REQUEST._replace(request_id="r2"))
    assert len(module.ray_train.reports) == 1
