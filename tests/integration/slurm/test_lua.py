"""The words in a job's comment for sites without the plugin: slurmctld's job_submit and the commands' cli_filter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.slurm import task_environ
from integration.slurm.box import SlurmBox
from integration.slurm.conftest import StartBox
from integration.slurm.task_environ import in_job, in_task, seen
from tidegauge.core.jobs.slurm import comment_words

LUA = Path(__file__).resolve().parents[3] / "deploy/slurm/lua"
WORDS = "sweep 7, tidegauge:profile=stats,tidegauge:fraction=0.5;TideGauge:Keep"
ASKED = {"TIDEGAUGE_PROFILE": "stats", "TIDEGAUGE_MEMORY_FRACTION": "0.5"}
FILTERED = {"SLURM_CONF": "/etc/slurm/filter/slurm.conf"}
"""With it a command finds cli_filter.lua, without it only slurmctld's job_submit.lua is in force."""
BOTH = [{}, FILTERED]
STEPS = "./show batch\nsrun ./show step\n"


@pytest.fixture(scope="module")
def box(start_box: StartBox) -> SlurmBox:
    words = (LUA / "tidegauge_comment.lua").read_text()
    files = {
        "job_submit.lua": (LUA / "job_submit.lua").read_text(),
        "tidegauge_comment.lua": words,
        "tidegauge_history.lua": (LUA / "tidegauge_history.lua").read_text(),
        "filter/cli_filter.lua": (LUA / "cli_filter.lua").read_text(),
        "filter/tidegauge_comment.lua": words,
        "filter/tidegauge_history.lua": (LUA / "tidegauge_history.lua").read_text(),
        "filter/slurm.conf": "include /etc/slurm/slurm.conf\nCliFilterPlugins=cli_filter/lua\n",
    }
    box = start_box(nodes=1, gpus=0, files=files, slurm_conf="JobSubmitPlugins=lua")
    task_environ.install(box)
    return box


def refused(box: SlurmBox, comment: str, *command: str, environ: dict[str, str]) -> str:
    done = box.run(
        command[0], f"--comment={comment}", *command[1:],
        user="alice", check=False, stdin="#!/bin/sh\n", environ=environ,
    )  # fmt: skip
    assert done.returncode != 0
    assert "Submitted" not in done.stdout
    return done.stderr


@pytest.mark.parametrize("environ", BOTH)
def test_words_in_the_comment_reach_batch_script_and_steps(box: SlurmBox, environ: dict[str, str]) -> None:
    own = {**environ, "TIDEGAUGE_PROFILE": "trace"}
    assert in_job(box, STEPS, f"--comment={WORDS}", environ=own) == [("batch", ASKED), ("step", ASKED)]
    assert comment_words(WORDS) == {"keep"}


@pytest.mark.parametrize("environ", BOTH)
def test_with_export_none_the_words_reach_steps_only_where_the_script_asks_for_that(
    box: SlurmBox, environ: dict[str, str]
) -> None:
    script = f"{STEPS}export SLURM_EXPORT_ENV=ALL\nsrun ./show asked\n"
    found = in_job(box, script, "--export=NONE", f"--comment={WORDS}", environ=environ)
    assert found == [("batch", ASKED), ("step", {}), ("asked", ASKED)]


def test_srun_has_the_words_where_the_commands_are_filtered(box: SlurmBox) -> None:
    assert in_task(box, f"--comment={WORDS}") == {}
    assert in_task(box, f"--comment={WORDS}", environ=FILTERED) == ASKED
    assert in_task(box, f"--comment={WORDS}", "--export=HOME,PATH", environ=FILTERED) == ASKED


@pytest.mark.parametrize("environ", BOTH)
def test_srun_inside_salloc_does_not_have_them(box: SlurmBox, environ: dict[str, str]) -> None:
    done = box.run("salloc", f"--comment={WORDS}", "srun", "./show", "step", user="alice", environ=environ)
    assert seen(done.stdout) == [("step", {})]


@pytest.mark.parametrize(
    "comment", ["", "an ordinary one", "nottidegauge:profile=stats", "tidegauge:keep", "tidegauge:requeue"]
)
@pytest.mark.parametrize("environ", BOTH)
def test_other_comments_change_nothing(box: SlurmBox, comment: str, environ: dict[str, str]) -> None:
    own = {**environ, "TIDEGAUGE_PROFILE": "trace"}
    assert in_task(box, f"--comment={comment}", environ=own) == {"TIDEGAUGE_PROFILE": "trace"}


