"""Certificates that nodes make from one token, and what a node says that does not fit to its head."""

from __future__ import annotations

import dataclasses
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tidegauge.cluster.ray_service.engine_tls import TlsFiles, make_certificates, tls_files, why_no_handshake
from tidegauge.cluster.ray_service.node_command import engine_environ
from tidegauge.cluster.service_record import NodeSpec

TOKEN = "3f" * 32
HEAD, NODE = "127.0.0.2", "127.0.0.3"
SETTINGS_FRAME = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""HTTP/2's first word of a server (RFC 9113, 3.4)."""


def made(folder: Path, token: str = TOKEN, address: str = NODE) -> TlsFiles:
    folder.mkdir(exist_ok=True)
    files = tls_files({"engine_tls": True}, str(folder))
    assert files is not None
    make_certificates(files, token, address)
    return files


@contextmanager
def head(files: TlsFiles | None) -> Iterator[str]:
    """A server as gRPC's: HTTP/2, a client's certificate is asked for. ``None``: without TLS."""
    context = None
    if files is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.authority)
        context.load_cert_chain(files.certificate, files.key)
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols(["h2"])
    with socket.create_server((HEAD, 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    connection.settimeout(30)
                    if context is None:
                        connection.sendall(SETTINGS_FRAME)
                        connection.recv(1000)
                        continue
                    with context.wrap_socket(connection, server_side=True) as secret:
                        secret.sendall(SETTINGS_FRAME)
                        secret.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{HEAD}:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def why(address: str, files: TlsFiles | None) -> str | None:
    return why_no_handshake(address, files, timeout_s=60)


def test_nodes_that_share_a_token_and_nothing_else_understand_each_other(tmp_path: Path) -> None:
    with head(made(tmp_path / "head", address=HEAD)) as address:
        assert why(address, made(tmp_path / "node")) is None


def test_without_tls_on_both_sides_nothing_is_said() -> None:
    with head(None) as address:
        assert why(address, None) is None


def test_a_node_with_another_token_is_told_that_the_token_is_another(tmp_path: Path) -> None:
    with head(made(tmp_path / "head", address=HEAD)) as address:
        reason = why(address, made(tmp_path / "node", token="00" * 32))
    assert reason is not None
    assert "is not one of this cluster" in reason
    assert "copy the head's token file again" in reason


def test_a_head_that_shows_the_certificate_of_another_address_is_not_believed(tmp_path: Path) -> None:
    """As after a node's certificate was stolen."""
    with head(made(tmp_path / "head", address="127.0.0.9")) as address:
        assert "is not one of this cluster" in (why(address, made(tmp_path / "node")) or "")


def test_a_node_without_tls_is_told_that_its_head_asks_for_it(tmp_path: Path) -> None:
    with head(made(tmp_path / "head", address=HEAD)) as address:
        assert why(address, None) == f"the head at {address} asks for TLS: set engine_tls=true here, too"


def test_a_node_with_tls_is_told_that_its_head_has_none(tmp_path: Path) -> None:
    with head(None) as address:
        reason = why(address, made(tmp_path / "node"))
    assert reason is not None
    assert "has no TLS, or refuses this node's certificate" in reason


def test_a_node_whose_certificate_the_head_refuses_is_told_so(tmp_path: Path) -> None:
    """It believes the head's authority, and shows a certificate of another one."""
    ours, other = made(tmp_path / "head", address=HEAD), made(tmp_path / "node", token="00" * 32)
    with head(ours) as address:
        assert "refuses this node's certificate" in (why(address, other._replace(authority=ours.authority)) or "")


def test_a_head_that_says_nothing_is_not_taken_for_one_without_tls(tmp_path: Path) -> None:
    """As one that is stopped: the kernel takes connections for it."""
    with socket.create_server((HEAD, 0)) as silent:
        address = "{}:{}".format(*silent.getsockname())
        reason = why_no_handshake(address, made(tmp_path / "node"), timeout_s=0.2)
        assert reason is not None
        assert "said nothing" in reason
        assert why_no_handshake(address, None, timeout_s=0.2) is None


def test_files_that_cannot_be_read_are_a_reason_and_no_error(tmp_path: Path) -> None:
    files = made(tmp_path / "node")
    files.key.write_text("garbage")
    assert "this node's certificate cannot be used" in (why("127.0.0.1:1", files) or "")


def test_keys_are_the_owners_alone_and_the_authoritys_is_nowhere(tmp_path: Path) -> None:
    files = made(tmp_path / "node")
    assert {path.name for path in files.key.parent.iterdir()} == {"ca.pem", "cert.pem", "key.pem"}
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.key.parent.stat().st_mode) == 0o700
    first = files.key.read_bytes()
    assert made(tmp_path / "node").key.read_bytes() != first
    assert made(tmp_path / "other").authority.read_bytes() != files.authority.read_bytes(), "serial numbers differ"


@pytest.mark.parametrize("address", ["10.0.0.7", "fd00::7"])
def test_a_certificate_names_the_address_of_its_node(tmp_path: Path, address: str) -> None:
    files = made(tmp_path / "node", address=address)
    from cryptography import x509

    names = x509.load_pem_x509_certificate(files.certificate.read_bytes()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert [str(one) for one in names.value.get_values_for_type(x509.IPAddress)] == [address]


def test_the_engine_gets_the_files_of_its_node_or_of_the_site(tmp_path: Path) -> None:
    spec = NodeSpec(
        state_dir=str(tmp_path), engine_dir="/e", token_file="/t", head_address="10.0.0.1:6399",
        node_address="10.0.0.2", is_head=False, settings={},
    )  # fmt: skip

    def environ(**settings: object) -> dict[str, str]:
        changed = dataclasses.replace(spec, settings=settings)
        found = engine_environ(changed, {}, node_file=tmp_path / "n", gcs_dir=None)
        return {name: value for name, value in found.items() if "TLS" in name}

    assert environ() == environ(engine_tls=False) == {}
    assert environ(engine_tls=True) == {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": f"{tmp_path}/tls/cert.pem",
        "RAY_TLS_SERVER_KEY": f"{tmp_path}/tls/key.pem",
        "RAY_TLS_CA_CERT": f"{tmp_path}/tls/ca.pem",
    }
    site = {f"engine_tls_{name}_file": f"/site/{name}.pem" for name in ("cert", "key", "ca")}
    assert environ(engine_tls=True, **site)["RAY_TLS_SERVER_CERT"] == "/site/cert.pem"
