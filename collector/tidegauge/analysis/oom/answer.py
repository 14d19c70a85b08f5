"""Explains an out-of-memory error from its text, a snapshot, or both: kind, sentence and advice. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Optional

from tidegauge.analysis.oom.forms import OomText, OomTextForm, figures_of, neighbours
from tidegauge.analysis.oom.log import FoundElsewhere, FoundOom, OomLog
from tidegauge.analysis.oom.snapshot import OomSnapshot
from tidegauge.analysis.whatif.results import WhatIf, titled
from tidegauge.analysis.whatif.words import export_line, line_for
from tidegauge.core.alloc_conf import parse_alloc_conf
from tidegauge.core.evidence.held_memory import HeldMemory, longer_copy_words
from tidegauge.core.oom import OomKind, OomVerdict, explain_case, words
from tidegauge.core.oom.case import OomCase
from tidegauge.core.units import format_bytes

REJECTED = "rejected"
UNKNOWN = "unknown"
RECORD_STACKS = 'torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=20000)'
"""What names the owners, and lets what-if replay the last steps: 20,000 events are written in some 25 ms."""

ESTIMATE = "What a smaller batch, checkpointing or sharding would save, without a GPU: tidegauge estimate."
WHATIF = "What each setting would do"
OWN_SETTINGS = (
    "If settings are set already, in PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF or (ROCm) PYTORCH_HIP_ALLOC_CONF, "
    "add it to them there: where several are set, PYTORCH_CUDA_ALLOC_CONF wins."
)
_XPU_ALLOCATION_BYTES = 4 << 30
SETTINGS = ("export ", "unset ", OWN_SETTINGS, WHATIF)
"""How advice on settings begins."""


@dataclass(frozen=True)
class OomAnswer:
    """The explanation. Bytes and lines for programs, sentences for people."""

    kind: str
    """A value of ``core.oom.OomKind``, of ``oom_elsewhere.KINDS``, ``rejected`` or ``unknown``."""
    retry: Optional[bool]
    """Whether trying again, changed only as ``advice`` says first, would get further; ``None``: not known."""
    sentence: str
    advice: tuple[str, ...]
    """What to do, the first thing first."""
    case: Optional[OomCase] = None
    found: Optional[FoundOom] = None
    held: Optional[HeldMemory] = None
    device: Optional[int] = None
    reason: Optional[str] = None
    """The part of ``sentence`` before the answer to whether trying again helps, where there is one."""


def explain_text(
    found: FoundOom, snapshot: Optional[OomSnapshot] = None, *, torch_version: Optional[str] = None
) -> OomAnswer:
    """Explain one message in a log; ``snapshot`` was taken at it or after it, of the same process."""
    text = found.text
    held = None if snapshot is None else snapshot.held
    version = torch_version or (None if snapshot is None else snapshot.torch_version) or text.at_least
    if text.backend == "HIP" and "rocm" not in (version or ""):
        version = f"{version or ''}+rocm"
    case = figures_of(text, expandable=found.expandable)
    if case is None or text.form is OomTextForm.REJECTED:
        return _of_little(found, held)
    if snapshot is not None:
        case = _with(case, snapshot)
    today = None if snapshot is None else snapshot.trace.alloc_conf
    return _explained(case, found, held, text.device, version, today)


def explain_snapshot(snapshot: OomSnapshot, *, torch_version: Optional[str] = None) -> OomAnswer:
    """Explain a snapshot alone."""
    version = torch_version or snapshot.torch_version
    if snapshot.case is not None:
        today = snapshot.trace.alloc_conf
        return _explained(snapshot.case, None, snapshot.held, snapshot.device, version, today)
    held = snapshot.held
    why = "no request fails in its history" if len(snapshot.trace) else "it has no history"
    sentence = (
        f"{format_bytes(snapshot.reserved_bytes)} were reserved on device {snapshot.device}, "
        f"{format_bytes(held.live_bytes)} of them by tensors. What was refused is not in this snapshot: {why}. "
        "Give the error's text as well, and both are explained together."
    )
    return OomAnswer(UNKNOWN, None, sentence, tuple(_stacks_advice(held)), held=held, device=snapshot.device)


def explain_elsewhere(seen: FoundElsewhere, log: OomLog) -> OomAnswer:
    """Explain another kind of out-of-memory line of ``log``."""
    what = seen.what
    of_whom = "; PyTorch's allocator did not fail" if what.beside_allocator else ""
    return OomAnswer(what.kind, None, f"{elsewhere_words(seen, log)}{of_whom}.", (what.advice,))


def elsewhere_words(seen: FoundElsewhere, log: OomLog) -> str:
    """The memory that ran out, as a clause; of the OOM killer with whom it killed, which may be a neighbour's."""
    if seen.what.kind != "killed" or log.victim is None:
        return seen.what.what
    pid, name = log.victim
    whose = (
        "which other lines of the log name as well"
        if pid in log.pids
        else "which no other line of the log names: it is not known to be the job's"
    )
    return f"{seen.what.what}. It killed {name} (pid {pid}), {whose}"


