from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tidegauge.cli import config
from tidegauge.cli.errors import CommandError
from tidegauge.cli.main import main
from tidegauge.core.jobs.checkpoint_signal import SIGNAL_VARIABLE
from tidegauge.core.jobs.variables import (
    ATTEMPT_VARIABLE,
    EXPLAIN_OOM_VARIABLE,
    FRACTION_VARIABLE,
    KEEPER_VARIABLE,
    SHARE_VARIABLE,
)
from tidegauge.probe.checkpoint.files import PATH_VARIABLE
from tidegauge.probe.job_settings import TOLD_VARIABLE
from tidegauge.settings import Settings

SET_BY_LAUNCHERS = (
    SHARE_VARIABLE, FRACTION_VARIABLE, SIGNAL_VARIABLE, PATH_VARIABLE, KEEPER_VARIABLE, TOLD_VARIABLE, ATTEMPT_VARIABLE,
    EXPLAIN_OOM_VARIABLE,
)  # fmt: skip


def arguments(*assignments: str, file: Path | None = None) -> argparse.Namespace:
    return argparse.Namespace(config=None if file is None else str(file), assignments=list(assignments))


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("cluster: from-file\nmetrics_port: 1\napi_port: 2\n")
    environ = {"TIDEGAUGE_METRICS_PORT": "10", "TIDEGAUGE_API_PORT": "20"}
    found = {s.name: (s.value, s.origin) for s in config.explain(arguments("api_port=200", file=file), environ)}
    assert found["cluster"] == ("from-file", str(file))
    assert found["metrics_port"] == (10, "TIDEGAUGE_METRICS_PORT")
    assert found["api_port"] == (200, "--set api_port")
    assert found["linger_s"] == (120.0, "default")


def test_a_home_that_only_another_user_enters_is_as_one_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refused)
    assert config.load_settings(arguments(), {}) == Settings()


def test_every_setting_says_what_it_means() -> None:
    assert all(len(setting.help) > 20 for setting in config.explain(arguments(), {}))


@pytest.mark.parametrize("environ", [{"TIDEGAUGE_METRIC_PORT": "1"}, {"TIDEGAUGE_API_PORT": "many"}])
def test_wrong_variable_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(CommandError, match=next(iter(environ))) as caught:
        config.load_settings(arguments(), environ)
    assert caught.value.exit_code == 2


def test_variables_of_the_probe_are_not_settings() -> None:
    config.load_settings(
        arguments(), {"TIDEGAUGE_PROFILE": "auto", "TIDEGAUGE_JOB_ID": "1", **dict.fromkeys(SET_BY_LAUNCHERS, "x")}
    )


def test_unknown_key_in_a_file_lists_the_valid_ones(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("colour: blue\n")
    with pytest.raises(CommandError, match=r"colour.*api_port"):
        config.load_settings(arguments(file=file), {})


@pytest.mark.parametrize("content", ["- a\n", "a: [", "\x00"])
def test_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(CommandError, match=r"config\.yaml"):
        config.load_settings(arguments(file=file), {})


@pytest.mark.parametrize("value", ["abc", "1.5", "70000", "-1"])
def test_a_wrong_port_is_refused_with_its_limits(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", f"metrics_port={value}"]) == 2
    assert capsys.readouterr().err == (
        f"tidegauge config: --set metrics_port: '{value}' is not a whole number from 0 to 65535\n"
    )


def test_config_without_a_command_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["config"])
    assert "required: show|token" in capsys.readouterr().err


def test_show_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "cluster=c1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"] == {"value": "c1", "origin": "--set cluster"}


def test_show_prints_what_somebody_set_and_counts_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "api_port=1", "--set", "slack_channel=#gpu"]) == 0
    out = capsys.readouterr().out
    assert "Addresses and ports\n  api_port = 1   (from --set api_port)\n" in out
    assert "Slack\n  slack_channel = #gpu   (from --set slack_channel)\n" in out
    assert "metrics_port" not in out
    assert out.endswith(f"{len(Settings.model_fields) - 2} other settings have the default value; "
                        "`tidegauge config show --all` lists them.\n")  # fmt: skip


def test_show_all_prints_every_setting_in_lines_of_100_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0].rstrip(":") for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(names) == sorted(Settings.model_fields)
    assert max(map(len, lines)) <= config.MAX_WIDTH


def test_settings_of_no_section_are_the_clusters_own() -> None:
    assert [name for name in Settings.model_fields if config.section(name) == config.OTHER_SECTION] == [
        "cluster",
        "hostname",
    ]


@pytest.mark.parametrize("port", [10_002, 19_999])
def test_engine_port_is_none_of_rays_worker_ports(port: int) -> None:
    with pytest.raises(CommandError, match=r"port range of Ray's workers \(10002-19999\)"):
        config.load_settings(arguments(f"engine_port={port}"), {})


@pytest.mark.parametrize("port", [0, 10_001, 20_000])
def test_engine_port_may_be_any_other_port(port: int) -> None:
    assert config.load_settings(arguments(f"engine_port={port}"), {}).engine_port == port


def test_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(CommandError, match=r"'slak_channel'; did you mean 'slack_channel'\?"):
        config.load_settings(arguments("slak_channel=#gpu"), {})


def test_a_long_value_breaks_no_line_and_nothing_in_it_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "slack_channel=a\x1b]0;b\x07\nc"]) == 0
    assert not {"\x1b", "\x07"} & set(capsys.readouterr().out)


def test_an_empty_assignment_takes_a_setting_away_that_a_file_made(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("web_config_file: /etc/web.yml\nmetrics_readers: someone\n")
    settings = config.load_settings(arguments("web_config_file=", file=file), {})
    assert settings.web_config_file is None
    assert settings.metrics_readers == "someone"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://tg:CANARY@db/tg", "postgresql+psycopg://tg:***@db/tg"),
        ("postgresql://tg:CAN@RY@db/tg", "postgresql://tg:***@db/tg"),
        ("postgresql://:CANARY@db/tg", "postgresql://:***@db/tg"),
        ("postgresql://tg@db/tg?sslPassword=CANARY&a=b", "postgresql://tg@db/tg?sslPassword=***&a=b"),
        ("az://c/p?se=1&sig=CANARY&sessionToken=CANARY", "az://c/p?se=1&sig=***&sessionToken=***"),
        ("postgresql://tg@db/tg?x=a:b@c", "postgresql://tg@db/tg?x=a:b@c"),
        ("sqlite:////var/lib/t.db", "sqlite:////var/lib/t.db"),
        ("http://[::1]:9093", "http://[::1]:9093"),
    ],
)
def test_a_password_in_a_url_is_not_shown(url: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--json", "--set", f"database_url={url}"]) == 0
    assert json.loads(capsys.readouterr().out)["database_url"]["value"] == shown


def test_a_token_in_the_environment_is_neither_a_setting_nor_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDEGAUGE_API_TOKEN", "CANARY")
    assert main(["config", "show"]) == 0
    captured = capsys.readouterr()
    assert "CANARY" not in captured.out + captured.err


@pytest.mark.parametrize(
    "ports", ["6400", "6400-6410", "6431-6400", "80-200", "65530-65550", "a-b", "６４００-６４３１", ""]
)
def test_engine_node_ports_are_a_range_that_is_wide_enough_or_none(ports: str) -> None:
    with pytest.raises(CommandError, match=r"engine_node_ports.*no range of 16 or more ports"):
        config.load_settings(arguments(f"engine_node_ports={ports}"), {})
    assert config.load_settings(arguments("engine_node_ports=0"), {}).engine_node_ports == "0"
