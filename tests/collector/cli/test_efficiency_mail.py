"""``tidegauge efficiency --mail`` on the head: what would be sent, what was sent, and what a crash leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.smtp_server import FakeSmtp
from sample_views import GIB, NOW_S, job_record
from tidegauge.cli.main import main
from tidegauge.cluster.service_record import NodeSpec, StateFiles, prepare_state_dir, write_spec
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.record import JobRecord, RankPeak
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from waiting import eventually

SMALL = RankPeak(0, "node1", 1, 4 * GIB, 80 * GIB, nontorch_bytes=0, gpu_bytes=80 * GIB)
SINCE = ("--since", "999999999d")


def runs_of(name: str, user_name: str, *, hours: float = 10.0, runs: int = 3, **changes: Any) -> list[JobRecord]:
    """Runs of eight GPUs."""
    whole = {"fullest": SMALL, "ended_unix_s": NOW_S, "gpus": 8, **changes}
    return [
        job_record(
            job=JobKey(f"{name}-{user_name}-{at}", 0, 1001),
            job_name=name, user_name=user_name, started_unix_s=NOW_S - hours * 3600.0, **whole,
        )
        for at in range(runs)
    ]  # fmt: skip


@pytest.fixture
def smtp() -> Iterator[FakeSmtp]:
    with FakeSmtp() as smtp:
        yield smtp


@pytest.fixture
def files(tmp_path: Path, smtp: FakeSmtp) -> StateFiles:
    """The service was started with the settings of its mail server."""
    files = prepare_state_dir(tmp_path / "state")
    settings = {
        "state_dir": str(files.root), "cluster": "rose", "mail_server": f"127.0.0.1:{smtp.port}",
        "mail_from": "tidegauge@example.org", "mail_domain": "example.org",
    }  # fmt: skip
    write_spec(
        files,
        NodeSpec(
            state_dir=str(files.root), engine_dir=str(files.root / "engine"), token_file=str(files.token),
            head_address="127.0.0.1:6399", node_address="127.0.0.1", is_head=True, settings=settings,
        ),
    )  # fmt: skip
    store = open_store(sqlite_url(files.root))
    store.jobs.save(
        [
            *runs_of("train", "ada"),
            *runs_of("jupyter-7", "bob", hours=5.0),
            *runs_of("sweep", "1001"),
            *runs_of("rare", "eve", runs=2),
            *runs_of("full", "max", fullest=SMALL._replace(reserved_bytes=76 * GIB)),
        ]
    )
    store.close()
    return files


def efficiency(files: StateFiles, *arguments: str) -> int:
    return main(["efficiency", "--mail", *SINCE, *arguments, "--set", f"state_dir={files.root}"])


def told(page: str) -> dict[str, str]:
    """The last column of the table, by user."""
    lines = page.splitlines()
    place = lines[0].index("mail")
    table = lines[1 : lines.index("")] if "" in lines else lines[1:]
    return {line.split()[0]: line[place:].strip() for line in table}


def test_without_send_the_mails_and_one_of_them_are_shown_and_nothing_is_sent(
    files: StateFiles, smtp: FakeSmtp, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(files.root.rglob("*"))
    assert efficiency(files) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[0].split() == ["user", "jobs", "GPU", "h", "needed", "unused", "mail"]
    assert told(page) == {
        "1001": "none: no address is known",
        "ada": "ada@example.org: would be sent",
        "bob": "bob@example.org: would be sent",
    }
    assert page.count("Hello ") == 1
    assert "\nTo: ada@example.org\nSubject: Your jobs on rose left 18,240 GiB-hours of GPU memory unused\n" in page
    assert "\nHello ada,\n" in page
    assert page.endswith("Nothing was sent. `tidegauge efficiency --mail --send` sends 2 such mails.\n")
    assert smtp.commands == []
    assert sorted(files.root.rglob("*")) == before


def test_with_send_each_user_gets_one_and_the_next_round_sends_none(
    files: StateFiles, smtp: FakeSmtp, capsys: pytest.CaptureFixture[str]
) -> None:
    assert efficiency(files, "--send") == 0
    assert told(capsys.readouterr().out)["ada"] == "ada@example.org: sent"
    assert [one.recipient for one in smtp.delivered] == ["ada@example.org", "bob@example.org"]
    assert "jupyter-7: 3 runs, 120 GPU-hours, 5% needed" in smtp.delivered[1].text()
    assert efficiency(files, "--send") == 0
    assert told(capsys.readouterr().out)["ada"].startswith("none: had one on 2")
    assert len(smtp.delivered) == 2
    assert files.efficiency_mails.stat().st_mode & 0o077 == 0


def test_settings_of_this_command_come_before_those_of_the_service(
    files: StateFiles, smtp: FakeSmtp, capsys: pytest.CaptureFixture[str]
) -> None:
    exclude = ("--set", "efficiency_mail_exclude=user=1001,name=jupyter*", "--set", "efficiency_mail_min_runs=2")
    assert efficiency(files, *exclude, "--set", "efficiency_mail_greeting=Dear {user}:") == 0
    page = capsys.readouterr().out
    assert set(told(page)) == {"ada", "eve"}
    assert "\nDear ada:\n" in page
    assert efficiency(files, "--set", "efficiency_mail_min_gpu_hours=5000") == 0
    said = capsys.readouterr().out
    assert said.startswith("nobody to write to: no user's jobs of the last ")
    assert "ran for 5,000 GPU-hours in all (settings efficiency_mail_*)" in said
    assert efficiency(files, "--user", "bob", "--send") == 0
    assert [one.recipient for one in smtp.delivered] == ["bob@example.org"]


def test_admins_get_a_report_with_pseudonyms_where_these_are_set(
    files: StateFiles, smtp: FakeSmtp, capsys: pytest.CaptureFixture[str]
) -> None:
    report = ("--set", "efficiency_mail_report=admin@example.org, hpc@example.org", "--send")
    smtp.refusals["."] = "451 later"
    assert efficiency(files, *report) == 1
    assert "no report to admin@example.org: " in capsys.readouterr().out
    smtp.refusals.clear()
    assert efficiency(files, *report, "--set", "user_pseudonyms=true") == 0
    assert "ada@example.org: sent" in capsys.readouterr().out
    admin, hpc = (one for one in smtp.delivered if one.recipient in ("admin@example.org", "hpc@example.org"))
    assert admin.mail["Subject"] == "Tidegauge on rose: 2 mails on unused GPU memory sent"
    assert admin.text() == hpc.text()
    assert not re.search(r"\bada\b", admin.text()), "a pseudonym may have these letters"
    assert "@example.org: sent" in admin.text()
    assert efficiency(files, *report) == 0
    assert len(smtp.delivered) == 4, "where nothing was sent there is nothing to report"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--send", "--set", "mail_user=tg"), "mail_user and mail_password_file belong together"),
        (
            ("--send", "--set", "efficiency_mail_report=nobody"),
            "efficiency_mail_report is 'nobody', and no mail address",
        ),
        (("--set", "efficiency_mail_exclude=ada"), "'ada' is none of user=NAME, account=NAME"),
        (("--api", "http://127.0.0.1:1"), "--mail goes with --since, --user and --name"),
    ],
)
def test_wrong_settings_and_options_are_named_and_nothing_is_sent(
    files: StateFiles, smtp: FakeSmtp, arguments: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert efficiency(files, *arguments) == 2
    assert problem in capsys.readouterr().err
    assert smtp.delivered == []


def test_send_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["efficiency", "--send"]) == 2
    assert "--send goes with --mail" in capsys.readouterr().err


def test_a_round_that_is_killed_sends_nobody_a_second_mail(
    files: StateFiles, smtp: FakeSmtp, capsys: pytest.CaptureFixture[str]
) -> None:
    smtp.silent_at = "."
    command = [sys.executable, "-m", "tidegauge", "efficiency", "--mail", "--send", *SINCE]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([*command, "--set", f"state_dir={files.root}"], env=environ) as killed:
        eventually(lambda: "." in smtp.commands)
        assert efficiency(files, "--send") == 3
        assert "another `tidegauge efficiency --mail --send` runs now" in capsys.readouterr().err
        killed.send_signal(signal.SIGKILL)
    smtp.silent_at = None
    assert efficiency(files, "--send") == 0
    assert told(capsys.readouterr().out)["ada"].startswith("none: one of 2")
    assert [one.recipient for one in smtp.delivered] == ["bob@example.org"]
    assert efficiency(files, "--send") == 0
    assert [one.recipient for one in smtp.delivered] == ["bob@example.org"]


def test_users_are_looked_up_when_nobody_can_be_forgotten_any_more(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = DeliveryJournal(files.efficiency_mails, wall_s=lambda: NOW_S)
    try:
        assert efficiency(files, "--send", "--set", "efficiency_mail_min_gpu_hours=1e6") == 3
    finally:
        journal.close()
    assert "runs now" in capsys.readouterr().err
    assert efficiency(files, "--send", "--set", "efficiency_mail_min_gpu_hours=1e6") == 0


def test_mails_are_sent_on_the_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["efficiency", "--mail", "--set", f"state_dir={tmp_path}"]) == 3
    assert "Run this on the head as the user who runs the service" in capsys.readouterr().err
