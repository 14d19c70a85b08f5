from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidegauge.cli.service.run import job_environ

SHOW = "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def tidegauge_run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    others = ("TIDEGAUGE_", "SLURM_", "KUBERNETES_", "RAY_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    with tempfile.TemporaryDirectory() as run_dir:
        return subprocess.run(
            [sys.executable, "-m", "tidegauge", "run", *arguments],
            env={**clean, "TIDEGAUGE_RUN_DIR": run_dir, **environ}, capture_output=True, text=True, timeout=90,
            check=False,
        )  # fmt: skip


def test_bare_run_means_auto_and_names_the_job() -> None:
    done = tidegauge_run("--", sys.executable, "-c", SHOW)
    environ, _ = json.loads(done.stdout)
    assert environ["TIDEGAUGE_PROFILE"] == "auto"
    assert environ["TIDEGAUGE_JOB_ID"] in done.stderr
    assert environ["TIDEGAUGE_JOB_NAME"] == Path(sys.executable).name


def test_a_job_without_a_name_goes_by_the_script_that_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"exec {sys.executable} -c '{SHOW}'\n")
    environ, _ = json.loads(tidegauge_run("--", "bash", str(script)).stdout)
    assert environ["TIDEGAUGE_JOB_NAME"] == "train"


def test_arguments_survive_whatever_they_contain() -> None:
    weird = ["a b", "'", '"', "; echo no", "line\nbreak", "$HOME", "--memory-profile=off", "--"]
    done = tidegauge_run("--memory-profile=stats", "--", sys.executable, "-c", SHOW, *weird)
    environ, arguments = json.loads(done.stdout)
    assert arguments == weird
    assert environ["TIDEGAUGE_PROFILE"] == "stats"


