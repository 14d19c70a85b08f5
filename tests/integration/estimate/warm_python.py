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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


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

    def told(self, script: Path, *arguments: object, out: Path) -> Any:
        """The JSON that the script writes to the path that is its last argument."""
        done = self.run(script, *arguments, out)
        assert done.code == 0, done.errors[-3000:]
        return json.loads(out.read_text())


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
            with open(request["errors"], "w") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            sys.argv[:] = request["argv"]
            runpy.run_path(sys.argv[0], run_name="__main__")
            return  # the interpreter ends as it would after the script alone, or with what the script raised
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    sys.path[:0] = sys.argv[2:]
    serve(json.loads(sys.argv[1]))
