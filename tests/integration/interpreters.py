"""Further Pythons on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def interpreter(version: str) -> Path | None:
    """An interpreter of that version: pyenv's, Debian's in ``.rig`` (``scripts/debian_python.sh``), or the one on PATH
    if it really is what its name says."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    debian = CHECKOUT / ".rig" / f"python{version}" / "usr" / "bin" / f"python{version}"
    on_path = shutil.which(f"python{version}")
    candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python")), debian, *([Path(on_path)] if on_path else [])]
    for candidate in filter(Path.exists, candidates):
        answer = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if re.fullmatch(rf"Python {re.escape(version)}\.\S+\s*", answer.stdout):
            return candidate
    return None
