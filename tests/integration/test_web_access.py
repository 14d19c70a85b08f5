"""A real service behind TLS and names: its own commands, users' commands, a real Prometheus, and where no secret is.

Every secret has CANARY in it, or is a token or a hash that is looked for: at the end all that the service and its
commands wrote, printed and showed in the process table is searched for them. The tests run in this order.
"""

from __future__ import annotations

import getpass
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from fake_node import MIB, FakeClock, FakeRank, identity
from integration.needs import missing
from integration.prometheus_server import prometheus_binary, running_prometheus
from integration.server_process import free_port
from integration.service import ANSWER_TIMEOUT_S, Finished, Service, answered, eventually, told
from scheduler_values import decision, incident
from tidegauge.cluster.api import client
from tidegauge.cluster.api.client import ApiAccess
from tidegauge.cluster.service_record import read_address
from tidegauge.cluster.store import open_store
from tidegauge.core.ids import GlobalRank, JobId, JobKey, LocalRank
from tidegauge.core.incidents import ChangeKind, Closure, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import Outcome
from tidegauge.http.tokens import make_token, token_line
from tidegauge.osproc.processes import identity_of
from web_certificates import Authority

pytestmark = pytest.mark.timeout(300)

ME = getpass.getuser()
"""Whose job runs here, as the kernel says."""
NAMES = (ME, "ada", "boss")
PASSWORD = "CANARY-scrape-password"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(5)).decode()

PROMETHEUS = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: tidegauge
    honor_labels: true
    basic_auth: {username: prometheus, password_file: FOLDER/scrape-password}
    tls_config: {ca_file: FOLDER/test-authority.pem}
    http_sd_configs:
      - url: "API/sd"
        refresh_interval: 1s
        basic_auth: {username: prometheus, password_file: FOLDER/scrape-password}
        tls_config: {ca_file: FOLDER/test-authority.pem}
    relabel_configs:
      - {source_labels: [__meta_tidegauge_component], target_label: component}
"""


class Site:
    """A service behind TLS and names, on loopback, and whoever asks it."""

    def __init__(self) -> None:
        self.service = Service()
        self.folder = self.service.root / "web"
        self.folder.mkdir()
        self.authority = Authority(self.folder)
        self.tokens = {name: make_token() for name in NAMES}
        self.outputs: list[str] = []
        self._write()
        self.service.environ |= {
            "TIDEGAUGE_WEB_CONFIG_FILE": str(self.folder / "web.yml"),
            "TIDEGAUGE_API_TOKENS_FILE": str(self.folder / "tokens"),
            "TIDEGAUGE_API_ADMINS": "boss",
            "TIDEGAUGE_API_PORT": str(free_port()),  # Prometheus is told of it once, whatever is started again
            "TIDEGAUGE_ALERTMANAGER_URL": "http://127.0.0.1:9",
            "TIDEGAUGE_DATABASE_URL": f"sqlite:///{self.service.root}/t.db",
        }

    def _write(self) -> None:
        self.authority.issue("node7", "127.0.0.1")
        self.web("prometheus")
        (self.folder / "scrape-password").write_text(PASSWORD)
        tokens = self.folder / "tokens"
        tokens.write_text("\n".join(token_line(name, token) for name, token in self.tokens.items()))
        tokens.chmod(0o600)
        for name, token in self.tokens.items():
            path = self.folder / f"token-of-{name}"
            path.write_text(token)
            path.chmod(0o600)

    def web(self, *users: str) -> None:
        lines = "".join(f"  {name}: {HASH}\n" for name in users)
        text = f"tls_server_config: {{cert_file: node7.pem, key_file: node7.key}}\nbasic_auth_users:\n{lines}"
        draft = self.folder / "web.new"
        draft.write_text(text)
        draft.replace(self.folder / "web.yml")

    @property
    def url(self) -> str:
        url = read_address(self.service.files.api)
        assert url is not None
        return url

    def get(self, path: str, name: str | None) -> dict[str, Any]:
        """From the API, as somebody with a token, or as nobody. Raises ``ApiError``."""
        access = ApiAccess(None if name is None else self.tokens[name], self.authority.certificate)
        return client.get(self.url, path, access=access, timeout_s=ANSWER_TIMEOUT_S)

    def call(self, *arguments: str, environ: Mapping[str, str] | None = None) -> Finished:
        done = self.service.call(*arguments, environ=environ)
        self.outputs += [done.out, done.err]
        return done

    def ask_as(self, name: str, *arguments: str) -> Finished:
        """A command on another machine: it knows the head's address, its own token and the authority."""
        return self.call(
            *arguments, "--api", self.url,
            environ={
                "TIDEGAUGE_STATE_DIR": str(self.folder / "elsewhere"),
                "TIDEGAUGE_API_TOKEN_FILE": str(self.folder / f"token-of-{name}"),
                "TIDEGAUGE_API_CA_FILE": str(self.authority.certificate),
            },
        )  # fmt: skip

    def secrets(self) -> list[str]:
        keys = [line for line in (self.folder / "node7.key").read_text().splitlines() if "---" not in line]
        return ["CANARY", HASH, *self.tokens.values(), *keys]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    try:
        # A token of the caller's own, by mistake in the environment that the service is started with.
        site.outputs.append(site.call("up", "--json", environ={"TIDEGAUGE_API_TOKEN": "CANARY-of-the-caller"}).err)
        wait_for_the_database(site)
        yield site
    finally:
        site.service.close()


