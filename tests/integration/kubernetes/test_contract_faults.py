"""The emulator's faults do what they say: other tests build on them. There is no such switch on a real server."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from integration.kubernetes.target import Connection, KubeTarget
from kube_emulator import Emulator

MERGE = "application/merge-patch+json"


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def test_watches_are_cut_and_can_be_opened_again(admin: Connection, maps: str, emulator: Emulator) -> None:
    version = admin.do("GET", maps)["metadata"]["resourceVersion"]
    with admin.watch(maps, resourceVersion=version, timeoutSeconds=600) as events:
        emulator.cut_watches()
        assert list(events) == []  # it returns: nobody waits ten minutes here
    admin.do("POST", maps, {"metadata": {"name": "a"}})
    with admin.watch(maps, resourceVersion=version, labelSelector="!none") as events:
        assert next(events)["type"] == "ADDED"


def test_an_emulator_that_is_away_refuses_connections_and_forgets_nothing(
    admin: Connection, maps: str, emulator: Emulator
) -> None:
    admin.do("POST", maps, {"metadata": {"name": "a"}})
    with emulator.away(), pytest.raises(OSError, match="refused"):
        admin.ask("GET", maps)
    assert admin.ask("GET", f"{maps}/a").code == 200


@pytest.mark.parametrize(
    ("code", "reason"), [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")]
)
def test_so_many_requests_fail_and_are_not_carried_out(
    admin: Connection, maps: str, emulator: Emulator, code: int, reason: str
) -> None:
    emulator.faults.fail(code, 2, method="POST", path=maps, retry_after_s=1)
    answers = [admin.ask("POST", maps, {"metadata": {"name": "a"}}) for _ in range(3)]
    assert [answer.code for answer in answers] == [code, code, 201]
    assert answers[0].refusal == (code, reason)
    assert answers[0].headers["Retry-After"] == "1"


def test_somebody_else_is_quicker(admin: Connection, maps: str, emulator: Emulator) -> None:
    seen = admin.do("POST", maps, {"metadata": {"name": "a"}})
    emulator.faults.conflict("configmaps", "a")
    change = {"metadata": {"resourceVersion": seen["metadata"]["resourceVersion"]}, "data": {"k": "1"}}
    assert admin.ask("PATCH", f"{maps}/a", change, content_type=MERGE).refusal == (409, "Conflict")
    assert admin.ask("PATCH", f"{maps}/a", {"data": {"k": "1"}}, content_type=MERGE).code == 200


def test_an_answer_is_lost_after_the_change_was_made(admin: Connection, maps: str, emulator: Emulator) -> None:
    emulator.faults.lose_answers = 1
    with pytest.raises(OSError, match="without response"):
        admin.ask("POST", maps, {"metadata": {"name": "a"}})
    assert admin.ask("GET", f"{maps}/a").code == 200


def test_a_slow_server_answers_late(admin: Connection, maps: str, emulator: Emulator) -> None:
    emulator.faults.delay_s = 0.3
    began_s = time.monotonic()
    admin.do("GET", maps)
    assert time.monotonic() - began_s >= 0.3


def test_plain_http_and_users_of_kubeconfigs(tmp_path: Path) -> None:
    with Emulator(tmp_path, tls=False, controllers=False) as emulator:
        assert emulator.url.startswith("http://")
        nobody = Connection(emulator.kubeconfig("nobody"))
        assert nobody.ask("GET", "/api/v1/namespaces").refusal == (403, "Forbidden")
        assert nobody.ask("GET", "/apis").code == 200
        target = KubeTarget(emulator.kubeconfig(), emulator)
        assert target.admin.ask("GET", "/api/v1/namespaces").code == 200
        assert not target.has_job_controller


def test_the_emulator_runs_as_a_process_of_its_own(tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "kube_emulator", str(tmp_path)]
    with subprocess.Popen(command, cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        kubeconfig = Path(process.stdout.readline().strip())
        assert Connection(kubeconfig).ask("GET", "/readyz").code == 200
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0
