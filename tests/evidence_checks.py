"""What evidence on a leak of the zoo must say: the true line, a path with the holder's words, the cause."""

from __future__ import annotations

from collections.abc import Mapping

from evidence_runs import LeakRun
from tidegauge.core.evidence.brief import Confidence, EvidenceCause

CAUSES: Mapping[str, EvidenceCause] = {
    "outputs_list": EvidenceCause.PYTHON_CONTAINER,
    "outputs_kept": EvidenceCause.PYTHON_CONTAINER,
    "sample_beside_lengths": EvidenceCause.PYTHON_CONTAINER,
    "autocast_cache": EvidenceCause.AUTOCAST_CACHE,
    "ddp_buckets": EvidenceCause.DDP_BUCKETS,
    "dict_by_step": EvidenceCause.PYTHON_CONTAINER,
    "graphs_in_list": EvidenceCause.RETAINED_GRAPH,
    "saved_inputs": EvidenceCause.RETAINED_GRAPH,
    "total_loss": EvidenceCause.RETAINED_GRAPH,
    "retain_graph": EvidenceCause.RETAINED_GRAPH,
    "closure": EvidenceCause.CLOSURE,
    "forward_hook": EvidenceCause.HOOK,
    "forward_hook_with_name": EvidenceCause.HOOK,
    "tensor_hook": EvidenceCause.HOOK,
    "kept_exception": EvidenceCause.EXCEPTION_FRAME,
    "cycle": EvidenceCause.CYCLE,
    "class_attribute": EvidenceCause.PYTHON_CONTAINER,
    "lru_cache": EvidenceCause.PYTHON_CONTAINER,
    "trainers_deque": EvidenceCause.PYTHON_CONTAINER,
    "other_thread": EvidenceCause.PYTHON_CONTAINER,
    "generator": EvidenceCause.PYTHON_CONTAINER,
    "optimizer_rebuilt": EvidenceCause.OPTIMIZER_REBUILT,
    "function_context": EvidenceCause.RETAINED_GRAPH,
    "full_queue": EvidenceCause.PYTHON_CONTAINER,
    "library_state": EvidenceCause.PYTHON_CONTAINER,
}
"""By the leak's name in ``leak_zoo``. Not ``buffer_grows``: its one tensor is made anew in each step, and that of the
late snapshot may be gone when holders are looked for."""


def check_leak(leak: LeakRun, name: str) -> None:
    """Fails with what was said where it is not the truth."""
    truth, run = leak
    assert run.evidence.problem is None
    assert run.comparison.grown_bytes > 0
    if truth.line is not None:
        assert truth.line in run.lines("leak_zoo.py"), run.comparison.lines[:3]
    search = run.evidence.search
    assert search is not None
    assert search.problem is None
    assert [words for words in truth.holder if words not in run.path] == [], run.path
    assert (run.cause.cause, run.cause.confidence) == (CAUSES[name], Confidence.NAMED), run.cause
    assert run.cause.advice
