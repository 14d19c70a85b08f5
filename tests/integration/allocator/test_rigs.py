"""The rigs with other releases of torch, CUDA 12's structures included."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu import build
from fakegpu.rig import Rig
from integration.allocator.recordings import RELEASES, rig_of
from matrix import torches

pytestmark = pytest.mark.rig

ASK = """
import json, torch
device = torch.cuda.get_device_properties(0)
host = torch.arange(1000.0)
names = ("name", "total_memory", "major", "minor", "multi_processor_count", "warp_size")
print(json.dumps({
    "torch": torch.__version__.partition("+")[0],
    "device": [getattr(device, name) for name in names],
    "copied": torch.equal(host.to("cuda").cpu(), host),
    "pinned": host.pin_memory().is_pinned(),
}))
"""


@pytest.mark.parametrize("torch_release", torches(RELEASES))
def test_every_release_sees_the_same_device(torch_release: str, tmp_path: Path) -> None:
    rig = rig_of(torch_release)
    done = subprocess.run(
        [rig.python, "-c", ASK],
        env=rig.environ(devices=1, total_bytes=8 << 30, state=tmp_path / "gpus"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "torch": torch_release,
        "device": ["Fake GPU (Tidegauge rig)", 8 << 30, 8, 0, 108, 32],
        "copied": True,
        "pinned": True,
    }


def test_a_rig_that_is_not_there_says_how_it_is_made() -> None:
    assert "made by scripts/make_rig.sh (make rigs)" in str(Rig.of("1.0.0").available())


def test_the_command_line_chooses_the_release() -> None:
    script = Path(build.__file__).with_name("rig.py")
    done = subprocess.run(
        [sys.executable, script, "run", "--torch", "1.0.0", "--", "python", "-c", ""],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert f"no torch in {Rig.of('1.0.0').venv}" in done.stderr
