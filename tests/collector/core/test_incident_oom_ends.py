"""`IncidentTracker`: growth whose ranks run out of memory is one story with the error, and is closed by it."""

from __future__ import annotations

from typing import Any

import pytest

from incident_watch import OOM, RULES, Watch, ended, job
from sample_views import LEAK, NOW_S, rank_summary, uuid_of
from tidegauge.core.ids import ProcessId
from tidegauge.core.incidents import Closure, IncidentCause, IncidentState, OomEnd, OomForecast
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import Band, Signal
from tidegauge.core.views import JobView

assert LEAK.seconds_to_oom is not None
FIRST = OomForecast(NOW_S + 1.0, LEAK.seconds_to_oom)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def leaking(oom: OomRecord | None = None, *, alive: bool = True, peer_alive: bool = True, **changes: Any) -> JobView:
    """Rank 0 leaks, and has ended by an error at its last step if it has."""
    values = {"verdict": LEAK, "last_oom": oom, "alive": alive, "step": OOM.step if oom is not None else 400}
    first = rank_summary(0, **(values | changes))
    return job(first, rank_summary(1, alive=peer_alive))


def test_growth_whose_job_runs_out_of_memory_is_closed_by_the_error() -> None:
    watch = Watch(explain_oom=lambda rank, view: f"rank {rank.identity.rank} of {view.job_id}: live tensors grew")
    watch.see(leaking(), for_s=20)
    dead = leaking(OOM, alive=False, peer_alive=False)
    assert watch.see(dead, for_s=2) == ["opened", "closed", "closed"]
    leak, error = (change.incident for change in watch.told[-2:])
    assert (leak.closure, leak.state) == (Closure.RAN_OUT_OF_MEMORY, IncidentState.CLOSED)
    assert leak.ran_out == OomEnd(0, OOM, others=0, number=2, ended_job=True)
    assert leak.foreseen == FIRST
    assert leak.explanation == error.explanation == "rank 0 of 4711: live tensors grew"
    assert (error.grew_in, error.closure) == (leak.number, Closure.JOB_ENDED)
    assert error.ran_out is not None
    assert error.ran_out.ended_job


def test_the_first_forecast_outlives_later_ones_and_a_restart(watch: Watch) -> None:
    watch.see(leaking())
    watch.restart()
    soon = LEAK._replace(seconds_to_oom=Band(5.0, 6.0, 7.0))
    watch.see(leaking(verdict=soon), for_s=5)
    assert watch.incident.seconds_to_oom == soon.seconds_to_oom
    assert watch.incident.foreseen == FIRST


def test_a_restart_between_alarm_error_and_end_keeps_the_story(watch: Watch) -> None:
    watch.see(leaking())
    watch.restart()
    watch.see(leaking(OOM, alive=False), for_s=2)
    watch.restart()
    watch.see(leaking(OOM, alive=False, peer_alive=False))
    leak, error = (change.incident for change in watch.told[-2:])
    assert (leak.closure, leak.ran_out and leak.ran_out.number) == (Closure.RAN_OUT_OF_MEMORY, error.number)
    assert error.grew_in == leak.number


def test_growth_without_an_end_in_sight_was_not_foreseen(watch: Watch) -> None:
    watch.see(leaking(verdict=LEAK._replace(seconds_to_oom=None)), for_s=3)
    never = Band(float("inf"), float("inf"), float("inf"))
    watch.see(leaking(verdict=LEAK._replace(seconds_to_oom=never)), for_s=3)
    assert watch.incident.foreseen is None


def test_growth_is_closed_by_the_error_of_its_rank_while_the_job_goes_on(watch: Watch) -> None:
    watch.see(leaking())
    watch.see(leaking(OOM, alive=False), for_s=RULES.culprits_ended_after_s + 1)
    assert watch.last.closure is Closure.RAN_OUT_OF_MEMORY
    assert watch.last.ran_out == OomEnd(0, OOM, others=0, number=2, ended_job=False)


def test_growth_is_closed_by_the_error_though_peers_hang_for_minutes(watch: Watch) -> None:
    both = job(rank_summary(0, verdict=LEAK), rank_summary(1, verdict=LEAK))
    watch.see(both)
    hanging = job(
        rank_summary(0, verdict=LEAK, last_oom=OOM, alive=False, step=OOM.step), rank_summary(1, verdict=LEAK)
    )
    watch.see(hanging, for_s=600)
    (leak,) = watch.tracker.incidents
    assert leak.is_open
    assert leak.ran_out is not None
    watch.see(ended(hanging))
    assert watch.last.closure is Closure.RAN_OUT_OF_MEMORY


def test_an_error_that_a_job_survives_does_not_close_its_growth(watch: Watch) -> None:
    watch.see(leaking())
    watch.see(leaking(OOM, step=OOM.step + 1), for_s=3)
    leak, error = watch.tracker.incidents
    assert (leak.is_open, leak.ran_out, error.grew_in) == (True, None, leak.number)
    watch.see(leaking(OOM, alive=False, peer_alive=False, step=OOM.step + 1))
    assert watch.told[-2].incident.closure is Closure.JOB_ENDED


def test_a_rank_that_runs_again_has_not_ended_by_its_error(watch: Watch) -> None:
    watch.see(leaking())
    watch.see(leaking(OOM, alive=False), for_s=5)
    watch.see(leaking(process=ProcessId(7777, 9)))
    assert all(one.ran_out is None for one in watch.tracker.incidents)


def test_the_error_of_a_rank_that_did_not_grow_does_not_close_the_growth_of_another(watch: Watch) -> None:
    watch.see(leaking())
    other = job(
        rank_summary(0, verdict=LEAK, alive=False),
        rank_summary(1, last_oom=OOM, alive=False, step=OOM.step, uuid=uuid_of(1)),
    )
    watch.see(other, for_s=2)
    closures = {change.incident.key.cause: change.incident.closure for change in watch.told}
    assert closures[IncidentCause.LEAK] is Closure.JOB_ENDED
    assert watch.last.grew_in is None


def test_the_error_of_a_rank_beside_it_on_its_gpu_closes_growth(watch: Watch) -> None:
    watch.see(leaking())
    beside = job(
        rank_summary(0, verdict=LEAK, alive=False),
        rank_summary(1, last_oom=OOM, alive=False, step=OOM.step, uuid=uuid_of(0)),
    )
    watch.see(beside, for_s=2)
    assert watch.told[-2].incident.closure is Closure.RAN_OUT_OF_MEMORY
    assert watch.last.grew_in == 1


def test_growth_of_host_memory_is_not_closed_by_an_error_of_the_gpu(watch: Watch) -> None:
    host = LEAK._replace(signal=Signal.HOST)
    watch.see(leaking(verdict=host))
    watch.see(leaking(OOM, alive=False, peer_alive=False, verdict=host), for_s=2)
    assert (watch.told[-2].incident.closure, watch.last.grew_in) == (Closure.JOB_ENDED, None)
