"""A Python that has imported what takes seconds; scripts run in forks of it, as if each had been started alone.

Run as a program it is that Python: it reads one request a line, ``{"argv": […], "errors": FILE}``, and answers with the
exit status of the script.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Done(NamedTuple):
    """How a script ended, and what it said on stderr."""

    code: int
    errors: str


class WarmPython:
    """Made by ``warm_python``. One script at a time."""

    def __init__(self, server: subprocess.Popen[str], scratch: Path) -> None:
        self._server = server
        self._errors = scratch / "errors.txt"

    def run(self, script: Path, *arguments: object) -> Done:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        argv = [str(script), *map(str, arguments)]
        self._server.stdin.write(json.dumps({"argv": argv, "errors": str(self._errors)}) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer, "the warm Python has ended"
        return Done(int(answer), self._errors.read_text(errors="replace"))


@contextlib.contextmanager
def warm_python(
    python: str, scratch: Path, *, modules: Sequence[str], folders: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> Iterator[WarmPython]:  # fmt: skip
    """``modules`` are imported once, from ``folders`` too."""
    command = [python, __file__, json.dumps(list(modules)), *map(str, folders)]
    with subprocess.Popen(
        command, env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            yield WarmPython(server, scratch)
        finally:
            assert server.stdin is not None
            server.stdin.close()


def serve(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run(request["argv"], request["errors"]))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(argv: Sequence[str], errors: str) -> int:
    """As the interpreter would: the exit status, with the traceback of what it raised on stderr."""
    with open(errors, "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    sys.argv[:] = argv
    code = 0
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if not isinstance(ended.code, int | None):
            print(ended.code, file=sys.stderr)
    except BaseException:  # whatever the script raises is its own
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    sys.path[:0] = sys.argv[2:]
    serve(json.loads(sys.argv[1]))