def _of_little(found: FoundOom, held: Optional[HeldMemory]) -> OomAnswer:
    """Explain a message without the figures that tell kinds apart."""
    text = found.text
    size = "" if text.wanted is None else f" of about {format_bytes(text.wanted.likely_bytes)}"
    what = f"An allocation{size}"
    if text.form is OomTextForm.UNNAMED_SIZE:
        kind, retry = OomKind.TOO_BIG.value, False
        sentence = "More than an exbibyte was asked for in one request, which no GPU will ever have."
        advice = "Look at the shape: a size that overflowed, a product of two sizes, uninitialised lengths."
    elif text.form is OomTextForm.REJECTED:
        kind, retry = REJECTED, True
        sentence = (
            f"{what} was refused beforehand, because throw_on_cudamalloc_oom:True is set: the allocator did not "
            "release its cache, which might have been enough."
        )
        advice = "Take throw_on_cudamalloc_oom out of the allocator's settings, or call torch.cuda.empty_cache() first."
    else:
        kind, retry = UNKNOWN, None
        sentence = f"{what} failed; this text lacks the figures that say why."
        advice = "Give the whole message, from 'CUDA out of memory' to 'See documentation'."
    return OomAnswer(kind, retry, sentence, (advice,), found=found, held=held, device=text.device)


def _explained(
    case: OomCase,
    found: Optional[FoundOom],
    held: Optional[HeldMemory],
    device: Optional[int],
    version: Optional[str],
    today: Optional[str],
) -> OomAnswer:
    """``today``: the allocator's settings, where they are known."""
    verdict = explain_case(case)
    text = None if found is None else found.text
    advice = (
        *_advice(verdict, text, version, today),
        *_besides(verdict, case),
        *([] if held is None else _stacks_advice(held)),
    )
    copied = None if held is None else longer_copy_words(held, case.wanted_bytes)
    advice = advice if copied is None else (copied, *advice)
    return OomAnswer(
        verdict.kind.value, verdict.retry, verdict.sentence, advice, case, found, held, device, verdict.reason
    )


def in_the_light_of(answer: OomAnswer, tried: WhatIf) -> OomAnswer:
    """``answer`` to fragmentation, corrected by what a replay of the history says of the settings."""
    if answer.kind != OomKind.FRAGMENTATION.value or answer.reason is None:
        return answer
    best, line = tried.recommended, export_line(tried)
    kept = tuple(advice for advice in answer.advice if not advice.startswith(SETTINGS))
    if best.replay.ooms or line is None:
        how = "no allocator setting survives a replay of its history; it needs less memory"
        return replace(
            answer, retry=False, sentence=f"{answer.reason}. {words.answer(False, how)}", advice=(ESTIMATE, *kept)
        )
    how = f"with the allocator setting {titled(best.alloc_conf)}, under which a replay of its history survives"
    return replace(answer, retry=True, sentence=f"{answer.reason}. {words.answer(True, how)}", advice=(line, *kept))


def _with(case: OomCase, snapshot: OomSnapshot) -> OomCase:
    held = snapshot.held
    largest = held.largest_for(case.wanted_bytes)
    return replace(
        case,
        largest_free_bytes=0 if largest is None else largest.size_bytes,
        expandable=case.expandable or bool(snapshot.case and snapshot.case.expandable),
    )


