from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tidegauge.cli.service.with_service import job_service_settings, make_folder, own_run_dir, quietly
from tidegauge.cluster.api.client import ApiError
from tidegauge.cluster.ray_service.allocation import Allocation

JOB = Allocation("4711", 0, "gpu01", ("gpu01",))


def test_a_job_has_a_run_directory_of_its_own(tmp_path: Path) -> None:
    assert own_run_dir(JOB, uid=5001, site=tmp_path / "none") == "/dev/shm/tidegauge-5001-4711"


def test_the_sites_service_is_never_kept_from_a_job(tmp_path: Path) -> None:
    assert own_run_dir(JOB, uid=5001, site=tmp_path) is None


def test_the_service_of_a_job_only_observes_and_tells_nobody(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "cluster: mine\npolicy_file: /etc/p.yaml\nlisten_host: 0.0.0.0\nslack_channel: '#x'\napi_port: 9495\n"
    )
    environ = {
        "TIDEGAUGE_CONFIG": str(config), "TIDEGAUGE_POLL_PERIOD_S": "2", "TIDEGAUGE_PROFILE": "auto",
        "TIDEGAUGE_CHECKPOINT_SIGNAL": "USR2", "TIDEGAUGE_MAIL_SERVER": "mail",
    }  # fmt: skip
    settings = job_service_settings(environ, state_dir=tmp_path, run_dir="/dev/shm/x")
    assert (settings.cluster, settings.poll_period_s, settings.run_dir) == ("mine", 2, Path("/dev/shm/x"))
    assert (settings.policy_file, settings.slack_channel, settings.mail_server) == (None, None, None)
    assert (settings.listen_host, settings.api_port, settings.metrics_port) == ("127.0.0.1", 0, 0)


def test_each_attempt_has_its_folder(tmp_path: Path) -> None:
    assert [make_folder(tmp_path, "4711", restarts).name for restarts in (0, 2)] == [
        "tidegauge-4711",
        "tidegauge-4711-2",
    ]


def test_quietly_prints_a_failure_and_continues() -> None:
    said: list[str] = []

    def fails() -> None:
        raise ApiError("it does not answer")

    quietly(fails, said.append, "not kept")
    assert said == ["not kept: it does not answer"]


def _with_service(tmp_path: Path, *command: str) -> subprocess.Popen[str]:
    """``run --with-service`` in an allocation whose Slurm is a file: no service starts, as the address is none."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$2" = hostnames ] && echo n1 && echo n2 && exit 0\necho no such node >&2\nexit 1\n'
    )
    scontrol.chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURMD_NODENAME": "n1", "SLURM_SUBMIT_DIR": str(tmp_path), "TIDEGAUGE_RUN_DIR": str(tmp_path / "run"),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "tidegauge", "run", "--with-service", "--", *command], env=environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_job_whose_service_does_not_start_runs_without(tmp_path: Path) -> None:
    show = "import json, os; print(json.dumps(dict(os.environ))); raise SystemExit(7)"
    started = _with_service(tmp_path, sys.executable, "-c", show)
    out, err = started.communicate(timeout=90)
    assert started.returncode == 7
    assert "the command runs without it: `scontrol --oneliner show node n2` failed: no such node" in err
    assert json.loads(out)["TIDEGAUGE_PROFILE"] == "auto"


def test_a_signal_to_tidegauge_alone_reaches_the_command(tmp_path: Path) -> None:
    waits = "import signal; print('ready', flush=True); print(signal.sigwait([signal.SIGUSR1]).name)"
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); "
    started = _with_service(tmp_path, sys.executable, "-c", block + waits)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    started.send_signal(signal.SIGUSR1)
    out, _ = started.communicate(timeout=90)
    assert (out, started.returncode) == ("SIGUSR1\n", 0)


def test_a_command_that_a_signal_ended_ends_as_a_shell_says(tmp_path: Path) -> None:
    started = _with_service(tmp_path, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    started.communicate(timeout=90)
    assert started.returncode == 128 + 9
