"""Former names of modules, which reports of agents of earlier releases still use.

Ray pickles the values of a report, and a pickle names classes by their modules. Nodes are upgraded one by one, so an
older agent reports to a newer coordinator for a while.
"""

from __future__ import annotations

import sys
from importlib import import_module

FORMER = {
    "tidegauge.core.evidence_brief": "tidegauge.core.evidence.brief",
    "tidegauge.core.growth_bound": "tidegauge.core.evidence.growth_bound",
    "tidegauge.core.kubernetes": "tidegauge.core.jobs.kubernetes",
    "tidegauge.core.launches": "tidegauge.core.jobs.launches",
    "tidegauge.core.owners": "tidegauge.core.evidence.owners",
    "tidegauge.core.rank_evidence": "tidegauge.core.evidence.rank_evidence",
    "tidegauge.core.slurm": "tidegauge.core.jobs.slurm",
}
"""Of the modules that moved, those of which a report may hold values (``NodeSummary``)."""


def accept_former_addresses() -> None:
    for former, today in FORMER.items():
        sys.modules.setdefault(former, import_module(today))
