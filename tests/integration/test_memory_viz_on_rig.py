"""Exported snapshots in the hands of PyTorch's own tools: ``torch.cuda._memory_viz`` of a real torch reads them all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from tidegauge.cli.main import main

pytestmark = pytest.mark.rig

SNAPSHOT = Path(__file__).parents[1] / "data" / "snapshots" / "total_loss_graph.late.snap.zst"
TOOLS = """
import pickle, sys
from torch.cuda import _memory_viz as viz

def plain(lines):  # torch's own fetches a Perl script from the internet
    return lines

def read():
    with open(sys.argv[1], "rb") as stream:
        return pickle.load(stream)

print(viz.segsum(read()))
print(viz.trace(read()))
print(viz.memory(read(), plain))
print(viz.segments(read(), plain))
print(viz.compare(read()["segments"], read()["segments"], plain))
for plot in (viz.trace_plot, viz.segment_plot):
    assert "snapshot.pickle" in plot(read())
"""


def test_torchs_own_tools_read_what_is_exported(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    assert main(["export", str(SNAPSHOT), "-o", str(file)]) == 0
    done = subprocess.run(
        [str(rig.python), "-c", TOOLS, str(file)], env=rig.environ(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "total_loss_graph" in done.stdout
