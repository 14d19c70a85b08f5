"""Logs: whose message it is, at which line of whose code, and what only looks like one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.analysis.oom.forms import START
from tidegauge.analysis.oom.log import (
    KINDS,
    LINES_BEFORE,
    MAPPING_FAILED,
    MAX_LINE_CHARS,
    MAX_MESSAGES,
    MAX_MESSAGES_PER_LINE,
    OomLog,
    may_tell,
    read_log,
    recognise,
)

DATA = Path(__file__).parents[2] / "data" / "oom"
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 8.00 GiB "
    "of which 52.00 MiB is free. Of the allocated memory 7.45 GiB is allocated by PyTorch, and 13.49 MiB is reserved "
    "by PyTorch but unallocated."
)


def log_of(*lines: str) -> OomLog:
    return read_log(line + "\n" for line in lines)


def recorded(name: str) -> OomLog:
    return log_of(*(DATA / f"{name}.txt").read_text().splitlines())


def traceback(filename: str, line: int, function: str = "main", code: str = "x = model(batch)") -> list[str]:
    return [
        "Traceback (most recent call last):",
        f'  File "{filename}", line {line}, in {function}',
        f"    {code}",
        "        ^^^^^^^^^^^^",
    ]


def test_the_line_that_asked_is_the_innermost_that_is_not_a_librarys() -> None:
    log = recorded("needed")
    (found,) = log.found
    assert found.place is not None
    assert (found.place.filename, found.place.line, found.place.function) == ("/home/ada/lm/train.py", 18, "tensor")
    assert found.place.code == 'return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")'
    assert log.refused_mallocs == 2


def test_a_traceback_through_libraries_names_the_last_line_before_them() -> None:
    library = traceback("/home/ada/venv/lib/python3.11/site-packages/torch/nn/functional.py", 5, "linear")[1:]
    (found,) = log_of(*traceback("train.py", 7), *library, MESSAGE).found
    assert found.place is not None
    assert (found.place.filename, found.place.line) == ("train.py", 7)


def test_each_rank_has_its_own_traceback_however_they_are_mixed() -> None:
    first, second = traceback("/home/ada/a.py", 1), traceback("/home/ada/b.py", 2)
    lines = []
    for one, two in zip([*first, MESSAGE], [*second, MESSAGE]):
        lines += [f"[rank3]: {one}", f"[rank0]: {two}"]
    log = log_of(*lines)
    assert [(found.rank, found.place and found.place.filename) for found in log.found] == [
        (3, "/home/ada/a.py"),
        (0, "/home/ada/b.py"),
    ]


def test_the_log_of_torchrun_names_the_rank() -> None:
    (found,) = recorded("two_ranks").found
    assert (found.rank, found.text.device) == (1, 1)
    assert found.place is not None
    assert found.place.line == 18


@pytest.mark.parametrize(
    ("mark", "rank"),
    [
        ("[rank12]: ", 12),
        ("[default3]:", 3),
        ("5: ", 5),
        ("2026-11-21 19:30:00,123 [rank4]: ", 4),
        ("\x1b[36m(RayTrainWorker pid=4242, ip=10.0.0.7)\x1b[0m ", None),
        ("", None),
    ],
)
def test_marks_of_launchers_are_understood(mark: str, rank: int | None) -> None:
    (found,) = log_of(*(mark + line for line in [*traceback("train.py", 7), MESSAGE])).found
    assert found.rank == rank
    assert found.place is not None
    assert found.place.line == 7


def test_carriage_returns_and_colours_do_not_matter() -> None:
    lines = [f"\x1b[31m{line}\x1b[0m\r" for line in [*traceback("train.py", 7), "99%|####|\r" + MESSAGE]]
    (found,) = log_of(*lines).found
    assert found.place is not None


def test_a_message_in_json_is_read_with_its_traceback() -> None:
    text = "\n".join([*traceback("train.py", 7), MESSAGE])
    (found,) = log_of(json.dumps({"level": "ERROR", "message": text})).found
    assert found.place is not None
    assert (found.place.filename, found.place.line) == ("train.py", 7)
    assert found.text.unused is not None


def test_the_message_of_malloc_async_goes_over_several_lines() -> None:
    (found,) = recorded("malloc_async").found
    assert found.text.allocated is not None


def test_a_refused_mapping_says_that_expandable_segments_are_on() -> None:
    assert [found.expandable for found in recorded("expandable").found] == [True]
    assert [found.expandable for found in recorded("needed").found] == [False]


def test_refused_calls_that_the_allocator_got_over_are_no_error() -> None:
    lines = [line for line in (DATA / "needed.txt").read_text().splitlines() if line.startswith("[W")]
    log = log_of(*lines)
    assert (log.found, log.refused_mallocs) == ([], 2)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("ncclUnhandledCudaError: Call to CUDA function failed. NCCL Last error: Cuda failure 'out of memory'", "nccl"),
        ("node1:42:99 [0] include/alloc.h:99 NCCL WARN Cuda failure 2 'out of memory'", "nccl"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "library"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "library"),
        ("RuntimeError: CUDA error: out of memory", "driver"),
        ("torch.AcceleratorError: CUDA error: out of memory", "driver"),
        ("RuntimeError: CUDA driver error: out of memory", "driver_mapping"),
        ("RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "xpu_driver"),
        ("UR error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)", "xpu_driver"),
        ('RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "CUDACachingAllocator.cpp":1407', "text_lost"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
         "tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)", "cpu_allocator"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "ray"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.",
         "killed"),
        ("[12345.6] Out of memory: Killed process 4242 (python) total-vm:1234kB", "killed"),
        ("    Reason:       OOMKilled", "killed"),
        ("RuntimeError: DataLoader worker is killed by signal: Bus error. It is possible that dataloader's workers are "
         "out of shared memory. ... insufficient shared memory (shm)", "shared_memory"),
        ("RuntimeError: DataLoader worker (pid 13) is killed by signal: Bus error. ", "shared_memory"),
        ("[1] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-K (size 9)",
         "shared_memory"),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: Success (0)", "shared_memory"),
        ("RuntimeError: unable to open shared memory object </torch_1_2> in read-write mode: Too many open files (24)",
         "open_files"),
        ("RuntimeError: unable to mmap 29764 bytes from file </torch_1_2_3>: Cannot allocate memory (12)", "mappings"),
        ("RuntimeError: DataLoader worker (pid 13) is killed by signal: Killed. ", "worker_killed"),
        ("E1121 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1", "sigkill"),
        ("  exitcode  : -9 (pid: 11666)", "sigkill"),
        ("  traceback : Signal 9 (SIGKILL) received by PID 11666", "sigkill"),
        ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", "sigkill"),
        ("job.sh: line 28:  8156 Killed                  python3 main.py", "sigkill"),
        ("      Exit Code:    137", "sigkill"),
        ("command terminated with exit code 137", "sigkill"),
        ("srun: error: n1: tasks 1-3: Out Of Memory", "killed"),
        ("slurmstepd: error: Exceeded job memory limit at some point.", "killed"),
        ("Message: The node was low on resource: memory. Threshold quantity: 100Mi, available: 95Mi.", "evicted"),
        ("RuntimeError: MPS backend out of memory (MPS allocated: 5.56 GB, max allowed: 6.80 GB).", "mps"),
        ("RuntimeError: HIP error: out of memory", "driver"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 58.0 GiB for an array", "host"),
        ("MemoryError", "host"),
        ("OSError: [Errno 12] Cannot allocate memory", "host"),
    ],
)  # fmt: skip
def test_other_memory_is_recognised(line: str, kind: str) -> None:
    (seen,) = log_of(line).elsewhere
    assert seen.what.kind == kind
    assert seen.what.advice


@pytest.mark.parametrize(
    "pattern", [*(kind.pattern for kind in KINDS), MAPPING_FAILED, START], ids=lambda pattern: pattern.pattern[:20]
)
@given(data=st.data())
@settings(max_examples=25)
def test_no_line_that_a_pattern_fits_is_passed_over(pattern: re.Pattern[str], data: st.DataObject) -> None:
    assert may_tell(data.draw(st.from_regex(pattern)))


def test_an_ordinary_line_is_nothing() -> None:
    for line in (
        "epoch 3, loss 2.1",
        "allocated 3 GiB",
        "out of memory safety margin: 2 GiB",
        "RuntimeError: DataLoader worker (pid 13) is killed by signal: Terminated. ",
        "RuntimeError: DataLoader worker (pid(s) 13) exited unexpectedly",
        "failed (exitcode: -11) local_rank: 0 (pid: 7)",
        "failed (exitcode: 1) local_rank: 0 (pid: 7)",
        "[INFO] [launch.py:315:sigkill_handler] Killing subprocess 3353707",
        "Killed 3 stale connections",
        "out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
        "Message: The node was low on resource: ephemeral-storage.",
        "NCCL WARN Cuda failure 1 'invalid argument'",
    ):
        assert recognise(line) is None


def test_a_symptom_gives_way_to_what_explains_it() -> None:
    worker = "RuntimeError: DataLoader worker (pid 629) is killed by signal: Killed. "
    kernel = "Memory cgroup out of memory: Killed process 629 (python) total-vm:14119556kB"
    log = log_of(worker, "Killed", kernel)
    assert [seen.what.kind for seen in log.elsewhere] == ["worker_killed", "sigkill", "killed"]
    assert log.cause_elsewhere is log.elsewhere[2]
    assert log_of(worker, "Killed").cause_elsewhere == log.elsewhere[0]
    assert log_of("epoch 1").cause_elsewhere is None


@pytest.mark.parametrize(
    "word",
    [
        "NCCL",
        "unable to open",
        "unable to open shared memory object /torch_",
        "posix_memalign(",
        "numpy.",
        " ",
        "\t",
        "Cuda failure ",
        "(pid=1 ",
        "\x1b[",
        "\x1b]",
        'File "',
    ],
)
def test_a_long_line_of_one_word_takes_no_minutes(word: str) -> None:
    line = word * (MAX_LINE_CHARS // len(word))
    log = log_of(line, line)
    assert log.lines == 2
    assert not log.found
    assert not log.elsewhere


def test_every_kind_of_other_memory_has_a_name_of_its_own() -> None:
    assert len({kind.kind for kind in KINDS}) == len(KINDS)


def test_oom_log_keeps_the_first_error_of_each_other_kind() -> None:
    log = log_of("MemoryError", "CUDA error: out of memory", "MemoryError: again")
    assert [(seen.what.kind, seen.line_number) for seen in log.elsewhere] == [("host", 1), ("driver", 2)]


def test_a_long_log_is_read_without_being_kept() -> None:
    lines_given = 0

    def lines() -> Iterator[str]:
        nonlocal lines_given
        yield from (line + "\n" for line in traceback("train.py", 7))
        for number in range(3 * LINES_BEFORE):
            lines_given += 1
            yield f"step {number}\n"
        yield MESSAGE

    log = read_log(lines())
    (found,) = log.found
    assert found.line_number == log.lines == lines_given + 5
    assert found.place is None  # its traceback would be too far above


def test_a_line_of_nothing_but_messages_is_counted_and_takes_no_minutes() -> None:
    crowded = "CUDA out of memory. Tried to allocate 2.00 GiB. " * 1_000
    log = log_of(*[crowded] * 3)
    assert (len(log.found), log.not_kept) == (3 * MAX_MESSAGES_PER_LINE, 3 * (1_000 - MAX_MESSAGES_PER_LINE))
    log = log_of(*[MESSAGE] * (MAX_MESSAGES - 1), crowded)
    assert (len(log.found), log.not_kept) == (MAX_MESSAGES, 999)


def test_more_messages_than_anybody_reads_are_counted() -> None:
    log = log_of(*[MESSAGE] * (MAX_MESSAGES + 5))
    assert (len(log.found), log.not_kept) == (MAX_MESSAGES, 5)
