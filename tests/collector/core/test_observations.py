"""What is seen in a job's ranks."""

from __future__ import annotations

from dataclasses import replace

from sample_views import GIB, LEAK, job_view, rank_summary
from scheduler_values import finding, incident
from tidegauge.core.host_memory import HostProcess
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.observations import living_culprits, see_growth
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.verdicts import Severity, Signal

OWN = HostProcess(ProcessId(1001, 5), "python", 2 * GIB, 1)
WORKER = HostProcess(ProcessId(1042, 7), "DataLoader worker", GIB, GIB // 2)


def test_observation_of_host_growth_names_the_process_that_grew_most() -> None:
    rank = rank_summary(1, verdict=LEAK._replace(signal=Signal.HOST), host_processes=(OWN, WORKER))
    [finding] = see_growth(job_view(ranks=(rank,)), IncidentCause.HOST_MEMORY, Severity.WARNING).sure
    assert finding.host_process == WORKER


def test_a_worker_that_was_just_born_is_not_said_to_grow_most() -> None:
    """What its rank leaks is shared by all that are forked from it: each holds its part, and has not grown."""
    rank_itself, born = OWN._replace(grown_bytes=-GIB), WORKER._replace(grown_bytes=4096)
    rank = rank_summary(1, verdict=LEAK._replace(signal=Signal.HOST), host_processes=(rank_itself, born))
    [finding] = see_growth(job_view(ranks=(rank,)), IncidentCause.HOST_MEMORY, Severity.WARNING).sure
    assert finding.host_process is None


def test_observation_of_gpu_growth_names_no_host_process() -> None:
    rank = rank_summary(1, verdict=LEAK, host_processes=(OWN, WORKER))
    [finding] = see_growth(job_view(ranks=(rank,)), IncidentCause.LEAK, Severity.WARNING).sure
    assert finding.host_process is None


def test_a_finding_names_the_pod_as_the_api_server_does() -> None:
    pod = PodPlace("uid-1", "team-a", "train-0-x7", "main", job_known=True)
    rank = rank_summary(1, verdict=LEAK, pod=pod)
    [finding] = see_growth(job_view(ranks=(rank,)), IncidentCause.LEAK, Severity.WARNING).sure
    assert finding.pod == "team-a/train-0-x7"
    unnamed = rank_summary(1, verdict=LEAK, pod=PodPlace("uid-1"))
    [finding] = see_growth(job_view(ranks=(unnamed,)), IncidentCause.LEAK, Severity.WARNING).sure
    assert finding.pod is None


def test_a_culprit_lives_and_does_it_now() -> None:
    about = incident(
        findings=tuple(finding(number, process=ProcessId(1000 + number, 5_000 + number)) for number in (0, 1))
    )
    leaks, quiet = rank_summary(0, verdict=LEAK), rank_summary(1)
    assert living_culprits(about, job_view(ranks=(leaks, quiet))) == (0,)
    assert living_culprits(about, job_view(ranks=(replace(leaks, alive=False), quiet))) == ()
    other = rank_summary(0, verdict=LEAK._replace(signal=Signal.HOST))
    assert living_culprits(about, job_view(ranks=(other, quiet))) == (), "it does something else"
    another = rank_summary(0, verdict=LEAK, process=ProcessId(7, 7))
    assert living_culprits(about, job_view(ranks=(another,))) == (), "the pid of a rank is not the rank"
