"""Makes the fixtures beside this file again: what the real service and the real probe of earlier commits wrote.

    PYTHONPATH=tests .venv/bin/python tests/data/upgrade/make.py [RELEASE ...]

Needs the repository's history and the fake-GPU rig (make rig); half a minute for each release. The service of that
commit is brought up, training processes with the probe of that commit run on the rig (one leaks and is killed, one
leaks on, one is short), and then is kept: the ring of the short one with what the *old* reader says of it, the state
directory's files, the database as SQL with what the *old* API said of it, and of the last release a piece of evidence.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from fakegpu.rig import Rig
from fakes.fake_slack import FakeSlack
from integration.service import Service, eventually
from integration.upgrade_releases import COMMITS, old_code, probe_environ, say, service_environ
from tidegauge.cluster.api.client import ApiError

HERE = Path(__file__).parent
SCRIPT = HERE.parents[1] / "soak" / "training.py"
STATE_FILES = ("service.json", "node.json", "api.json", "agent.json", "actions.json", "settings.json", "notified.jsonl")
KEPT_RECORDS = 60
READ_RING = """
import json, sys
from tidegauge.core.ring_layout import HEADER_BYTES, decode_header, decode_identity, decode_record
page = open(sys.argv[1], "rb").read()
header = decode_header(page[:HEADER_BYTES], file_bytes=len(page))
places = [header.offset(0, seq) for seq in range(1, header.capacity + 1)]
samples = [decode_record(page[at : at + 256]) for at in places]
print(json.dumps({
    "header": header._asdict(),
    "identity": decode_identity(page[:HEADER_BYTES])._asdict(),
    "samples": [sample._asdict() for sample in samples if sample is not None],
}))
"""
"""Run by the old code: what its own reader says of the ring."""


class Maker:
    """One release: its service, its ranks, its fixtures."""

    def __init__(self, release: str, code: Path, rig: Rig, scratch: Path) -> None:
        self.folder = HERE / release
        self._code = code
        self._scratch = scratch
        # By names that are the same on every machine: snapshots tell the path of each line.
        (scratch / "venv").symlink_to(rig.venv)
        (scratch / "train.py").write_bytes(SCRIPT.read_bytes())
        self._rig = Rig(venv=scratch / "venv", libraries=rig.libraries)
        environ = rig.environ(devices=2, total_bytes=80 << 30, state=scratch / "gpus")
        self.service = Service(service_environ(code, environ))

    def make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.service.up()
        with self._rank("first", "--leak"):
            self._wait_for_trouble("first")
        with self._rank("second", "--leak"), self._rank("short") as short:
            self._keep_ring(short)
            self._wait_for_trouble("second")
            self._keep_evidence()
            self._keep_answers()
            self.service.call("policy", "pause", "--reason", "an upgrade")
            self._keep_state()
        self.service.call("down")
        self._keep_database()

    @contextmanager
    def _rank(self, name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        environ = self._rig.environ(devices=2, total_bytes=80 << 30, state=self._scratch / "gpus")
        environ = probe_environ(self._code, environ, level="auto")
        environ |= {"TIDEGAUGE_RUN_DIR": str(self.service.run_dir), "TIDEGAUGE_JOB_ID": name, "OMP_NUM_THREADS": "1"}
        command = [str(self._rig.python), str(self._scratch / "train.py"), *flags, "--pause-s", "0.03"]
        process = subprocess.Popen(command, env=environ)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _wait_for_trouble(self, job_id: str) -> None:
        """Until the job is known to leak; where there are incidents, until there is one of it, and what came of it."""

        def leaks() -> bool:
            jobs = self.service.get("/api/v1/jobs")["jobs"]
            return any(job["job_id"] == job_id and job["state"] == "leak" for job in jobs)

        eventually(leaks, f"a leak of {job_id}", within_s=90)
        if self._has_incidents:
            eventually(lambda: self._incident_of(job_id), f"an incident of {job_id}", within_s=60)

    @property
    def _has_incidents(self) -> bool:
        return not self.folder.name.startswith("1-")

    def _incident_of(self, job_id: str) -> dict[str, Any] | None:
        incidents = self.service.get("/api/v1/incidents?all=1")["incidents"]
        found = [one for one in incidents if one["key"]["job"]["job_id"] == job_id]
        return found[0] if found else None

    def _keep_ring(self, short: subprocess.Popen[bytes]) -> None:
        def ring() -> Path | None:
            found = [p for p in self.service.run_dir.glob("*/*.ring") if p.name.startswith(f"{short.pid}-")]
            return found[0] if found else None

        path = eventually(ring, "a ring")

        def said() -> dict[str, Any] | None:
            with suppress(subprocess.CalledProcessError):
                told: dict[str, Any] = json.loads(say(self._code, READ_RING, str(path)))
                return told if len(told["samples"]) >= KEPT_RECORDS else None
            return None

        eventually(said, "records in the ring")
        copy = self._scratch / path.name
        copy.write_bytes(path.read_bytes())
        (self.folder / "rank.ring.gz").write_bytes(gzip.compress(copy.read_bytes(), mtime=0))
        self._write("ring.json", json.loads(say(self._code, READ_RING, str(copy))))

    def _keep_answers(self) -> None:
        answers = {"jobs": self.service.get("/api/v1/jobs")}
        if self._has_incidents:
            answers["incidents"] = self.service.get("/api/v1/incidents?all=1")
            numbers = [one["number"] for one in answers["incidents"]["incidents"]]
            answers["incident"] = {str(n): self.service.get(f"/api/v1/incident?number={n}") for n in numbers}
        self._write("answers.json", answers)

    def _keep_evidence(self) -> None:
        if not self.folder.name.startswith("7-"):
            return

        def looked_into() -> bool:
            incident = self._incident_of("second")
            return incident is not None and bool(incident.get("evidence"))

        eventually(looked_into, "evidence", within_s=120)
        kept = self.folder / "evidence"
        kept.mkdir()
        for path in (*self.service.run_dir.glob("*/*.evidence.json"), *self.service.run_dir.glob("*/*.snap")):
            shutil.copy(path, kept / f"rank{path.name[path.name.index('.') :]}")
        for path in self.service.files.root.glob("snapshots/**/*"):
            if path.is_file():
                shutil.copy(path, kept / path.name)

    def _keep_state(self) -> None:
        state = self.folder / "state"
        state.mkdir()
        for name in STATE_FILES:
            path = self.service.files.root / name
            if path.exists():
                shutil.copy(path, state / name)

    def _keep_database(self) -> None:
        database = self.service.files.root / "tidegauge.db"
        if database.exists():
            with closing(sqlite3.connect(database)) as connection:
                text = "\n".join(connection.iterdump()) + "\n"
            (self.folder / "database.sql.gz").write_bytes(gzip.compress(text.encode(), mtime=0))

    def _write(self, name: str, value: object) -> None:
        (self.folder / f"{name}.gz").write_bytes(gzip.compress(json.dumps(value, indent=1).encode(), mtime=0))


def main(releases: list[str]) -> int:
    rig = Rig()
    reason = rig.available()
    if reason is not None:
        print(f"the fake-GPU rig is needed: {reason}", file=sys.stderr)
        return 2
    for release in releases or list(COMMITS):
        began_s = time.monotonic()
        scratch = Path(tempfile.mkdtemp(prefix="tg-up-", dir="/tmp"))
        with old_code(release) as code, FakeSlack() as slack:
            maker = Maker(release, code, rig, scratch)
            slack.add_user("ada@example.org")
            (scratch / "users.yaml").write_text("root: ada@example.org\n")
            if not release.startswith(("1-", "2-")):
                maker.service.environ |= {
                    "TIDEGAUGE_SLACK_TOKEN": slack.token, "TIDEGAUGE_SLACK_API_URL": slack.api_url,
                    "TIDEGAUGE_SLACK_CHANNEL": "#gpu-memory", "TIDEGAUGE_SLACK_USERS_FILE": str(scratch / "users.yaml"),
                    "TIDEGAUGE_NOTIFY_PORT": "0",
                }  # fmt: skip
            try:
                maker.make()
            except ApiError as error:
                print(maker.service.logs(), file=sys.stderr)
                raise SystemExit(f"{release}: {error}") from error
            finally:
                maker.service.close()
                shutil.rmtree(scratch, ignore_errors=True)
        print(f"{release}: made in {time.monotonic() - began_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
