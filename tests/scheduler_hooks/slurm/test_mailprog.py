"""``deploy/slurm/mailprog.sh`` with stand-ins for the site's mail program and for ``tidegauge``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/slurm/mailprog.sh"
SUBJECT = "Slurm Job_id=7 Name=train Ended, Run time {ran}, COMPLETED, ExitCode 0"
ENDED = SUBJECT.format(ran="1-00:01:02")
START_UNIX_S = 1_700_000_000


@pytest.fixture
def site(tmp_path: Path) -> Path:
    _program(tmp_path / "mail", f'cat >"{tmp_path}/sent"')
    _program(tmp_path / "tidegauge", 'echo "said [$*]"')
    (tmp_path / "mailprog.sh").write_text(SCRIPT.read_text())
    (tmp_path / "mailprog.sh").chmod(0o755)
    (tmp_path / "tidegauge-mail.conf").write_text(f"mail={tmp_path}/mail\ntidegauge={tmp_path}/tidegauge\n")
    return tmp_path


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def sent(site: Path, subject: str = ENDED, *, program: str = "mailprog.sh", **environ: str) -> str:
    """The mail that went out."""
    command: list[str | Path] = [site / program, "-s", subject, "alice"]
    environ = {"PATH": "/usr/bin:/bin", **environ}
    subprocess.run(command, input="body\n", env=environ, text=True, check=True, timeout=30)
    return (site / "sent").read_text()


@pytest.mark.parametrize(
    "line", ["mail={}/mail  # the old one", "mail={}/mail\r", 'mail="{}/mail"', "mail='{}/mail' ", " mail = {}/mail"]
)
def test_a_mail_goes_out_by_a_program_that_is_written_less_than_strictly(site: Path, line: str) -> None:
    with (site / "tidegauge-mail.conf").open("a", newline="") as conf:
        conf.write(f"mail=/nothing/there\n{line.format(site)}\n")
    assert "said [job 7" in sent(site)


def test_where_the_program_cannot_be_run_another_one_is_tried(site: Path) -> None:
    (site / "tidegauge-mail.conf").write_text("mail=/nothing/there\n")
    done = subprocess.run([site / "mailprog.sh", "-s", "x", "alice"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, check=False, env={"PATH": "/usr/bin:/bin"}, timeout=30)  # fmt: skip
    assert "cannot run '/nothing/there'" in done.stderr
    assert "trying /usr/bin/mail" in done.stderr


def test_its_settings_may_lie_beside_the_file_that_a_link_leads_to(site: Path) -> None:
    (site / "links").mkdir()
    (site / "links/mailprog.sh").symlink_to("../mailprog.sh")
    assert "said [job 7" in sent(site, program="links/mailprog.sh")


def test_only_the_job_of_this_user_and_this_start_is_asked_about(site: Path) -> None:
    assert sent(site) == (
        "body\n\nGPU memory by Tidegauge: said [job 7 --brief --wait 1 --since 86522s]\n"  # 1-00:01:02 and a minute
    )
    assert "--wait 1 --since 569s --uid 1001]" in sent(site, SUBJECT.format(ran="00:08:29"), SLURM_JOB_UID="1001")


def test_of_a_job_that_was_suspended_the_start_counts(site: Path) -> None:
    _program(site / "date", f"echo {START_UNIX_S + 5000}")
    said = sent(site, SLURM_JOB_START_TIME=str(START_UNIX_S), PATH=f"{site}:/usr/bin:/bin")
    assert "--since 5060s]" in said


@pytest.mark.parametrize("name", ["x Ended, y", "x Ended, Run time 00:00:01", "x Ended, Run time 00:00:01, A, B"])
def test_a_mail_on_a_start_is_not_taken_for_one_on_an_end_by_the_name_of_its_job(site: Path, name: str) -> None:
    assert sent(site, f"Slurm Job_id=7 Name={name} Began, Queued time 00:00:01") == "body\n"


@pytest.mark.parametrize(
    "words",
    [
        "Failed, Run time 00:00:09, FAILED, ExitCode 4",
        "Ended, Run time 00:00:09, CANCELLED",
        "Failed, Run time 00:00:09, OUT_OF_MEMORY",
        "Failed, Run time 00:00:09",
    ],
)
def test_every_end_is_told(site: Path, words: str) -> None:
    assert "--since 69s]" in sent(site, f"Slurm Job_id=7 Name=a Ended, b {words}")


@pytest.mark.parametrize("program", ["sleep 600 & echo x", "trap '' TERM; while :; do sleep 1; done"])
def test_what_stays_behind_does_not_delay_the_mail(site: Path, program: str) -> None:
    """Nor does it stay: the writing end of the pipe closes with the last process that has it."""
    fifo = site / "alive"
    subprocess.run(["mkfifo", fifo], check=True)
    _program(site / "tidegauge", f'exec 9>"{fifo}"\n{program}')
    with subprocess.Popen(["cat", fifo]) as reader:
        assert sent(site) == "body\n"
        assert reader.wait(timeout=30) == 0
