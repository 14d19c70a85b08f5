"""Runs programs on fake GPUs: the real CUDA build of PyTorch above stub CUDA libraries (README.md beside this file).

In tests: `Rig().environ(...)` with `Rig().python`. By hand: `python tests/fakegpu/rig.py run -- COMMAND...`.
Standard library only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
if not __package__:  # started as a script
    sys.path[0] = str(HERE.parent)

from fakegpu import build  # noqa: E402 - needs the line above


@dataclass(frozen=True)
class Rig:
    """The rig's environment and libraries; both are folders under `.rig` in the checkout unless told otherwise."""

    venv: Path = field(default=build.DEFAULT_VENV)
    libraries: Path = field(default=build.DEFAULT_OUT)

    @classmethod
    def of(cls, torch_version: str) -> Rig:
        """The further rig with that release of torch, as `scripts/make_rig.sh` lays it out; it may not be there."""
        folder = build.DEFAULT_VENV.parent / torch_version
        return cls(venv=folder / "venv", libraries=folder / "lib")

    @property
    def python(self) -> Path:
        """The job's interpreter: it has torch, and can import it only with `environ()`."""
        return self.venv / "bin" / "python"

    @property
    def inside(self) -> Path:
        """A folder for the job's PYTHONPATH when it wants to `import rig_inside`."""
        return HERE / "inside"

    def available(self) -> str | None:
        """None when the rig can be used (it is built now if need be), else the reason why not, for people."""
        try:
            build.torch_folder(self.venv)  # else the lock would make a folder for no rig
            with build.only_builder(self.venv):  # it names files by process id, which CI's shards share
                build.build(self.libraries, self.venv)
        except build.BuildError as error:
            return str(error)
        return None

    def environ(
        self,
        *,
        devices: int = 2,
        total_bytes: int | None = None,
        context_bytes: int | None = None,
        state: Path | str | None = None,
        base: Mapping[str, str] | None = None,
        **knobs: str | int,
    ) -> dict[str, str]:
        """A whole environment for a job, or for an agent that is to see the fake GPUs through NVML.

        `state` is the file that holds the memory of the devices: processes with the same file share the GPUs, so give
        a test a file of its own. None keeps the user's default file in /dev/shm. The environment starts from `base`
        (default: this process's) without any FAKEGPU_ variable or CUDA_VISIBLE_DEVICES that is in it. `knobs` are
        further FAKEGPU_ variables, in lower case and without the prefix: `events="pending"`.
        """
        inherited = os.environ if base is None else base
        environ = {
            name: value
            for name, value in inherited.items()
            if not name.startswith("FAKEGPU_") and name not in ("CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV", "PYTHONHOME")
        }
        settings: dict[str, object] = {
            "devices": devices,
            "total_bytes": total_bytes,
            "context_bytes": context_bytes,
            "state": state,
            **knobs,
        }
        environ.update({f"FAKEGPU_{name.upper()}": str(value) for name, value in settings.items() if value is not None})
        paths = [str(self.libraries), *filter(None, [environ.get("LD_LIBRARY_PATH")])]
        environ["LD_LIBRARY_PATH"] = ":".join(paths)
        return environ


def run(command: list[str], rig: Rig, devices: int | None) -> int:
    """Replaces this process by `command`, with the rig's interpreter first on PATH; returns only on failure (3)."""
    reason = rig.available()
    if reason is not None:
        print(f"fakegpu: {reason}", file=sys.stderr)
        return 3
    own = {name: value for name, value in os.environ.items() if name.startswith("FAKEGPU_")}
    chosen = devices if devices is not None else int(own.get("FAKEGPU_DEVICES", "2"))
    environ = {**rig.environ(), **own, "FAKEGPU_DEVICES": str(chosen)}
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        environ["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
    environ["PATH"] = f"{rig.venv / 'bin'}:{environ.get('PATH', os.defpath)}"
    print(f"fakegpu: {chosen} fake GPUs, no real one, under {command[0]}: kernels do nothing", file=sys.stderr)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        print(f"fakegpu: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="run a command on fake GPUs, with the rig's python first on PATH")
    running.add_argument("--devices", type=int, help="how many (default: FAKEGPU_DEVICES, else 2)")
    running.add_argument("--torch", metavar="VERSION", help="on the rig of that release, e.g. 2.11.0 (make rigs)")
    running.add_argument(
        "argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="e.g. -- torchrun --nproc-per-node 2 job.py"
    )
    args = parser.parse_args(arguments)
    argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not argv:
        running.error("a command is needed: rig.py run -- python train.py")
    return run(argv, Rig.of(args.torch) if args.torch else Rig(), args.devices)


if __name__ == "__main__":
    sys.exit(main())