def test_exit_code_is_the_commands_own() -> None:
    assert tidegauge_run("--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7


def test_schedulers_job_id_is_kept() -> None:
    environ, _ = json.loads(tidegauge_run("--", sys.executable, "-c", SHOW, SLURM_JOB_ID="99").stdout)
    assert "TIDEGAUGE_JOB_ID" not in environ


def test_under_slurm_the_job_goes_by_the_name_that_squeue_shows() -> None:
    slurm = {"SLURM_JOB_ID": "99", "SLURM_JOB_NAME": "llama-sft"}
    environ, _ = json.loads(tidegauge_run("--", sys.executable, "-c", SHOW, **slurm).stdout)
    assert environ["TIDEGAUGE_JOB_NAME"] == "llama-sft"
    named = {**slurm, "TIDEGAUGE_JOB_NAME": "night"}
    environ, _ = json.loads(tidegauge_run("--", sys.executable, "-c", SHOW, **named).stdout)
    assert environ["TIDEGAUGE_JOB_NAME"] == "night"
    environ, _ = json.loads(tidegauge_run("--job-name=mine", "--", sys.executable, "-c", SHOW, **named).stdout)
    assert environ["TIDEGAUGE_JOB_NAME"] == "mine"


def test_fraction_reaches_the_job() -> None:
    environ = job_environ({}, level="stats", job_name="n", memory_fraction=0.25)
    assert environ["TIDEGAUGE_MEMORY_FRACTION"] == "0.25"


@pytest.mark.parametrize("fraction", ["0", "1.5", "nan", "half"])
def test_impossible_fraction_is_refused_before_the_job_starts(fraction: str) -> None:
    done = tidegauge_run("--memory-fraction", fraction, "--", sys.executable, "-c", SHOW)
    assert done.returncode == 2
    assert "at most 1" in done.stderr


def test_unknown_level_lists_the_valid_ones() -> None:
    done = tidegauge_run("--memory-profile=loud", "--", "true")
    assert done.returncode == 2
    assert all(level in done.stderr for level in ("off", "dormant", "stats", "auto", "trace"))


def test_missing_command_is_said() -> None:
    assert "command not found" in tidegauge_run("--", "no-such-trainer").stderr
    assert tidegauge_run().returncode == 2


def test_script_that_cannot_be_executed_is_named_without_a_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    for first_line, told in (("#!/no/such/interpreter", "interpreter"), ("echo hello", "#!/bin/sh")):
        script.write_text(first_line + "\n")
        script.chmod(0o755)
        done = tidegauge_run("--", str(script))
        assert done.returncode == 126
        assert str(script) in done.stderr
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def test_empty_job_id_counts_as_none() -> None:
    environ, _ = json.loads(tidegauge_run("--", sys.executable, "-c", SHOW, TIDEGAUGE_JOB_ID="").stdout)
    assert environ["TIDEGAUGE_JOB_ID"]


@pytest.mark.parametrize(
    ("flag", "expected"), [([], "off"), (["--memory-profile"], "auto"), (["--memory-profile=trace"], "trace")]
)
def test_a_flag_beats_the_environment_and_the_environment_beats_the_default(flag: list[str], expected: str) -> None:
    done = tidegauge_run(*flag, "--", sys.executable, "-c", SHOW, TIDEGAUGE_PROFILE="off")
    assert json.loads(done.stdout)[0]["TIDEGAUGE_PROFILE"] == expected


def test_a_wrong_level_in_the_environment_is_named() -> None:
    done = tidegauge_run("--", "true", TIDEGAUGE_PROFILE="loud")
    assert done.returncode == 2
    assert "'loud' is not one of off" in done.stderr


def test_a_command_that_fails_fails_the_run() -> None:
    assert tidegauge_run("--", "false").returncode == 1


def test_a_job_of_its_own_has_a_keeper_and_counts_its_attempts() -> None:
    environ, _ = json.loads(tidegauge_run("--", sys.executable, "-c", SHOW).stdout)
    assert environ["TIDEGAUGE_ATTEMPT"] == "0"
    assert environ["TIDEGAUGE_KEEPER"]


@pytest.mark.parametrize(
    ("variable", "who"),
    [
        ("SLURM_JOB_ID", "Slurm"),
        ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
        ("RAY_JOB_ID", "Ray"),
        ("RAY_JOB_CONFIG_JSON_ENV_VAR", "Ray"),
    ],
)
def test_run_replaces_itself_with_the_command_where_a_scheduler_restarts_jobs(variable: str, who: str) -> None:
    done = tidegauge_run("--requeue", "--no-actions", "--", sys.executable, "-c", SHOW, **{variable: "7"})
    environ, _ = json.loads(done.stdout)
    assert "TIDEGAUGE_KEEPER" not in environ
    assert f"--requeue and --no-actions ignored ({who})" in done.stderr


def test_a_run_inside_a_kept_job_is_not_kept_again() -> None:
    inner = [sys.executable, "-m", "tidegauge", "run", "--", sys.executable, "-c", "import os; print(os.getppid())"]
    outer = tidegauge_run("--", "sh", "-c", 'echo $PPID; exec "$@"', "sh", *inner)
    keeper, parent = outer.stdout.split()
    assert parent == keeper


def test_the_keeper_of_another_job_does_not_count() -> None:
    environ, _ = json.loads(tidegauge_run("--", sys.executable, "-c", SHOW, TIDEGAUGE_KEEPER="1-1").stdout)
    assert environ["TIDEGAUGE_KEEPER"] != "1-1"


def test_a_job_that_is_not_watched_is_not_kept() -> None:
    done = tidegauge_run("--memory-profile=off", "--requeue", "--", sys.executable, "-c", SHOW)
    assert "TIDEGAUGE_KEEPER" not in json.loads(done.stdout)[0]
    assert "--requeue ignored" in done.stderr


def test_the_way_to_a_checkpoint_reaches_the_ranks(tmp_path: Path) -> None:
    flags = ["--checkpoint-signal", "--checkpoint-path", f"{tmp_path}/a", "--checkpoint-path", "b"]
    environ, _ = json.loads(tidegauge_run(*flags, "--", sys.executable, "-c", SHOW).stdout)
    assert environ["TIDEGAUGE_CHECKPOINT_SIGNAL"] == "SIGUSR1"
    assert environ["TIDEGAUGE_CHECKPOINT_PATH"] == f"{tmp_path}/a:{os.getcwd()}/b"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--checkpoint-signal=TERM", "--checkpoint-path=a"], "USR1"),
        (["--checkpoint-signal=USR1"], "go together"),
        (["--checkpoint-path=a"], "go together"),
        (["--checkpoint-signal=USR1", "--checkpoint-path=a:b"], "':'"),
        (["--gpu-share=0"], "above 0"),
        (["--gpu-share=5/4"], "at most 1"),
        (["--gpu-share=1/0"], "such as 1/4"),
    ],
)
def test_run_refuses_contradictory_flags_before_the_job_starts(flags: list[str], told: str) -> None:
    done = tidegauge_run(*flags, "--", "echo", "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_a_share_is_told_to_the_ranks_and_caps_them_below_it() -> None:
    environ, _ = json.loads(tidegauge_run("--gpu-share", "1/4", "--", sys.executable, "-c", SHOW).stdout)
    assert environ["TIDEGAUGE_GPU_SHARE"] == "0.25"
    assert 0.2 < float(environ["TIDEGAUGE_MEMORY_FRACTION"]) < 0.25


@pytest.mark.parametrize(("flags", "fraction"), [(["--memory-fraction=0.1"], "0.1"), ([], None)])
def test_a_fraction_beats_a_share_and_a_whole_gpu_is_no_cap(flags: list[str], fraction: str | None) -> None:
    share = "1/4" if flags else "1"
    environ, _ = json.loads(tidegauge_run(f"--gpu-share={share}", *flags, "--", sys.executable, "-c", SHOW).stdout)
    assert environ.get("TIDEGAUGE_MEMORY_FRACTION") == fraction


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&-", ">&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_cannot_be_used_stops_no_job(redirection: str, tmp_path: Path) -> None:
    run = f"{sys.executable} -m tidegauge run -- {sys.executable} -c \"open('ran', 'w')\" {redirection}"
    done = subprocess.run(
        ["sh", "-c", run], cwd=tmp_path, env={**os.environ, "TIDEGAUGE_RUN_DIR": str(tmp_path)}, timeout=90, check=False
    )
    assert (done.returncode, (tmp_path / "ran").exists()) == (0, True)


def test_a_file_that_may_not_be_executed_is_told_from_one_that_is_not_there(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\n")
    assert tidegauge_run("--", str(script)).returncode == 126
    assert tidegauge_run("--", str(tmp_path)).returncode == 126
    assert tidegauge_run("--", str(tmp_path / "none")).returncode == 127
