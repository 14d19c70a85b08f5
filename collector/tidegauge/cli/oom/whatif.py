"""What other allocator settings would have done, where a snapshot has a history: for ``tidegauge oom``."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.analysis.oom.snapshot import OomSnapshot
from tidegauge.analysis.whatif.results import WhatIf
from tidegauge.cli.output import progress


class TriedSettings(NamedTuple):
    """The outcome of what-if, for people and for programs."""

    result: Optional[WhatIf]
    """``None`` where the history cannot be replayed."""
    findings: tuple[str, ...]
    export_line: Optional[str]
    trials: tuple[dict[str, object], ...]


def try_settings(snapshot: OomSnapshot, cap_bytes: Optional[int], torch_version: Optional[str]) -> TriedSettings:
    """Replay the history of ``snapshot``. What stands in the way is told as the only finding."""
    # Loads what replays, which the other answers do not need.
    from tidegauge.analysis.oom.history import history_of
    from tidegauge.analysis.whatif.search import whatif
    from tidegauge.analysis.whatif.words import export_line, findings
    from tidegauge.cli.offline.whatif_answer import as_json

    try:
        trace = history_of(snapshot, torch_version=torch_version, cap_bytes=cap_bytes)
        with progress("oom") as say:
            result = whatif(trace, on_progress=say)
    except ValueError as error:
        return TriedSettings(None, (f"This history cannot be replayed: {error}",), None, ())
    return TriedSettings(
        result, tuple(findings(result)), export_line(result), tuple(as_json(trial, result) for trial in result.trials)
    )
