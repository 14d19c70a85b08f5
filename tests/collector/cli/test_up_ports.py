"""``tidegauge up`` looks at the engine's ports before it starts anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tidegauge.cli.main import main
from tidegauge.cluster.ray_service import service_control
from tidegauge.cluster.ray_service.node_command import PORT_OPTIONS


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> int:
    """The first of 16 ports in a row that nobody has."""
    monkeypatch.setattr(service_control, "run_in_foreground", lambda _, **__: 0)
    for first in range(20_000, 30_000, 16):
        with socket.socket() as head, socket.socket() as other:
            try:
                head.bind(("127.0.0.1", first))
                other.bind(("127.0.0.1", first + 2))
            except OSError:
                continue
        break
    return first


def up(tmp_path: Path, *settings: str) -> int:
    chosen = (f"state_dir={tmp_path}/s", *settings)
    return main(["up", "--foreground", *(part for one in chosen for part in ("--set", one))])


def test_a_port_that_somebody_has_is_named_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free: int
) -> None:
    settings = (f"engine_node_ports={free + 1}-{free + 16}", f"engine_port={free}")
    assert up(tmp_path, *settings) == 0
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free + 3))
        taken.listen()
        assert up(tmp_path, *settings) == 3
    said = capsys.readouterr().err
    assert f"cannot use port {free + 3} on 127.0.0.1: Address already in use" in said
    assert "--set engine_node_ports=FIRST-LAST (0: any free ones)" in said


def test_a_workers_port_that_somebody_has_is_passed_over(tmp_path: Path, free: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free + 1 + len(PORT_OPTIONS)))
        taken.listen()
        assert up(tmp_path, f"engine_node_ports={free + 1}-{free + 16}", f"engine_port={free}") == 0


def test_the_services_own_ports_are_none_of_the_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up(tmp_path, "api_port=6405") == 2
    assert "api_port: 6405 is one of engine_node_ports; choose others" in capsys.readouterr().err


def test_tls_with_half_of_the_sites_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free: int
) -> None:
    ports = (f"engine_node_ports={free + 1}-{free + 16}", f"engine_port={free}")
    assert up(tmp_path, *ports, "engine_tls=true", "engine_tls_cert_file=/site/cert.pem") == 2
    assert up(tmp_path, *ports, *(f"engine_tls_{name}_file=/site/{name}.pem" for name in ("cert", "key", "ca"))) == 2
    assert capsys.readouterr().err.count("go together") == 2


def test_tls_makes_certificates_of_the_token_at_each_start(tmp_path: Path, free: int) -> None:
    chosen = (f"engine_node_ports={free + 1}-{free + 16}", f"engine_port={free}", "engine_tls=true")
    assert up(tmp_path, *chosen) == 0
    first = (tmp_path / "s" / "tls" / "cert.pem").read_bytes()
    assert up(tmp_path, *chosen) == 0
    assert (tmp_path / "s" / "tls" / "cert.pem").read_bytes() != first
