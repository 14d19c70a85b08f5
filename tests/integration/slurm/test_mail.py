"""``deploy/slurm/mailprog.sh`` between a real slurmctld and a stand-in for the site's mail program."""

from __future__ import annotations

import pytest

from integration.service import eventually
from integration.slurm.box import CHECKOUT, SlurmBox
from integration.slurm.conftest import StartBox

MAILPROG = CHECKOUT / "deploy/slurm/mailprog.sh"
MAIL = """#!/bin/bash
draft=$(mktemp MAILS/draft.XXXXXX)
{ printf '%s\\n' "$@"; printf -- '---\\n'; cat; } >"$draft"
mv "$draft" "MAILS/mail.${draft##*.}"
exit 3
"""
ASKED = (
    '#!/bin/bash\n[[ $7 =~ ^[6-9][0-9]s$ ]] && set -- "${@:1:6}" AGO "${@:8}"\n'
    'echo "job $2: completed after 2 h; rank 0 on n1: 9.0 GiB of 80.0 GiB reserved (11%) [$*]"\n'
)
"""``--since`` of a job of some seconds is a minute and that."""
CALL = "job {job} --brief --wait 1 --since AGO{owner} --api http://ctl:9495"
SAID = f"job {{job}}: completed after 2 h; rank 0 on n1: 9.0 GiB of 80.0 GiB reserved (11%) [{CALL}]"


def said_of(box: SlurmBox, job: str) -> str:
    return SAID.format(job=job, owner=f" --uid {box.run('id', '-u', 'alice').stdout.strip()}")


@pytest.fixture(scope="module")
def box(start_box: StartBox) -> SlurmBox:
    box = start_box(
        nodes=1, gpus=0, slurm_conf="MailProg=/etc/slurm/mailprog.sh", files={
            "mailprog.sh": (MAILPROG.read_text(), 0o755),
            "tidegauge-mail.conf": "mail=/etc/slurm/mail\ntidegauge=/etc/slurm/tidegauge\napi=http://ctl:9495\n",
            "tidegauge": (ASKED, 0o755), "mail": ("#!/bin/bash\n", 0o755),
        },
    )  # fmt: skip
    box.write_file("mail", (MAIL.replace("MAILS", str(box.work)), 0o755))
    return box


def mails(box: SlurmBox) -> list[tuple[list[str], str]]:
    """Arguments and body of each."""
    parts = [path.read_text().partition("---\n") for path in box.work.glob("mail.*")]
    return [(arguments.splitlines(), body) for arguments, _, body in parts]


def mail_with(box: SlurmBox, words: str) -> tuple[list[str], str] | None:
    return next((one for one in mails(box) if any(words in argument for argument in one[0])), None)


def submit(box: SlurmBox, script: str, *options: str) -> str:
    return box.sbatch(script, "--mail-type=ALL", "--mail-user=alice@example.org", *options)


def test_a_mail_on_an_end_has_what_the_job_used(box: SlurmBox) -> None:
    job = submit(box, "exit 0", "--job-name=a b; Ended")
    options, body = eventually(lambda: mail_with(box, f"Job_id={job} Name=a b; Ended Ended,"), "its mail")
    assert options[0] == "-s"
    assert options[-1] == "alice@example.org"
    assert body.endswith(f"\nGPU memory by Tidegauge: {said_of(box, job)}\n")
    failed = submit(box, "exit 4")
    _, body = eventually(lambda: mail_with(box, f"Job_id={failed} Name=sbatch Failed,"), "its mail")
    assert said_of(box, failed) in body


def test_a_mail_on_a_start_is_as_it_came(box: SlurmBox) -> None:
    job = submit(box, "exit 0")
    _, body = eventually(lambda: mail_with(box, f"Job_id={job} Name=sbatch Began,"), "its mail")
    assert body == ""


def test_a_task_of_an_array_is_asked_about_by_its_name_and_an_array_is_not(box: SlurmBox) -> None:
    array = submit(box, "exit 0", "--array=0-1")
    _, body = eventually(lambda: mail_with(box, f"Job_id={array}_* ({array}) Name=sbatch Ended"), "the array's mail")
    assert body == ""
    task = submit(box, "exit 0", "--array=3", "--mail-type=ARRAY_TASKS,END")
    _, body = eventually(lambda: mail_with(box, f"Job_id={task}_3 ({task}) Name=sbatch Ended,"), "the task's mail")
    assert said_of(box, f"{task}_3") in body


@pytest.mark.parametrize(
    "answer", ["exit 3", "echo half; exit 3", "sleep 600", "sleep 600 & echo x; sleep 600", "kill -9 $$"]
)
def test_whatever_fails_the_mail_goes_as_it_came(box: SlurmBox, answer: str) -> None:
    box.write_file("tidegauge", (f"#!/bin/bash\n{answer}\n", 0o755))
    try:
        job = submit(box, "exit 0")
        _, body = eventually(lambda: mail_with(box, f"Job_id={job} Name=sbatch Ended,"), "its mail")
    finally:
        box.write_file("tidegauge", (ASKED, 0o755))
    assert body == ""


def test_the_site_s_program_gets_the_body_and_its_exit_status_counts(box: SlurmBox) -> None:
    """Called by hand, as slurmctld gives no body and waits for no status."""
    subject = ["-s", "Slurm Job_id=7 Name=x Ended, Run time 00:00:01, COMPLETED, ExitCode 0", "bob"]
    done = box.run("/etc/slurm/mailprog.sh", *subject, stdin="the body\n", check=False)
    assert done.returncode == 3
    (body,) = [body for _, body in mails(box) if body.startswith("the body")]
    assert body == f"the body\n\nGPU memory by Tidegauge: {SAID.format(job=7, owner='')}\n"
    box.run("rm", "/etc/slurm/tidegauge")
    done = box.run("/etc/slurm/mailprog.sh", *subject, stdin="alone\n", check=False)
    assert done.returncode == 3
    assert "alone\n" in [body for _, body in mails(box)]