def wait_for_the_database(site: Site) -> None:
    """Which a coordinator opens in its own time, healthy or not."""
    eventually(lambda: site.call("policy", "grade", "--since", "1d").code == 0, "the service's database is open")


def watch_a_rank(site: Site) -> None:
    """The ring of a rank of this user's that has just done 200 steps."""
    process, now_s = identity_of(os.getpid()), time.monotonic()
    assert process is not None
    clock = FakeClock(now_s=now_s - 2.0, unix_offset_s=time.time() - now_s)
    who = identity(
        job_id=JobId("mine"), rank=GlobalRank(0), local_rank=LocalRank(0), world_size=1, job_name="train",
        device_uuids=(),
    )  # fmt: skip
    writer = FakeRank(site.service.run_dir, clock, process=process, capacity=4096, who=who)
    for step in range(200):
        writer.record(step=step, allocated=4096 * MIB)
        clock.pass_s(0.01)


def test_the_heads_own_commands_and_parts_need_no_token(site: Site) -> None:
    assert site.url.startswith("https://")

    def all_is_well() -> Finished | None:
        said = site.call("status", "--json")
        return said if said.code == 0 else None

    status = eventually(all_is_well, "the service is healthy: an agent that stood still is not for a moment").json
    assert status["healthy"] is True
    (node,) = status["service"]["nodes"]
    assert node["metrics_address"].startswith("https://127.0.0.1:")
    assert "https://127.0.0.1:" in site.call("status").out
    assert told(lambda: site.call("incidents", "--all")).code == 0
    assert told(lambda: site.call("policy", "status")).code == 0

    def notifier_stands() -> list[str]:
        actions = site.call("status", "--json").json["actions"]
        return sorted(actions["telling"] if actions else ())

    # It reads incidents from the API like everybody else: were it not let in, "service" would stay among its problems.
    eventually(lambda: notifier_stands() == ["alertmanager"], "the notifier has one problem")


def test_a_user_sees_their_own_job_and_no_other(site: Site) -> None:
    watch_a_rank(site)
    eventually(lambda: "mine" in site.ask_as("boss", "jobs").out, "the job is watched")
    assert "mine" in told(lambda: site.ask_as(ME, "jobs")).out
    ada = told(lambda: site.ask_as("ada", "jobs", "--json"))
    assert (ada.code, ada.json["jobs"]) == (0, [])
    eventually(lambda: site.ask_as("ada", "status").code == 0, "she is told how the service is")
    asked = "/api/v1/memory?job_id=mine&attempt=0"
    assert [bool(site.get(asked, name)["ranks"]) for name in NAMES] == [True, False, True]


def test_a_stranger_is_told_what_to_do(site: Site) -> None:
    nobody = {"TIDEGAUGE_STATE_DIR": str(site.folder / "elsewhere")}
    trusting = nobody | {"TIDEGAUGE_API_CA_FILE": str(site.authority.certificate)}
    wrong = trusting | {"TIDEGAUGE_API_TOKEN": "CANARY-not-a-token"}
    for environ, said in (
        (nobody, "is not trusted here"), (trusting, "tidegauge config token"), (wrong, "rejects the token"),
    ):  # fmt: skip
        done = site.call("jobs", "--api", site.url, environ=environ)
        assert (done.code, said in done.err) == (3, True), done.err
    plain = site.call("jobs", "--api", site.url.replace("https", "http"), environ=nobody)
    assert plain.code == 3


