"""Compiles the allocator's model, once for each change of its sources, so that no test's time limit meets that."""

from __future__ import annotations

from tidegauge.analysis.compiling import compile_model
from tidegauge.core.allocator.readiness import is_ready

if not is_ready():
    print("compiling the allocator's model (half a minute, once) …", flush=True)
    compile_model()
