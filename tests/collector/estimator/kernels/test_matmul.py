"""cuBLAS keeps a workspace for each thread that computes."""

from __future__ import annotations

from dataclasses import replace

from kernel_calls import call
from tidegauge.estimator.gpus import H200
from tidegauge.estimator.kernels import scratch
from tidegauge.estimator.kernels.calls import Scratch

MIB = 1 << 20


def test_a_product_has_its_thread_keep_a_workspace() -> None:
    found = scratch(call("mm.default", "f32[1024,768]", "f32[768,2304]"))
    assert [workspace.size_bytes for workspace in found.keep] == [32 * MIB]
    assert found == Scratch(keep=found.keep)


def test_autograd_has_workspaces_of_its_own() -> None:
    forward, backward = (
        scratch(call("bmm.default", "f32[8,64,64]", "f32[8,64,64]", backward=backward)) for backward in (False, True)
    )
    assert {workspace.key for workspace in forward.keep}.isdisjoint(workspace.key for workspace in backward.keep)


def test_matmul_uses_cublaslt_only_with_a_bias_per_column() -> None:
    columns = scratch(call("addmm.default", "f32[2304]", "f32[1024,768]", "f32[768,2304]"))
    assert [workspace.size_bytes for workspace in columns.keep] == [32 * MIB, MIB]
    for bias in ("f32[1024,2304]", "f32[2304]@(2)"):
        assert len(scratch(call("addmm.default", bias, "f32[1024,768]", "f32[768,2304]")).keep) == 1


def test_older_gpus_have_smaller_workspaces() -> None:
    a100 = replace(H200, capability=(8, 0))
    found = scratch(call("mm.default", "f32[1024,768]", "f32[768,2304]", target=a100))
    assert [workspace.size_bytes for workspace in found.keep] == [8_519_680]
