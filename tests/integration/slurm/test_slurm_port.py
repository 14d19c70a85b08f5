"""The Slurm adapter against a real slurmctld with accounting, as Operator, coordinator, owner and nobody in particular.

The jobs are real; their ranks are not (``FakeRanks``), and what the probe would make of a job's settings is worked out
here (``tests/integration/test_job_settings_on_rig.py`` has the real one).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from integration.slurm.conftest import StartBox
from integration.slurm.port_world import JOB, Cluster, SlurmWorld
from sample_views import job_record
from scheduler_hooks.port_contract import ContractWorld, PortContract, stop
from tidegauge.core.incidents.actions import ActionKind, JobTarget
from tidegauge.core.job_records.record import JobEnd
from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, Presence, RequeueChanges, TemporaryError
from tidegauge_scheduler_hooks.slurm.commands import SlurmCommands

UNCHANGED = RequeueChanges()


@pytest.fixture(scope="module")
def cluster(start_box: StartBox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    patient = "MessageTimeout=30\nSlurmdTimeout=120"  # for the controller that is frozen
    box = start_box(nodes=2, gpus=2, cpus=16, shards_per_gpu=4, accounting=True, slurm_conf=patient)
    box.make_operator("tidegauge")
    inside = box.start(["sleep", "infinity"])
    yield Cluster(box, inside, tmp_path_factory.mktemp("bin"))
    inside.kill()
    inside.wait()


@pytest.fixture
def world(cluster: Cluster) -> Iterator[SlurmWorld]:
    with contextlib.closing(SlurmWorld(cluster)) as world:
        yield world


class TestSlurmPort(PortContract):
    """The contract, as Operator."""

    @pytest.fixture
    def world(self, cluster: Cluster) -> Iterator[ContractWorld]:
        with contextlib.closing(SlurmWorld(cluster)) as world:
            yield world


# How jobs ended


def test_slurm_tells_how_real_runs_ended(world: SlurmWorld) -> None:
    done, cancelled, requeued = (world.start_job() for _ in range(3))
    world.end_by_itself(done)
    world.box.run("scancel", cancelled.job_id)
    world.box.run("scontrol", "requeue", requeued.job_id)
    failed = world.box.sbatch("exit 3")
    world.box.wait(failed, "FAILED")
    views = [done, cancelled, requeued, world.view(failed)]
    world.until(lambda: len(world.port.ends(views)) == len(views))
    ends = world.port.ends(views)
    words = [JobEnd.COMPLETED, JobEnd.CANCELLED, JobEnd.REQUEUED, JobEnd.FAILED]
    assert [ends[view.key] for view in views] == words


def test_an_end_stands_in_the_accounting_beside_what_another_tool_keeps_there(
    world: SlurmWorld, caplog: pytest.LogCaptureFixture
) -> None:
    box = world.box
    array = box.sbatch("true", "--array=0-1")
    tasks = box.run("squeue", "-h", "-r", "-t", "all", "-j", array, "-O", "JobID:.|").stdout.split("|")
    plain, summarized = (box.sbatch("true") for _ in range(2))
    jobs = [plain, summarized, *(task.strip() for task in tasks if task.strip())]
    for job in jobs:
        world.until(partial(_has_ended_in_accounting, world, job))
    box.run("sacctmgr", "-i", "modify", "job", "where", f"jobid={summarized}", "set", "admincomment=JS1:H4sIAAAA/+Q=")
    theirs = _admin_comment(world, summarized)
    bob = world.port_of("bob")
    for job in jobs * 2:
        bob.remark_end(world.view(job), job_record(), "completed by Bob")
    assert len([one for one in caplog.records if "AdminLevel=Operator" in one.getMessage()]) == 1
    for job in jobs * 2:
        world.port.remark_end(world.view(job), job_record(), f"completed; `tidegauge job {job}` has all of it")
    small = (lambda text: text) if box.release >= (24, 11) else str.lower
    found = {job: _admin_comment(world, job) for job in jobs}
    ours = {job: small(f"TG1: completed; tidegauge job {job} has all of it") for job in jobs}
    assert found == {**ours, summarized: f"{theirs} {ours[summarized]}"}


def test_an_end_changes_no_other_task_of_an_array_nor_part_of_a_heterogeneous_job(world: SlurmWorld) -> None:
    """The last task has the number of the array, the first part that of the whole job."""
    box = world.box
    array = box.sbatch("true", "--array=0-1")
    parts = ("-n1", ":", "-n1")
    leader = box.run("sbatch", "--parsable", *parts, user="alice", stdin="#!/bin/bash\ntrue\n").stdout.strip()
    part = str(int(leader) + 1)
    names = (f"{array}_0", f"{array}_1", f"{leader}+0", f"{leader}+1")
    world.until(lambda: set(_ended_rows(world, array, leader)) >= set(names))
    for name in names[:2]:
        box.run("sacctmgr", "-i", "modify", "job", "where", f"jobid={name}", "set", f"admincomment=text of {name}")
    before = _ended_rows(world, array, leader)
    assert before[names[1]] == (array, f"text of {names[1]}")
    for number in (array, leader):
        world.port.remark_end(world.view(number), job_record(), f"ended after 2 h, {number}")
    small = (lambda text: text) if box.release >= (24, 11) else str.lower
    ours = small("TG1: ended after 2 h, ")
    changed = {names[1]: (array, f"text of {names[1]} {ours}{array}"), names[2]: (leader, f"{ours}{leader}")}
    assert _ended_rows(world, array, leader) == {**before, **changed}
    world.port.remark_end(world.view(part), job_record(), f"ended after 2 h, {part}")
    assert _ended_rows(world, array, leader) == {**before, **changed, names[3]: (part, f"{ours}{part}")}


def _ended_rows(world: SlurmWorld, *jobs: str) -> dict[str, tuple[str, str]]:
    """Number and AdminComment by the name in the accounting."""
    columns = "JobID,JobIDRaw,State,AdminComment"
    said = world.box.run("sacct", "-X", "-n", "-P", "-j", ",".join(jobs), "-o", columns, user="alice").stdout
    found = [row.split("|", 3) for row in said.splitlines()]
    return {name: (number, text) for name, number, state, text in found if state == "COMPLETED"}


def _has_ended_in_accounting(world: SlurmWorld, job: str) -> bool:
    return _admin_comment(world, job) is not None


def _admin_comment(world: SlurmWorld, job: str) -> str | None:
    """As its owner sees it."""
    rows = world.box.run(
        "sacct", "-X", "-n", "-P", "-o", "JobIDRaw,State,AdminComment", user="alice"
    ).stdout.splitlines()
    found = [row.split("|", 2) for row in rows]
    return next((text for number, state, text in found if (number, state) == (job, "COMPLETED")), None)


# Rights


def test_a_plain_user_is_refused_for_good_and_told_what_is_missing(world: SlurmWorld) -> None:
    job = world.start_job()
    target, port = world.target(job), world.port_of("bob")
    for action in (ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL):
        with pytest.raises(PermanentError, match=rf"job {job.job_id}.*denied.*AdminLevel=Operator"):
            stop(port, action, target, "d")
    with pytest.raises(PermanentError, match=r"Invalid user id.*AdminLevel=Operator"):
        port.annotate(target, "leaks", decision_id="d")
    assert world.port.presence(target) is Presence.RUNNING
    assert world.starts(job) == 1
    assert world.comment(job.job_id) == "tidegauge:requeue"


def test_the_owner_needs_no_rights_at_all(world: SlurmWorld) -> None:
    job = world.start_job()
    world.port = world.port_of("alice")
    target = world.target(job)
    world.port.annotate(target, "leaks", decision_id="d-2")
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d-3")
    world.until(lambda: world.starts(job) == 2)


def test_an_operator_can_do_everything(world: SlurmWorld) -> None:
    facts = world.facts(world.start_job())
    assert facts is not None
    assert facts.can == set(ActionKind) - {ActionKind.SNAPSHOT}


def test_a_job_that_an_operator_held_is_released_by_its_owner(world: SlurmWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.port.hold(target, "leaks", decision_id="d")
    world.until(lambda: world.port.presence(target) is Presence.HELD)
    world.box.run("scontrol", "release", job.job_id, user="alice")
    world.until(lambda: world.starts(job) == 2)
    assert world.port.presence(target) is Presence.REPLACED


# Whose job it is, and what its owner says


def test_another_users_ranks_get_no_facts_of_a_job(world: SlurmWorld) -> None:
    job = world.start_job()
    forged = world.view(job.job_id, user="bob")
    assert world.facts(forged) is None
    assert world.facts(world.view(job.job_id, slurm=None)) is None


def test_a_job_is_told_whatever_other_users_write(world: SlurmWorld) -> None:
    forged = 'x\n"job_id": 1, |7| tidegauge:requeue"},{"user_id":0'
    world.box.sbatch("sleep 60", "--hold", "-J", forged, f"--comment={forged}", user="bob")
    job = world.start("--comment=ünquoted | a\nb; tidegauge:requeue", "-J", forged)
    facts = world.facts(job)
    assert facts is not None
    assert facts.requeueable
    world.port.annotate(world.target(job), "leaks", decision_id="d")
    assert world.comment(job.job_id) == "ünquoted | a\nb; tidegauge:requeue [tidegauge says: leaks]"


def test_a_job_that_is_to_be_kept_is_left_alone(world: SlurmWorld) -> None:
    job = world.start("--comment=tidegauge:requeue tidegauge:keep")
    facts = world.facts(job)
    assert facts is not None
    assert facts.exempt
    for action in (ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL):
        with pytest.raises(PermanentError, match="no action allowed"):
            stop(world.port, action, world.target(job), "d")
    assert world.port.presence(world.target(job)) is Presence.RUNNING


# Kinds of jobs


def test_a_job_with_no_requeue_can_only_be_cancelled(world: SlurmWorld) -> None:
    job = world.start("--no-requeue", "--comment=tidegauge:requeue")
    facts, target = world.facts(job), world.target(job)
    assert facts is not None
    assert not facts.requeueable
    assert facts.can & {ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL} == {ActionKind.CANCEL}
    with pytest.raises(PermanentError, match="--no-requeue"):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    world.port.cancel(target, "leaks", decision_id="d")
    world.until(lambda: world.port.presence(target) is Presence.GONE)


def test_slurm_requeue_of_an_array_task_leaves_the_others_running(world: SlurmWorld) -> None:
    """The last task of an array has the array's own number."""
    folder = world.folder()
    array = world.box.sbatch(JOB.format(folder=folder), "--array=1-2", "--comment=tidegauge:requeue")
    world.until(lambda: len(list(folder.glob("environ.*"))) == 2)
    job = world.view(array)
    target = world.target(job)
    assert target.handle["name"] == f"{array}_2"
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    assert world.port.presence(target) in (Presence.REPLACED, Presence.STOPPING)
    assert world.box.state(f"{array}_1") == "RUNNING"
    world.until(lambda: world.box.state(f"{array}_2") == "RUNNING")
    world.port.cancel(world.target(world.view(array)), "leaks", decision_id="d-2")
    world.until(lambda: world.box.state(f"{array}_2") == "CANCELLED")
    assert world.box.state(f"{array}_1") == "RUNNING"


