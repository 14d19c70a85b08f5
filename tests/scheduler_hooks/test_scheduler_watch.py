"""What is known of jobs from their schedulers: asked in the background, never older than a minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sample_views import job_view
from scheduler_hooks.fake_scheduler import FakeJob, FakeScheduler, FakeWorld
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents.actions import SchedulerFacts
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import TemporaryError
from tidegauge_scheduler_hooks.scheduler_watch import ASK_EVERY_S, SchedulerWatch

JOB = job_view(scheduler="local")
LAUNCH = LaunchSummary(
    ProcessId(400, 40), uid=1000, job_id=JOB.job_id, job_name=None, restarts=0, state=LaunchState.RUNNING,
    requeueable=False, exempt=False, gpu_share=None, started_unix_s=1.8e9,
)  # fmt: skip


@dataclass
class Counting(FakeScheduler):
    """Counts its queries, and fails them if told to."""

    world: FakeWorld
    queries: list[tuple[str, ...]] = field(default_factory=list)
    error: Exception | None = None
    exempt: bool = False

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        self.queries.append(tuple(job.job_id for job in jobs))
        if self.error is not None:
            raise self.error
        return {job: replace(facts, exempt=self.exempt) for job, facts in super().describe(jobs).items()}


class Bench:
    """A watch over one scheduler; calls wait in ``waiting`` until they are run."""

    def __init__(self, *, inline: bool = True) -> None:
        self.now_s = 100.0
        self.waiting: list[Callable[[], None]] = []
        self.scheduler = Counting(FakeWorld(jobs={JOB.job_id: FakeJob(JOB.job_id)}))
        self.watch = SchedulerWatch(
            {"local": self.scheduler},
            submit=(lambda call: call()) if inline else self.waiting.append,
            monotonic_s=lambda: self.now_s,
        )


def test_facts_come_with_the_first_answer() -> None:
    bench = Bench()
    assert not bench.watch.is_known(JOB)
    bench.watch.ask([JOB])
    assert bench.watch.is_known(JOB)
    facts = bench.watch.facts(JOB)
    assert facts is not None
    assert facts.requeueable


def test_many_jobs_are_one_query() -> None:
    bench = Bench()
    bench.watch.ask([JOB, job_view(job_id="2", scheduler="local"), job_view(job_id="3", scheduler="local")])
    assert bench.scheduler.queries == [(JOB.job_id, "2", "3")]


def test_scheduler_is_not_asked_again_before_its_time() -> None:
    bench = Bench()
    for _ in range(10):
        bench.watch.ask([JOB])
        bench.now_s += 0.9
    assert len(bench.scheduler.queries) == 2


def test_scheduler_that_has_not_answered_is_not_asked_again() -> None:
    bench = Bench(inline=False)
    for _ in range(10):
        bench.watch.ask([JOB])
        bench.now_s += 100.0
    assert len(bench.waiting) == 1


def test_job_that_is_new_is_asked_about_soon() -> None:
    bench = Bench()
    bench.watch.ask([JOB])
    bench.now_s += 1.0
    bench.watch.ask([JOB, job_view(job_id="2", scheduler="local")])
    assert len(bench.scheduler.queries) == 2


def test_job_that_the_scheduler_does_not_know_has_no_facts() -> None:
    bench = Bench()
    stranger = job_view(job_id="stranger", scheduler="local")
    bench.watch.ask([stranger])
    assert bench.watch.is_known(stranger)
    assert bench.watch.facts(stranger) is None


def test_job_without_an_adapter_is_known_to_have_no_facts() -> None:
    bench = Bench()
    theirs = job_view(scheduler="slurm")
    bench.watch.ask([theirs])
    assert bench.watch.is_known(theirs)
    assert bench.watch.facts(theirs) is None


def test_silent_scheduler_keeps_its_last_answer_for_a_minute() -> None:
    bench = Bench()
    bench.watch.ask([JOB])
    bench.scheduler.error = TemporaryError("no answer within 10 s")
    bench.now_s += 50.0
    bench.watch.ask([JOB])
    assert bench.watch.facts(JOB) is not None
    assert bench.watch.problems() == {"local": "no answer within 10 s"}
    bench.now_s += 11.0
    bench.watch.ask([JOB])
    assert bench.watch.facts(JOB) is None


def test_scheduler_that_answers_again_has_no_problem() -> None:
    bench = Bench()
    bench.scheduler.error = RuntimeError("a slip of the adapter")
    bench.watch.ask([JOB])
    assert bench.watch.problems() == {"local": "the adapter for local failed: a slip of the adapter"}
    bench.scheduler.error = None
    bench.now_s += 5.0
    bench.watch.ask([JOB])
    assert bench.watch.problems() == {}
    assert bench.watch.facts(JOB) is not None


def test_scheduler_that_hangs_is_a_problem_after_a_minute() -> None:
    bench = Bench(inline=False)
    bench.watch.ask([JOB])
    bench.now_s += 60.0
    assert bench.watch.problems() == {}
    bench.now_s += 1.0
    assert bench.watch.problems() == {"local": "no answer for 61 s to the request for its jobs"}
    bench.waiting.pop()()
    assert bench.watch.problems() == {}


def test_scheduler_that_answers_slowly_is_asked_less_often() -> None:
    bench = Bench(inline=False)
    bench.watch.ask([JOB])
    bench.now_s += 1.5  # what squeue takes for some thousand jobs
    bench.waiting.pop()()
    bench.now_s += 13.4
    bench.watch.ask([JOB])
    assert bench.waiting == []
    bench.now_s += 0.2
    bench.watch.ask([JOB])
    assert len(bench.waiting) == 1


def test_scheduler_that_took_very_long_is_asked_before_its_answer_is_too_old() -> None:
    bench = Bench(inline=False)
    bench.watch.ask([JOB])
    bench.now_s += 20.0
    bench.waiting.pop()()
    bench.now_s += 30.1
    bench.watch.ask([JOB])
    assert len(bench.waiting) == 1


def test_scheduler_watch_keeps_facts_as_long_as_the_job_exists() -> None:
    bench = Bench()
    assert bench.watch.last_facts("local") == {}
    bench.watch.ask([JOB])
    told = bench.watch.last_facts("local")
    assert list(told) == [JOB.key]
    bench.scheduler.world.jobs.clear()  # the scheduler has forgotten it, the node has not yet
    bench.now_s += 6.0
    bench.watch.ask([JOB])
    assert bench.watch.facts(JOB) is None
    assert bench.watch.last_facts("local") == told
    bench.now_s += 3600.0
    assert bench.watch.last_facts("local") == told
    bench.watch.ask([job_view(job_id="2", scheduler="local")])
    assert bench.watch.last_facts("local") == {}


def test_of_a_scheduler_that_is_not_there_nothing_is_known() -> None:
    assert Bench().watch.last_facts("slurm") == {}


class InAllocation:
    """What ``tidegauge run`` keeps in a job of Slurm, watched by both adapters."""

    def __init__(self) -> None:
        self.now_s = 100.0
        place = SlurmPlace(JobId(JOB.job_id), "batch")
        ranks = tuple(replace(rank, slurm=place) for rank in JOB.ranks)
        self.job = replace(JOB, scheduler="slurm", ranks=ranks, launch=LAUNCH)
        self.local = Counting(FakeWorld(jobs={JOB.job_id: FakeJob(JOB.job_id)}))
        self.slurm = Counting(FakeWorld(jobs={JOB.job_id: FakeJob(JOB.job_id)}))
        self.watch = SchedulerWatch(
            {"local": self.local, "slurm": self.slurm},
            submit=lambda call: call(),
            monotonic_s=lambda: self.now_s,
        )

    def facts(self) -> SchedulerFacts | None:
        self.now_s += ASK_EVERY_S
        self.watch.ask([self.job])
        return self.watch.facts(self.job)


def test_scheduler_watch_exempts_a_run_in_slurm_if_its_owner_says_so() -> None:
    site = InAllocation()
    before = site.facts()
    site.slurm.exempt = True
    after = site.facts()
    assert before is not None
    assert after is not None
    assert (before.exempt, after.exempt) == (False, True)


def test_scheduler_watch_has_no_facts_while_slurm_gives_no_exemption() -> None:
    site = InAllocation()
    site.slurm.error = TemporaryError("slurmctld is away")
    assert site.facts() is None
    assert site.watch.is_known(site.job)
    site.slurm.error = None
    assert site.facts() is not None


def test_scheduler_watch_uses_the_local_answer_without_slurm() -> None:
    site = InAllocation()
    site.watch = SchedulerWatch({"local": site.local}, submit=lambda call: call(), monotonic_s=lambda: site.now_s)
    assert site.facts() is not None
