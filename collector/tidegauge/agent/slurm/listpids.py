"""Runs ``scontrol listpids``, see scontrol(1): the Slurm job and step of each process on this node, as slurmd says.

The command asks the node's slurmstepds over their sockets. It needs neither root nor slurmctld, and takes 12 ms. Its
text is the same from Slurm 22.05 to 26.05. This module keeps no state; ``agent.slurm.node`` does.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, NamedTuple

from tidegauge.core.ids import JobId
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.text import one_line

if TYPE_CHECKING:  # it needs pydantic, and `tidegauge run` judges without
    from tidegauge.settings import Settings

TIMEOUT_S = 5.0
"""A node under heavy load takes a second; a slurmstepd that hangs would hold the command up for ever."""
MAX_OUTPUT_BYTES = 8 << 20
"""Some 180,000 processes."""

_NO_STEPS = re.compile(r"No job steps exist on this node\.|Job step \S+ does not exist on this node\.")
"""On stderr with exit status 1 although nothing failed: the node is idle, or a step ended meanwhile."""
_NUMBER = re.compile(r"[1-9][0-9]{0,9}")
_STEP = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._]{0,31}")
_COLUMNS = ("PID", "JOBID", "STEPID")


class StepList(NamedTuple):
    """One answer of the command."""

    places: Mapping[int, SlurmPlace]
    """Unambiguous places by host pid."""
    problem: str | None = None
    """The reason why processes may be missing; ``None``: the list is complete."""


def parse_listpids(text: str) -> dict[int, SlurmPlace]:
    """The places in the command's table, without invalid lines and pids of two jobs.

    A process in two steps of one job (a shell that pam_slurm_adopt took in) is in the one that is not ``extern``.
    """
    lines = text.splitlines()
    names = lines[0].split() if lines else []
    if not all(name in names for name in _COLUMNS):
        return {}
    columns = [names.index(name) for name in _COLUMNS]
    found: dict[int, SlurmPlace] = {}
    doubtful: set[int] = set()
    for line in lines[1:]:
        words = line.split()
        if len(words) <= max(columns):
            continue
        pid_text, job_id, step_id = (words[column] for column in columns)
        if not (_NUMBER.fullmatch(pid_text) and _NUMBER.fullmatch(job_id) and _STEP.fullmatch(step_id)):
            continue
        pid, place = int(pid_text), SlurmPlace(JobId(job_id), step_id)
        before = found.get(pid)
        if before is not None and before.job_id != place.job_id:
            doubtful.add(pid)
        if before is None or before.step_id == "extern":
            found[pid] = place
    return {pid: place for pid, place in found.items() if pid not in doubtful}


class ListPids:
    """Runs the command, for ``TIMEOUT_S`` at most. Never raises: ``StepList.problem`` reports a failure."""

    def __init__(self, program: str, environ: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> None:
        self._command = (program, "listpids")
        self._environ = dict(environ)
        self._timeout_s = timeout_s

    def __call__(self) -> StepList:
        try:
            status, out, err = _run(self._command, self._environ, timeout_s=self._timeout_s)
        except TimeoutError:
            return StepList({}, f"scontrol listpids did not finish within {self._timeout_s:g} s")
        except OSError as error:
            return StepList({}, f"{self._command[0]} cannot be run: {error.strerror or error}")
        if len(out) > MAX_OUTPUT_BYTES:
            # The last line may be cut in the middle of a number.
            whole = out[: out.rindex(b"\n") + 1] if b"\n" in out else b""
            return StepList(_parse(whole), f"scontrol listpids wrote more than {MAX_OUTPUT_BYTES} bytes")
        return StepList(_parse(out), None if status == 0 else _problem(status, err))


def find_scontrol(settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Path of ``scontrol``; ``None`` where there is none."""
    if settings.slurm_bin_dir is not None:
        program = settings.slurm_bin_dir / "scontrol"
        return str(program) if os.access(program, os.X_OK) and not program.is_dir() else None
    return shutil.which("scontrol", path=environ.get("PATH", os.defpath))


def scontrol_environ(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for ``scontrol``: our own and what the admin set.

    ``SLURM_CLUSTERS`` would send it to slurmdbd and another cluster; ``listpids`` takes the node's name, where several
    slurmd share a host, from ``SLURMD_NODENAME``.
    """
    result = {name: value for name, value in environ.items() if name != "SLURM_CLUSTERS"}
    if settings.slurm_conf is not None:
        result["SLURM_CONF"] = str(settings.slurm_conf.absolute())
    if settings.slurm_node_name is not None:
        result["SLURMD_NODENAME"] = settings.slurm_node_name
    return result


def _parse(out: bytes) -> dict[int, SlurmPlace]:
    return parse_listpids(out.decode(errors="replace"))


def _problem(status: int, err: bytes) -> str | None:
    said = [line.strip() for line in err.decode(errors="replace").splitlines() if line.strip()]
    unexpected = [line for line in said if not _NO_STEPS.fullmatch(line)]
    if said and not unexpected:
        return None
    first = (unexpected or [f"exit status {status}"])[0]
    return f"scontrol listpids: {one_line(first, 300, replacement=' ')}"


def _run(command: tuple[str, ...], environ: Mapping[str, str], *, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Exit status, stdout and stderr, each cut soon after ``MAX_OUTPUT_BYTES``. Raises ``TimeoutError``, ``OSError``.

    ``subprocess.run`` would keep all output, however much there is.
    """
    deadline_s = time.monotonic() + timeout_s
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environ)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            out, err = _read(process.stdout, process.stderr, lambda: deadline_s - time.monotonic())
            if max(len(out), len(err)) > MAX_OUTPUT_BYTES:
                process.kill()
            return process.wait(max(0.0, deadline_s - time.monotonic())), out, err
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            process.kill()


def _read(stdout: IO[bytes], stderr: IO[bytes], left_s: Callable[[], float]) -> tuple[bytes, bytes]:
    """Both until their end, or until one exceeds ``MAX_OUTPUT_BYTES``. Raises ``TimeoutError``."""
    texts = {stdout: bytearray(), stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for pipe in texts:
            selector.register(pipe, selectors.EVENT_READ, pipe)
        while selector.get_map() and all(len(text) <= MAX_OUTPUT_BYTES for text in texts.values()):
            ready = selector.select(max(0.0, left_s()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                texts[key.data] += data
                if not data:
                    selector.unregister(key.fileobj)
    return bytes(texts[stdout]), bytes(texts[stderr])
