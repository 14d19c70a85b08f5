from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidegauge.cli.run import job_environ

SHOW = "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv[1:]]))"


def tidegauge_run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGAUGE_", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-m", "tidegauge", "run", *arguments],
        env={**clean, **environ}, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_bare_run_means_auto_and_names_the_job() -> None:
    done = tidegauge_run("--", sys.executable, "-c", SHOW)
    environ, _ = json.loads(done.stdout)
    assert environ["TIDEGAUGE_PROFILE"] == "auto"
    assert environ["TIDEGAUGE_JOB_ID"] in done.stderr
    assert environ["TIDEGAUGE_JOB_NAME"] == Path(sys.executable).name


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
    assert "no such command" in tidegauge_run("--", "no-such-trainer").stderr
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