@pytest.mark.parametrize(
    ("comment", "problem"),
    [
        (
            "tidegauge:profile=bogus",
            "'tidegauge:profile=bogus': the level is not one of off, dormant, stats, auto, trace",
        ),
        ("x tidegauge:profile=", "'tidegauge:profile=': the level is not one of off"),
        ("tidegauge:fraction=0", "'tidegauge:fraction=0': the fraction is not a decimal number above 0 and at most 1"),
        ("tidegauge:fraction=1.5", "the fraction is not"),
        ("tidegauge:fraction=0x.8", "the fraction is not"),
        ("tidegauge:fraction=.", "the fraction is not"),
        ("tidegauge:fraction=nan", "the fraction is not"),
        (
            "tidegauge:keeep",
            "'tidegauge:keeep' is not one of tidegauge:profile=LEVEL, tidegauge:fraction=F, tidegauge:keep",
        ),
        ("tidegauge:profile:stats", "'tidegauge:profile:stats' is not one of"),
        ("tidegauge:", "'tidegauge:' is not one of"),
        ("tidegauge:%s%n" + "y" * 200, "'tidegauge:%s%n" + "y" * 26 + "' is not one of"),
        ("tidegauge:a\x1b[31m", "'tidegauge:a?[31m' is not one of"),
    ],
)
@pytest.mark.parametrize("environ", BOTH)
def test_a_bad_word_is_refused_with_words(box: SlurmBox, comment: str, problem: str, environ: dict[str, str]) -> None:
    assert problem in refused(box, comment, "sbatch", environ=environ)
    assert problem in refused(box, comment, "srun", "true", environ=environ)


@pytest.mark.parametrize("content", [None, "this is no lua"])
def test_a_missing_or_broken_file_beside_them_stops_no_submission(box: SlurmBox, content: str | None) -> None:
    for folder in ("", "filter/"):
        box.run("rm", "-f", f"/etc/slurm/{folder}tidegauge_comment.lua")
        if content is not None:
            box.write_file(f"{folder}tidegauge_comment.lua", content)
    box.run("touch", "-d", "1 minute", "/etc/slurm/job_submit.lua")  # slurmctld reads a changed one anew
    try:
        for environ in BOTH:
            assert in_task(box, "--comment=tidegauge:profile=bogus", environ=environ) == {}
        assert "words in comments are ignored" in (box.logs / "slurmctld.log").read_text()
    finally:
        for folder in ("", "filter/"):
            box.write_file(f"{folder}tidegauge_comment.lua", (LUA / "tidegauge_comment.lua").read_text())
        box.run("touch", "/etc/slurm/job_submit.lua")


SENTENCE = "earlier runs had 8 × 80.0 GiB, needed 9.0 GiB each"


FOLDERS = ("", "filter/")


@pytest.fixture
def history(box: SlurmBox) -> Iterator[None]:
    """The files on earlier runs are gone after the test."""
    box.run("touch", "-d", "1 minute", "/etc/slurm/job_submit.lua")  # slurmctld reads a changed one anew
    yield
    for folder in FOLDERS:
        box.run("rm", "-rf", f"/etc/slurm/{folder}tidegauge_history.tsv", f"/etc/slurm/{folder}tidegauge_shared.tsv")
        box.write_file(f"{folder}tidegauge_history.lua", (LUA / "tidegauge_history.lua").read_text())
    box.run("touch", "/etc/slurm/job_submit.lua")


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("folder", "environ"), [("", {}), ("filter/", FILTERED)])
def test_what_earlier_runs_needed_is_said_at_submission(box: SlurmBox, folder: str, environ: dict[str, str]) -> None:
    sentences = f"bob\ttrain\tanother's\nalice\ttrain\t{SENTENCE}\nalice\ttrain2\t%s%n\x1b[31m\n"
    box.write_file(f"{folder}tidegauge_history.tsv", sentences)

    def said(*command: str) -> str:
        return box.run(*command, user="alice", stdin="#!/bin/sh\n", environ=environ).stderr

    lua = "lua: " if environ else ""  # Slurm's own
    assert said("sbatch", "--job-name=train").count(f"sbatch: {lua}tidegauge: {SENTENCE}") == 1
    (box.work / "train").write_text("#!/bin/sh\n")
    assert said("sbatch", "train").count(SENTENCE) == 1, "the name of the script is the job's"
    assert "tidegauge" not in said("sbatch", "--job-name=other", "train")
    assert said("srun", "--job-name=train", "true").count(f"tidegauge: {SENTENCE}") == 1
    assert said("salloc", "--job-name=train", "true").count(f"tidegauge: {SENTENCE}") == 1
    assert "tidegauge: %s%n?[31m" in said("srun", "--job-name=train2", "true")
    assert "tidegauge" not in said("srun", "--job-name=other", "true")
    assert "tidegauge" not in said("srun", "true")


