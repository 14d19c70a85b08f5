"""What is seen in a job's ranks."""

from __future__ import annotations

from sample_views import GIB, LEAK, job_view, rank_summary
from tidegauge.core.host_memory import HostProcess
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.sightings import see_growth
from tidegauge.core.verdicts import Severity, Signal

OWN = HostProcess(ProcessId(1001, 5), "python", 2 * GIB, 1)
WORKER = HostProcess(ProcessId(1042, 7), "DataLoader worker", GIB, GIB // 2)


def test_where_host_memory_grows_the_process_that_grew_most_is_seen() -> None:
    rank = rank_summary(1, verdict=LEAK._replace(signal=Signal.HOST), host_processes=(OWN, WORKER))
    [finding] = see_growth(job_view(ranks=(rank,)), IncidentCause.HOST_MEMORY, Severity.WARNING).sure
    assert finding.host_process == WORKER


def test_a_worker_that_was_just_born_is_not_said_to_grow_most() -> None:
    """What its rank leaks is shared by all that are forked from it: each holds its part, and has not grown."""
    rank_itself, born = OWN._replace(grown_bytes=-GIB), WORKER._replace(grown_bytes=4096)
    rank = rank_summary(1, verdict=LEAK._replace(signal=Signal.HOST), host_processes=(rank_itself, born))
    [finding] = see_growth(job_view(ranks=(rank,)), IncidentCause.HOST_MEMORY, Severity.WARNING).sure
    assert finding.host_process is None


def test_where_the_cards_memory_grows_no_process_of_the_host_is() -> None:
    rank = rank_summary(1, verdict=LEAK, host_processes=(OWN, WORKER))
    [finding] = see_growth(job_view(ranks=(rank,)), IncidentCause.LEAK, Severity.WARNING).sure
    assert finding.host_process is None