def test_an_srun_job_is_cancelled_and_never_requeued(world: SlurmWorld) -> None:
    folder = world.folder()
    started = world.box.start(
        ["srun", "bash", "-c", f"echo $SLURM_JOB_ID > {folder}/id.new && mv {folder}/id.new {folder}/id; sleep 600"],
        user="alice",
    )
    world.until((folder / "id").exists)
    job = world.view((folder / "id").read_text().strip())
    facts, target = world.facts(job), world.target(job)
    assert facts is not None
    assert facts.can & {ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL} == {ActionKind.CANCEL}
    with pytest.raises(PermanentError, match="only sbatch jobs can"):
        world.port.hold(target, "leaks", decision_id="d")
    world.port.cancel(target, "leaks", decision_id="d")
    world.until(lambda: world.port.presence(target) is Presence.GONE)
    started.wait(60)


def test_a_job_on_shards_tells_its_share(world: SlurmWorld) -> None:
    facts = world.facts(world.start("--gres=shard:2"))
    assert facts is not None
    assert facts.gpu_share == 0.5


# A controller that goes away


def test_a_controller_that_was_away_after_the_requeue_has_it_done_once(world: SlurmWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    world.box.stop_controller()
    try:
        with pytest.raises(TemporaryError):
            world.port_of("tidegauge", impatient(world)).presence(target)
    finally:
        world.box.start_controller()
    # For a moment it may say that the node has not told of the end yet.
    world.until(lambda: world.port.presence(target) is Presence.REPLACED)
    with pytest.raises(ChangedError):
        world.port_of("tidegauge").requeue(target, UNCHANGED, "leaks", decision_id="d")
    world.until(lambda: world.starts(job) == 2 and world.alive(job))
    assert world.view_now(job).attempt == 1


def test_a_requeue_that_a_frozen_controller_takes_late_is_not_repeated(world: SlurmWorld) -> None:
    """The command was killed when its time was over; what it had asked for lies in slurmctld's socket.

    Nobody is impatient before: what is asked first must be answered, however slow the machine is. And the command has
    to come as far as the socket, also if it stands still on its way; its own patience, ``MessageTimeout``, is longer.
    """
    job = world.start_job()
    target = world.target(job)
    port = world.port_of("tidegauge", Freezing(world.cluster, impatient_s=20.0))
    try:
        with pytest.raises(TemporaryError, match="no answer within 20 s"):
            port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    finally:
        world.cluster.signal_controller("CONT")
    world.until(lambda: world.port.presence(target) is Presence.REPLACED)
    with pytest.raises(ChangedError):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    world.until(lambda: world.starts(job) == 2 and world.alive(job))
    assert world.view_now(job).attempt == 1


class Freezing(SlurmCommands):
    """Commands of Tidegauge's user; slurmctld stands still from the moment of a requeue."""

    def __init__(self, cluster: Cluster, *, impatient_s: float) -> None:
        super().__init__(cluster.bin_dir("tidegauge"))
        self._cluster = cluster
        self._impatient_s = impatient_s

    def requeue(self, name: str) -> None:
        self._cluster.signal_controller("STOP")
        self._timeout_s = self._impatient_s
        try:
            super().requeue(name)
        finally:
            self._timeout_s = 2.0  # what is asked after it need not come as far


def impatient(world: SlurmWorld) -> SlurmCommands:
    return SlurmCommands(world.cluster.bin_dir("tidegauge"), timeout_s=2.0)


def test_a_coordinator_of_the_account_may_act(world: SlurmWorld) -> None:
    """The last test: bob stays coordinator."""
    world.box.make_coordinator("bob")
    job = world.start_job()
    world.port = world.port_of("bob")
    target = world.target(job)
    world.until(lambda: _annotated(world, target))
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    world.until(lambda: world.starts(job) == 2 and world.alive(job))
    world.port.cancel(world.target(world.view_now(job)), "leaks", decision_id="d-2")
    world.until(lambda: not world.alive(job))


def _annotated(world: SlurmWorld, target: JobTarget) -> bool:
    """The controller hears of a new coordinator a moment later."""
    try:
        world.port.annotate(target, "leaks", decision_id="d")
    except PermanentError:
        return False
    return True
