"""`ServedHosts`: the names that no other site can have lead to this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.http.served_hosts import LOOK_AGAIN_S, MachineNames, ServedHosts, machine_names


def nothing() -> MachineNames:
    raise AssertionError("looked up for nothing")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:9495", "10.0.0.7:80", "[::1]", "[fe80::1]:9495", "localhost", "LocalHost:9495",
     "a.localhost", "localhost."],
)  # fmt: skip
def test_addresses_and_localhost_are_served_without_a_look_up(host: str) -> None:
    assert ServedHosts(look=nothing).serve(host)


def test_a_client_without_host_is_no_browser_and_is_served() -> None:
    assert ServedHosts(look=nothing).serve(None)


@pytest.mark.parametrize("setting", ["https://GPU.example.org:8443/tide", "gpu.example.org", "gpu.example.org:9495"])
def test_a_host_of_settings_is_served_without_a_look_up(setting: str) -> None:
    hosts = ServedHosts("0.0.0.0", None, setting, look=nothing)
    assert hosts.serve("gpu.example.org:9495")
    assert hosts.serve("GPU.example.org.")


@pytest.mark.parametrize(
    "host",
    ["attacker.example", "head.attacker.example", "evil.head", "localhost.attacker.example", "127.0.0.1.nip.io", "",
     ":9495", "[junk", "attacker.example/head", "head@attacker.example"],
)  # fmt: skip
def test_other_names_are_not_served(host: str) -> None:
    hosts = ServedHosts("https://public.example", look=lambda: MachineNames(frozenset({"head"})))
    assert hosts.serve("head")
    assert not hosts.serve(host)


def test_names_of_the_machine_are_looked_up_once_a_minute() -> None:
    now_s, looks = 0.0, 0

    def look() -> MachineNames:
        nonlocal looks
        looks += 1
        return MachineNames(frozenset({f"head{looks}"}))

    hosts = ServedHosts(look=look, monotonic_s=lambda: now_s)
    assert [hosts.serve("head1"), hosts.serve("head2"), looks] == [True, False, 1]
    now_s = LOOK_AGAIN_S
    assert [hosts.serve("head1"), hosts.serve("head2"), looks] == [False, True, 2]


def test_machine_names_are_the_host_name_alone_outside_a_pod(tmp_path: Path) -> None:
    names = machine_names(tmp_path / "none", tmp_path / "none")
    assert names.hosts
    assert names.domains == ()
    assert not names.have("no-such-machine")


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("tidegauge-head", True),  # from a pod of the same namespace
        ("tidegauge-head.gpu", True),
        ("tidegauge-head.gpu.svc", True),  # what the chart's own objects ask
        ("tidegauge-head.gpu.svc.cluster.local", True),
        ("tidegauge-head-0.tidegauge-head-pods.gpu.svc.cluster.local", True),
        ("evil.team-b.svc", False),  # a tenant may have it lead anywhere
        ("evil.gpu.svc.attacker.example", False),
        ("gpu.svc.attacker.example", False),
        ("attacker.example", False),
    ],
)
def test_in_a_pod_services_of_its_namespace_are_served(tmp_path: Path, host: str, served: bool) -> None:
    namespace, resolver = tmp_path / "namespace", tmp_path / "resolv.conf"
    namespace.write_text("gpu")
    resolver.write_text("nameserver 10.96.0.10\nsearch gpu.svc.cluster.local. svc.cluster.local cluster.local\n")
    assert machine_names(namespace, resolver).have(host) is served
