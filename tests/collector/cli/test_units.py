"""The systemd units call commands that there are, and the service's files are where the installer puts them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tidegauge.cli.main import build_parser
from tidegauge.cli.service_api import AGENT_UNIT_STATE_DIR
from tidegauge.cluster.service_record import MAX_ENGINE_DIR_BYTES
from tidegauge.opener.__main__ import build_opener_parser
from tidegauge.settings import Settings

SYSTEMD = Path(__file__).parents[3] / "deploy/systemd"
OPENER = SYSTEMD / "tidegauge-opener.service"
UNITS = sorted(set(SYSTEMD.glob("*.service")) - {OPENER})


def directives(unit: Path) -> dict[str, list[str]]:
    """What a unit says, comments left out; a name may come more than once."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_opener_runs_where_the_agent_asks_and_answers_its_user() -> None:
    opener, agent = directives(OPENER), directives(SYSTEMD / "tidegauge-agent.service")
    (command,) = opener["ExecStart"]
    words = shlex.split(command)
    assert words[:4] == ["/opt/tidegauge/bin/python", "-I", "-m", "tidegauge.opener"]
    given = build_opener_parser().parse_args(words[4:])
    assert (given.user, opener["Group"]) == (agent["User"][0], agent["Group"])
    assert f"TIDEGAUGE_OPENER_SOCKET={given.socket}" in agent["Environment"]
    assert str(given.socket.parent) == f"/run/{opener['RuntimeDirectory'][0]}"
    assert "tidegauge-opener.service" in agent["Wants"][-1]


def test_there_is_a_head_and_an_agent() -> None:
    assert [unit.name for unit in UNITS] == ["tidegauge-agent.service", "tidegauge-head.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_unit_runs_a_command_that_exists_in_the_foreground(unit: Path) -> None:
    (command,) = directives(unit)["ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == "/opt/tidegauge/bin/tidegauge"
    args = build_parser().parse_args(arguments)
    assert (args.command, args.foreground) == ("up", True)
    assert bool(args.join) == (unit.stem == "tidegauge-agent")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_variables_of_the_command_come_from_the_units_file(unit: Path) -> None:
    said = directives(unit)
    (file,) = said["EnvironmentFile"]
    (variable,) = re.findall(r"\$\{(\w+)\}", said["ExecStart"][0])
    installer = (SYSTEMD.parent / "slurm/install.sh").read_text()
    assert f"plan_variable {file} {variable} " in installer


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_state_directory_is_made_by_systemd_and_short_enough_for_the_engine(unit: Path) -> None:
    said = directives(unit)
    (variable, _, folder) = said["Environment"][0].partition("=")
    assert variable.removeprefix("TIDEGAUGE_").lower() in Settings.model_fields
    assert folder == f"/var/lib/{said['StateDirectory'][0]}"
    assert len(f"{folder}/engine") <= MAX_ENGINE_DIR_BYTES


def test_commands_on_a_node_look_where_the_agents_unit_has_its_state() -> None:
    (folder,) = directives(SYSTEMD / "tidegauge-agent.service")["StateDirectory"]
    assert Path("/var/lib", folder) == AGENT_UNIT_STATE_DIR


def test_a_head_on_a_node_asks_the_opener_as_an_agent_does() -> None:
    agent, head = directives(SYSTEMD / "tidegauge-agent.service"), directives(SYSTEMD / "tidegauge-head.node.conf")
    assert head["Environment"] == [one for one in agent["Environment"] if "OPENER" in one]
    assert head["Wants"] == [OPENER.name]


def test_the_head_is_not_root_and_has_no_capability() -> None:
    said = directives(SYSTEMD / "tidegauge-head.service")
    assert said["User"] == ["tidegauge"]
    assert said["CapabilityBoundingSet"] == [""]
    assert (SYSTEMD / "tidegauge.sysusers.conf").read_text().splitlines()[-1].startswith("u tidegauge ")


def test_the_run_directory_is_as_probes_and_prolog_expect_it() -> None:
    lines = (SYSTEMD / "tidegauge.tmpfiles.conf").read_text().splitlines()
    made = {line.split()[1]: line.split()[2] for line in lines if line.startswith("d ")}
    assert made == {"/run/tidegauge": "1777", "/run/tidegauge/slurm": "0755", "/run/tidegauge/jobs": "0755"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_units_processes_count_the_processors_that_tmpfiles_says_and_start_without_its_file(unit: Path) -> None:
    (bound,) = directives(unit)["BindReadOnlyPaths"]
    source, _, target = bound.partition(":")
    assert target == "/sys/devices/system/cpu/possible", "sysconf(3) reads it for _SC_NPROCESSORS_CONF"
    assert source.startswith("-"), "a missing file is no error"
    lines = (SYSTEMD / "tidegauge.tmpfiles.conf").read_text().splitlines()
    assert f"f {source[1:]} 0444 root root - 0-1" in lines
