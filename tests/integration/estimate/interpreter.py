"""The Python that the estimate's tests run jobs with: a CPU build of PyTorch, made by ``make``."""

from __future__ import annotations

from pathlib import Path

from integration.needs import missing

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "estimate" / "train.py"


def estimate_python() -> str:
    """Ends the test where it is not there."""
    python = ROOT / ".estimate" / "venv" / "bin" / "python"
    if not python.exists():
        missing("no environment with a CPU build of PyTorch: make estimate-venv")
    return str(python)