def test_prometheus_scrapes_every_node_and_the_coordinator_by_name_and_password_over_tls(site: Site) -> None:
    if prometheus_binary() is None:
        missing("prometheus (Debian package) is not installed")
    folder = site.service.root / "prometheus"
    folder.mkdir()
    config = PROMETHEUS.replace("FOLDER", str(site.folder)).replace("API", site.url)
    with running_prometheus(folder, config) as prometheus:
        up = prometheus.wait_for("up", scraped, within_s=60)
        assert {one["metric"]["component"] for one in up} == {"agent", "coordinator", "notifier"}
        assert {target["scrapeUrl"][:8] for target in prometheus.targets()} == {"https://"}
        prometheus.wait_for('tidegauge_rank_allocated_bytes{job_id="mine"}')
        prometheus.wait_for('tidegauge_job_info{job_id="mine"}')

        # Its name is taken away and another gets in: the next scrape is refused, without a restart of anything.
        site.web("grafana")
        prometheus.wait_for("up", refused, within_s=60)
        eventually(
            lambda: all("401" in target["lastError"] for target in prometheus.targets()), "all are refused by name"
        )
        site.web("prometheus")
        prometheus.wait_for("up", scraped, within_s=60)

        # A renewed certificate of another authority is not Prometheus' any more: it was read again.
        mine = site.authority.certificate.read_bytes()
        other = site.service.root / "other"
        other.mkdir()
        Authority(other).issue("node7", "127.0.0.1")
        kept = {name: (site.folder / name).read_bytes() for name in ("node7.pem", "node7.key")}
        for name in kept:
            shutil.copy(other / name, site.folder / name)
        prometheus.wait_for("up", refused, within_s=60)
        for name, content in kept.items():
            (site.folder / name).write_bytes(content)
        assert site.authority.certificate.read_bytes() == mine
        prometheus.wait_for("up", scraped, within_s=60)


def test_a_file_that_breaks_while_it_is_used_lets_nobody_in_and_locks_nobody_out(site: Site) -> None:
    good = (site.folder / "web.yml").read_text()
    (site.folder / "web.yml").write_text("basic_auth_users: {prometheus: CANARY-in-a-broken-file}")
    try:
        assert told(lambda: site.ask_as("boss", "jobs")).code == 0
        log = site.service.files.logs / "coordinator.log"
        eventually(lambda: "what was in force before stays so" in log.read_text(), "it is said")
    finally:
        (site.folder / "web.yml").write_text(good)


def test_a_coordinator_that_was_killed_comes_back_behind_the_same_door(site: Site) -> None:
    (pid,) = site.service.coordinators()
    os.kill(pid, 9)
    eventually(lambda: site.service.coordinators() not in ([], [pid]), "another coordinator")
    eventually(lambda: site.call("status", "--json").code == 0, "the head's own commands work again")
    with pytest.raises(client.ApiError, match="requires a token"):
        site.get("/api/v1/jobs", None)
    assert site.get("/api/v1/jobs", "boss")["jobs"]


def test_an_incident_is_graded_by_its_owner_and_by_admins(site: Site) -> None:
    """Of a job that has ended: the running coordinator's database has it, as after a restart."""
    wait_for_the_database(site)
    number = plant_an_incident(site, "ada")
    theirs = f"/grade?incident={number}"
    assert site.ask_as(ME, "policy", "grade", str(number), "leak").code == 2
    said = site.ask_as("ada", "policy", "grade", str(number), "not-a-leak", "--comment", "a buffer")
    assert (said.code, said.out) == (0, f"Recorded. Incident {number} counts as not a leak, says ada: a buffer\n")
    access = ApiAccess(site.tokens["ada"], site.authority.certificate)
    page = client.get_bytes(site.url, theirs, access=access, timeout_s=ANSWER_TIMEOUT_S).decode()
    assert "Not a leak, says ada: a buffer" in page
    assert site.ask_as("boss", "policy", "grade", str(number), "leak").code == 0
    here = site.call("policy", "grade", str(number), "leak")  # on the head's own socket
    assert (here.code, here.out) == (0, f"Recorded. Incident {number} counts as a leak, says {ME} (admin)\n")
    table = answered(lambda: site.call("policy", "grade", "--since", "1d", "--json"))
    (incident,) = table["incidents"]
    assert [one["by"] for one in incident["answers"]] == ["ada", "boss", ME]
    assert (table["precision"][0]["told"], table["precision"][0]["precision"]) == (1, 1.0)
    shown = told(lambda: site.ask_as("ada", "incidents", "show", str(number))).out
    assert "graded: a leak, says boss (admin)" in shown
    assert shown.splitlines()[-1].endswith(f"or {site.url}{theirs}")


