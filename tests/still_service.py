"""What a coordinator service has around it in tests of its pages: an engine and a closed loop that change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegauge.cluster.ray_service.agent_reconciler import EngineError
from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.incidents.loop_figures import SlurmLabels
from tidegauge.core.job_records.record import JobEvent

OBSERVING = LoopStatus("observe", None)


class AwayEngine:
    """``agent_reconciler.Engine`` that adds and loses no node: the service answers from what agents have told."""

    def alive_nodes(self) -> tuple[EngineNode, ...]:
        raise EngineError("away")

    def ensure_agent(self, node_id: str) -> None:
        raise EngineError("away")

    hold_agent = end_agent = ensure_agent


@dataclass(frozen=True)
class StillLoop:
    """``action_loop.Loop`` that does nothing more; ``at`` is where it stands."""

    at: LoopStatus = OBSERVING

    def tick(self) -> None:
        pass

    def status(self) -> LoopStatus:
        return self.at

    def slurm_labels(self) -> Mapping[JobKey, SlurmLabels]:
        return {}

    def job_events(self) -> Sequence[JobEvent]:
        return ()

    def open_incidents(self) -> Sequence[Incident]:
        return ()
