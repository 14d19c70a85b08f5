"""A head's state directory with everything that the service writes about two users."""

from __future__ import annotations

import json
import time
from pathlib import Path

from person_data import ADA, BOB, Somebody, fill_with_two, incident_of
from scheduler_values import decision
from tidegauge.cluster.coordinator.settings_store import JobSettingsStore
from tidegauge.cluster.incident_loops.action_switch import ActionSwitch
from tidegauge.cluster.service_record import NodeSpec, StateFiles, prepare_state_dir, write_spec
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.core.jobs.settings import JobSettings
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.story_lines import decision_digest, key_of_incident

LINES = 3
"""Of each user in each log."""


def prepare(root: Path, *, database_url: str | None = None) -> StateFiles:
    files = prepare_state_dir(root)
    settings = {"state_dir": str(root), "database_url": database_url}
    write_spec(
        files,
        NodeSpec(
            state_dir=str(root), engine_dir=str(root / "engine"), token_file=str(files.token),
            head_address="127.0.0.1:6399", node_address="127.0.0.1", is_head=True, settings=settings,
        ),
    )  # fmt: skip
    store = open_store(database_url or sqlite_url(root))
    fill_with_two(store)
    store.close()
    _fill_journal(files)
    _fill_mails(files)
    _fill_settings(files)
    ActionSwitch(files.actions).pause(f"{BOB.name} asked for it", ADA.name, time.time())
    for name in ("coordinator.log", "coordinator.log.1", "notifier.log"):
        (files.logs / name).write_text("".join(_line(who, at) for at in range(LINES) for who in (ADA, BOB)))
    session = root / "engine" / "session_2026-11-29" / "logs"
    session.mkdir(parents=True)
    (session / "worker-1.out").write_text(_line(ADA, 1) + _line(BOB, 1))
    (root / "settings.json.damaged").write_text(f'{{"jobs": "{ADA.job_id}')
    (root / "notified.jsonl.damaged").write_text(f"{BOB.job_id}\n")
    return files


def _line(who: Somebody, at: int) -> str:
    return f"2026-11-29 20:0{at}:00,000 INFO tidegauge.x: job {who.job_id} of {who.name} ran {who.script}: line {at}\n"


def _fill_journal(files: StateFiles) -> None:
    journal = DeliveryJournal(files.journal, wall_s=time.time)
    journal.say("slack", "begun", json.dumps([(1.0, f"uid {ADA.uid}"), (2.0, f"uid {BOB.uid}")]))
    for who in (ADA, BOB):
        incident = incident_of(who)
        key = key_of_incident(incident.number, incident.opened_unix_s)
        told = decision_digest(decision(decision_id=f"{who.number}:leak:0:1", incident=incident))
        journal.say("slack", key, json.dumps({"channel": "C1", "ts": f"{who.number}.5", "face": "1"}), over=True)
        journal.say(
            "slack", f"storm/{who.number}.5", json.dumps({"tenants": [f"uid {who.uid}"], "numbers": [who.number]})
        )
        for name in (key, f"told/{told}", f"found/{key}/a1b2"):
            journal.say("mail", name, json.dumps([f"{who.name}@example.org", f"<{who.number}>"]), over=True)
            journal.say("slack owners", name, json.dumps([f"D{who.uid}", f"{who.number}.7"]), over=True)
    journal.close()


def _fill_mails(files: StateFiles) -> None:
    journal = DeliveryJournal(files.efficiency_mails, wall_s=time.time)
    for who in (ADA, BOB):
        journal.say("efficiency", who.name, json.dumps([time.time(), True]))
    journal.close()


def _fill_settings(files: StateFiles) -> None:
    store = JobSettingsStore(files.job_settings, wall_s=time.time, reporting=lambda: ())
    for who in (ADA, BOB):
        store.put(JobSettings(who.job_id, who.uid, 1, environ={"TIDEGAUGE_JOB_NAME": who.job_name}))