def test_up_refuses_a_file_that_cannot_be_used(site: Site) -> None:
    broken = site.folder / "broken.yml"
    broken.write_text("basic_auth_users: {prometheus: CANARY}")
    done = site.call("up", environ={"TIDEGAUGE_WEB_CONFIG_FILE": str(broken),
                                    "TIDEGAUGE_STATE_DIR": str(site.service.root / "x")})  # fmt: skip
    assert (done.code, "this is no bcrypt hash" in done.err) == (2, True)


def test_no_secret_is_in_a_log_an_output_a_command_line_or_an_environment(site: Site) -> None:
    shown = site.call("config", "show", environ={
        "TIDEGAUGE_API_TOKEN": "CANARY-in-the-environment",
        "TIDEGAUGE_DATABASE_URL": "postgresql+psycopg://tg:CANARY:@x@db.example/tg",
    })  # fmt: skip
    assert "postgresql+psycopg://tg:***@db.example/tg" in " ".join(shown.out.split())
    assert "CANARY" not in site.call("config", "show", "--json", environ={
        "TIDEGAUGE_DATABASE_URL": "postgresql+psycopg://tg:CANARY@db.example/tg"}).out  # fmt: skip
    looked_at = {f"output {number}": text for number, text in enumerate(site.outputs)}
    for path in log_files(site):
        with suppress(FileNotFoundError):  # a draft that has got its name
            looked_at[f"log {path}"] = path.read_text(errors="replace")
    looked_at |= {f"{what} of {pid}": text for pid in of_the_service(site) for what, text in shown_by_proc(pid)}
    assert len([name for name in looked_at if name.startswith("log ")]) >= 3
    assert len([name for name in looked_at if name.startswith("cmdline ")]) >= 5
    for what in ("output", "log", "cmdline", "environ"):  # what is no secret is found everywhere
        assert any(str(site.service.root) in text for name, text in looked_at.items() if name.startswith(what))
    found = [(name, secret[:12]) for name, text in looked_at.items() for secret in site.secrets() if secret in text]
    assert found == []


def plant_an_incident(site: Site, owner: str) -> int:
    """One that told its owner and is closed; its number is none that the service gives."""
    number, now_s = 900, time.time()
    over = incident(
        number=number, job=JobKey("theirs", 0, 4242), user_name=owner, state=IncidentState.CLOSED,
        closure=Closure.JOB_ENDED, opened_unix_s=now_s - 600.0, updated_unix_s=now_s - 60.0, closed_unix_s=now_s - 60.0,
    )  # fmt: skip
    store = open_store(f"sqlite:///{site.service.root}/t.db")
    try:
        store.incidents.save([IncidentChange(ChangeKind.CLOSED, now_s - 60.0, over)])
        store.audit.write_ahead([decision(decision_id="planted", incident=over, decided_s=now_s - 599.0)])
        store.audit.finish("planted", Outcome.DONE, "by mail", at_s=now_s - 598.0)
    finally:
        store.close()
    return number


def scraped(found: list[dict[str, Any]]) -> bool:
    return len(found) == 3 and all(one["value"][1] == "1" for one in found)


def refused(found: list[dict[str, Any]]) -> bool:
    return bool(found) and all(one["value"][1] == "0" for one in found)


def log_files(site: Site) -> list[Path]:
    """The service's own, the engine's, and what lies in the state directory beside them; not what was put there."""
    roots = (site.service.files.root, site.service.root / "prometheus")
    found = [Path(folder, name) for root in roots for folder, _, names in os.walk(root) for name in names]
    return [path for path in found if path.is_file() and not path.is_symlink() and "tsdb" not in path.parts]


def of_the_service(site: Site) -> list[int]:
    return [site.service.record.supervisor.pid, *(stat.process.pid for stat in site.service.processes())]


def shown_by_proc(pid: int) -> Iterator[tuple[str, str]]:
    for name in ("cmdline", "environ"):
        with suppress(OSError):  # it ended
            yield name, Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
