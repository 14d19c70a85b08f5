"""Texts of other programs: a job's log with out-of-memory messages, ``scontrol listpids``, ``squeue --json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from fuzz.oracles import require
from fuzz.target import Target
from tidegauge.agent.slurm.listpids import parse_listpids
from tidegauge.analysis.oom.answer import explain_elsewhere, explain_text
from tidegauge.analysis.oom.forms import NOT_AVAILABLE_BYTES, SizeRange, parse_message
from tidegauge.analysis.oom.log import MAX_MESSAGES, read_log
from tidegauge_scheduler_hooks.slurm.jobs_json import read_jobs

DATA = Path(__file__).parents[2] / "data"
MAX_SEED_BYTES = 16_000


def oom(data: bytes) -> None:
    """Nothing is raised; every message found is explained; sizes have two ends in order."""
    text = data.decode(errors="replace")
    log = read_log(text.splitlines(keepends=True))
    require(len(log.found) <= MAX_MESSAGES, f"{len(log.found)} messages kept")
    require(log.lines == len(text.splitlines()), "lines are lost")
    for found in log.found[:20]:
        answer = explain_text(found)
        require(bool(answer.sentence.strip()) and bool(answer.kind), "an explanation without words")
        for field in dataclasses.fields(found.text):
            _sane(getattr(found.text, field.name))
    for seen in log.elsewhere:
        require(bool(explain_elsewhere(seen, log).sentence), "an explanation without words")
    message = parse_message(text)
    require(message is None or parse_message(text + "\nend") is not None, "more text hides a message")


def _sane(value: object) -> None:
    if isinstance(value, SizeRange):
        require(0 <= value.low_bytes <= value.high_bytes, f"a size that ends before it begins: {value}")
        require(value.low_bytes <= NOT_AVAILABLE_BYTES << 40, f"a size beyond all measure: {value}")


def listpids(data: bytes) -> None:
    places = parse_listpids(data.decode(errors="replace"))
    for pid, place in places.items():
        require(0 < pid < 10**10 and place.job_id.isascii() and place.job_id.isdigit(), f"{pid}: {place}")
        require(len(place.step_id) <= 32 and place.step_id.isprintable(), f"{pid}: {place}")


def squeue(data: bytes) -> None:
    """Only ``ValueError``; a job of which something would be done has a number, an owner and a state."""
    try:
        jobs = read_jobs(data)
    except ValueError:
        return
    for job in jobs:
        numbers = (job.job_id, job.uid, job.restarts, job.started_unix_s or 0, job.ends_unix_s or 0)
        require(job.job_id > 0 and all(number >= 0 for number in numbers), f"{job}")
        require(bool(job.states), "a job without a state")
        require(job.name is None or job.name.replace("_", "").isdigit(), f"a command's argument {job.name!r}")


def _logs() -> Iterable[bytes]:
    for path in sorted((DATA / "oom").glob("*.txt")):
        yield path.read_bytes()[:MAX_SEED_BYTES]


def _lists() -> Iterable[bytes]:
    yield b"PID    JOBID  STEPID LOCALID GLOBALID\n4711   12     0      0       0\n4712   12     extern -       -\n"
    yield b"PID JOBID STEPID\n1 2 batch\n1 3 batch\n"


def _queues() -> Iterable[bytes]:
    for path in sorted((DATA / "slurm").glob("*.json")):
        yield path.read_bytes()[:60_000]
    task = b'"array_job_id":{"set":true,"number":7}'
    yield b'{"jobs":[{"job_id":7,"user_id":1001,"restart_cnt":0,"job_state":["RUNNING"],%s}]}' % task


_OOM_WORDS = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. ",
    b"GPU 0 has a total capacity of 79.10 GiB ", b"of which 1.06 GiB is free. ",
    b"Process 4711 has 1.00 GiB memory in use. ", b"Traceback (most recent call last):\n",
    b'  File "/home/a/train.py", line 12, in step\n    loss.backward()\n', b"[rank1]: ", b"\x1b[31m", b"\r", b"\\n",
    b'\\"', b"Allocation on device 0 would exceed allowed memory. ", b"999999999999999.99 GiB",
    b"more than 1EB memory",
    b"Of the allocated memory 1.00 GiB is allocated by PyTorch, with 2.00 GiB allocated in private pools",
    b"\xe2\x94\x82 ", b"0.00 bytes", b"GPU 0; 10.00 GiB total capacity; 1.00 GiB already allocated; ", b"\xd9\xa3",
)  # fmt: skip
_QUEUE_WORDS = (
    b'"job_id":', b'"restart_cnt":', b'{"set":true,"infinite":false,"number":', b"1e999", b"9" * 400, b"NaN", b"-1",
    b"null", b'"job_state":"RUNNING"', b"[" * 600, b'"errors":[]', b'"array_task_id":', b"Infinity",
    b'"comment":"\\ud83d"', b'{"jobs":[',
)  # fmt: skip
OOM = Target(oom, lambda: list(_logs()), words=_OOM_WORDS, most_bytes=1 << 18)
LISTPIDS = Target(
    listpids, lambda: list(_lists()), words=(b"extern", b"\xd9\xa3", b"\xe2\x80\xa8", b"4294967296", b"+")
)
SQUEUE = Target(squeue, lambda: list(_queues()), words=_QUEUE_WORDS)