def _advice(
    verdict: OomVerdict, text: Optional[OomText], version: Optional[str], today: Optional[str]
) -> Iterator[str]:
    kind = verdict.kind
    if kind is OomKind.FRAGMENTATION and text is not None and text.old:
        yield "This PyTorch is 2.0 or older and does not know that setting: update. Until then: max_split_size_mb:512."
    elif kind is OomKind.FRAGMENTATION and verdict.retry:
        settings = {**parse_alloc_conf(today or ""), "expandable_segments": "True"}
        yield line_for(settings, today=today or "", torch_version=version)
        if today is None:
            yield OWN_SETTINGS
        yield f"{WHATIF}, on a recorded history: tidegauge whatif SNAPSHOT. Record: {RECORD_STACKS}"
    elif kind in (OomKind.ALLOCATED, OomKind.FRAGMENTATION):
        yield ESTIMATE
        yield "Whether it grew from step to step, which is a leak: tidegauge run --memory-profile -- COMMAND."
    elif kind is OomKind.TOO_BIG:
        yield "Look at the shape that is asked for: logits of a long batch, an attention matrix, an outer product."
    elif kind is OomKind.CAP:
        yield (
            "The cap comes from TIDEGAUGE_MEMORY_FRACTION (who started the job, or the cluster's policy), from "
            "TIDEGAUGE_SHARED_GPU_BYTES (what earlier runs needed), from "
            "torch.cuda.set_per_process_memory_fraction, or from the allocator setting per_process_memory_fraction."
        )
    elif kind is OomKind.ENOUGH_FREE:
        yield from _in_spite_of_room(text)
    elif kind is OomKind.NEIGHBOUR:
        yield from _neighbours(text)
    elif kind is OomKind.PRIVATE_POOLS:
        yield (
            "Graphs that never run at the same time can share a pool: torch.cuda.graph(graph, pool=other.pool()). "
            "A pool gives memory back only when its graphs and MemPool objects are gone: del those that are done."
        )
    elif kind is OomKind.OUTSIDE_ALLOCATOR:
        yield (
            "A CUDA context takes 0.3 to 0.6 GiB, a communicator of NCCL 0.5 to 1.6 GiB; JAX takes 75 % unless "
            "XLA_PYTHON_CLIENT_PREALLOCATE=false, TensorFlow all unless TF_FORCE_GPU_ALLOW_GROWTH=true."
        )


def _besides(verdict: OomVerdict, case: OomCase) -> Iterator[str]:
    """Memory that others hold is worth a word also where it was not the reason."""
    if verdict.kind is OomKind.FRAGMENTATION and case.private_free_bytes >= case.pieces_bytes:
        yield (
            f"Besides: {format_bytes(case.private_free_bytes)} lie in private pools (CUDA graphs, MemPool), which "
            "expandable_segments does not free. Let graphs share one pool."
        )
    if verdict.kind in (OomKind.OUTSIDE_ALLOCATOR, OomKind.NEIGHBOUR) and case.pieces_bytes >= case.wanted_bytes:
        yield f"PyTorch also held {format_bytes(case.pieces_bytes)} unused, in blocks too small for the request."
    elsewhere_bytes = case.others_bytes or case.unexplained_bytes or 0
    told = verdict.kind in (OomKind.FRAGMENTATION, OomKind.ALLOCATED, OomKind.CAP)
    if told and elsewhere_bytes > case.contexts_bytes:
        whose = "Other processes" if case.others_bytes else "Other processes, or this one outside PyTorch's allocator,"
        yield f"{whose} use about {format_bytes(elsewhere_bytes)} of this GPU. nvidia-smi shows which."


def _in_spite_of_room(text: Optional[OomText]) -> Iterator[str]:
    if text is not None and text.backend == "XPU" and (text.wanted or (0, 0))[1] > _XPU_ALLOCATION_BYTES:
        yield "Many Intel GPUs refuse a single allocation above 4 GiB: split the tensor."
    yield "Another process that comes and goes: watch nvidia-smi (rocm-smi, xpu-smi) while the program runs."
    yield (
        "Windows and WSL: GPU memory counts against the commit limit. Enlarge the page file (WSL: memory in "
        ".wslconfig), and try DataLoader(pin_memory=False)."
    )
    yield "Address space: ulimit -v. Driver failures: dmesg (Xid, amdgpu, xe)."


def _neighbours(text: Optional[OomText]) -> Iterator[str]:
    known = [] if text is None else [process for process in neighbours(text) if process.size is not None]
    for process in sorted(known, key=lambda process: process.size or (0, 0), reverse=True)[:3]:
        assert process.size is not None
        yield f"Process {process.pid} holds about {format_bytes(process.size.likely_bytes)}: ps -fp {process.pid}"
    yield (
        "Ranks of one job that meet on a GPU: each must call torch.cuda.set_device(LOCAL_RANK) before anything else "
        "touches CUDA. A process that should be gone: nvidia-smi names it."
    )


def _stacks_advice(held: HeldMemory) -> Iterator[str]:
    if held.without_stack_bytes > held.live_bytes // 2:
        yield f"To see which lines own the memory, record stacks before the model is built: {RECORD_STACKS}"
