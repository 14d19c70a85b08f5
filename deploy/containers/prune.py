"""prune.py VENV IMAGE: deletes from a virtual environment what no process of an image loads, then strips and
compiles what stays. Each folder or file is below ``site-packages`` and has its reason; one that is missing fails the
build, so that the list stays true when a package moves.
"""

from __future__ import annotations

import compileall
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

BOTH = {
    "ray/jars": "workers in Java",
    "ray/rllib": "a library on top of Ray: nothing imports it",
    "ray/data": "likewise",
    "ray/train": "likewise",
    "ray/tune": "likewise",
    "ray/llm": "likewise",
    "ray/dashboard/client": "Ray's web page, which is never started (--include-dashboard=false)",
    "zstandard/_cffi.*.so": "for PyPy: on CPython zstandard takes its other backend",
}
"""Patterns of both images, and why nothing in them needs it."""
IMAGES = {
    "agent": {"ray/core/src/ray/gcs/gcs_server": "runs on the head alone"},
    "service": {
        "kubernetes/aio": "the client for asyncio; ours is the other one",
    },
}
"""More, for each image."""
WITH_SYMBOLS = (
    "ray/_raylet.so",
    "ray/core/src/ray/raylet/raylet",
    "ray/core/src/ray/gcs/gcs_server",
    "ray/_private/runtime_env/agent/thirdparty_files/**/*.so",
    "zstandard/backend_c.*.so",
    "cryptography/hazmat/bindings/_rust.abi3.so",
    "llvmlite/binding/libllvmlite.so",
)
"""Programs and libraries that come with their symbols. No others: strip breaks those that auditwheel has changed, such
as numpy's OpenBLAS ("ELF load command address/offset not page-aligned")."""


def main(venv: Path, image: str) -> None:
    [packages] = venv.glob("lib/python3.*/site-packages")
    for pattern in BOTH | IMAGES[image]:
        found = list(packages.glob(pattern))
        if not found:
            raise SystemExit(f"{pattern} is in no package any more: correct {__file__}")
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for tests in [path for path in packages.rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests, ignore_errors=True)  # one may be in another
    subprocess.run([venv / "bin" / "python", "-m", "pip", "uninstall", "-q", "-y", "setuptools", "pip"], check=True)
    libraries = [path for pattern in WITH_SYMBOLS for path in packages.glob(pattern)]
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", *libraries], check=True)
    # By their sources' content, and unchecked: a builder that sets all files' times would make the usual ones stale.
    compileall.compile_dir(
        packages, quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
