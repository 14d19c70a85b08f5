"""PyTorch's caching allocator as a model: recorded events in, every address and every figure out.

No file is read here, and nothing of torch is needed.
"""

from __future__ import annotations

from tidegauge.core.allocator.beginning import rounded_bytes
from tidegauge.core.allocator.compiled import is_ready
from tidegauge.core.allocator.conf import parse_settings, settings_conf, tie_break_of
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import (
    MOST_FAILED,
    AddressMismatch,
    FailedRequest,
    MemoryCurve,
    Replay,
)
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak
from tidegauge.core.allocator.trace import (
    Action,
    BlockState,
    Frame,
    KnownBlock,
    KnownSegment,
    Stack,
    Trace,
    TraceError,
)

__all__ = [
    "MOST_FAILED", "Action", "AddressMismatch", "AllocatorSettings", "BlockState", "FailedRequest", "Frame",
    "KnownBlock", "KnownSegment", "MemoryCurve", "Replay", "Stack", "TieBreak", "Trace", "TraceError", "is_ready",
    "parse_settings", "replay", "rounded_bytes", "settings_conf", "tie_break_of",
]  # fmt: skip