@pytest.mark.usefixtures("history")
def test_the_commands_say_it_once_and_not_for_each_step_of_a_job(box: SlurmBox) -> None:
    box.write_file("filter/tidegauge_history.tsv", f"alice\ttrain\t{SENTENCE}\n")
    command = ("salloc", "--job-name=train", "srun", "--job-name=train", "true")
    done = box.run(*command, user="alice", environ=FILTERED)
    assert done.stderr.count(SENTENCE) == 1
    quiet = box.run("sbatch", "-Q", "--job-name=train", user="alice", stdin="#!/bin/sh\n", environ=FILTERED)
    assert "tidegauge" not in quiet.stderr


LIMITS = (
    "alice\ttrain\t10630044057\nalice\tbad\t1.5\nalice\tlong\t9999999999999999\nbob\tother\t10630044057\n"
    "alice\tnone\t0\nalice\tzeros\t000000000000001\nalice\tcut\t106300440"
)
LIMITED = {"TIDEGAUGE_SHARED_GPU_BYTES": "10630044057"}


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("folder", "environ"), [("", {}), ("filter/", FILTERED)])
def test_what_earlier_runs_needed_reaches_jobs_as_a_limit_for_shared_gpus(
    box: SlurmBox, folder: str, environ: dict[str, str]
) -> None:
    box.write_file(f"{folder}tidegauge_shared.tsv", LIMITS)
    assert in_job(box, STEPS, "--job-name=train", environ=environ) == [("batch", LIMITED), ("step", LIMITED)]
    both = {**LIMITED, **ASKED}
    assert in_job(box, STEPS, "--job-name=train", f"--comment={WORDS}", environ=environ) == [
        ("batch", both), ("step", both),
    ]  # fmt: skip
    own = {"TIDEGAUGE_SHARED_GPU_BYTES": "5"}
    assert in_job(box, STEPS, "--job-name=train", environ={**environ, **own}) == [("batch", own), ("step", own)]
    for name in ("bad", "long", "other", "none", "zeros", "cut"):
        assert in_job(box, STEPS, f"--job-name={name}", environ=environ) == [("batch", {}), ("step", {})]
    assert in_task(box, "--job-name=train", environ=environ) == (LIMITED if environ else {})


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(("folder", "environ"), [("", {}), ("filter/", FILTERED)])
def test_a_number_that_the_bound_of_the_file_cuts_is_no_limit(
    box: SlurmBox, folder: str, environ: dict[str, str]
) -> None:
    line = "alice\ttrain\t10630044057\n"
    before = 2**20 - len(line) + 2  # 1063004405 are read
    box.write_file(f"{folder}tidegauge_shared.tsv", "x" * (before - 1) + "\n" + line)
    assert in_job(box, STEPS, "--job-name=train", environ=environ) == [("batch", {}), ("step", {})]


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("content", [None, "", "no tabs\n\n\t\t\n", "alice\ttrain\n", "x" * 3_000_000])
@pytest.mark.parametrize(("folder", "environ"), [("", {}), ("filter/", FILTERED)])
def test_a_history_that_cannot_be_read_says_nothing_and_stops_nothing(
    box: SlurmBox, content: str | None, folder: str, environ: dict[str, str]
) -> None:
    if content is None:
        for name in ("history", "shared"):
            box.run("mkdir", f"/etc/slurm/{folder}tidegauge_{name}.tsv")
        box.write_file(f"{folder}tidegauge_history.lua", "this is no lua")
    else:
        for name in ("history", "shared"):
            box.write_file(f"{folder}tidegauge_{name}.tsv", content)
    done = box.run("srun", "--job-name=train", "./show", "task", user="alice", environ=environ)
    assert "tidegauge" not in done.stderr
    assert seen(done.stdout) == [("task", {})]
