"""The two Pythons that jobs are recorded on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakegpu.rig import Rig
from integration.estimate.interpreter import ROOT, estimate_python
from integration.estimate.warm_python import WarmPython, warm_python


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """A researcher's: PyTorch without CUDA, and the recorder."""
    modules = ["torch", "torch._subclasses.fake_tensor", "tidegauge.estimator.training"]
    folder = tmp_path_factory.mktemp("laptop")
    with warm_python(estimate_python(), folder, modules=modules, folders=[ROOT / "collector"]) as one:
        yield one


@pytest.fixture(scope="module")
def gpu_node(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """PyTorch's own allocator."""
    folder = tmp_path_factory.mktemp("gpu-node")
    environ = rig.environ(state=folder / "gpu")
    with warm_python(str(rig.python), folder, modules=["torch"], environ=environ) as one:
        yield one
