"""`tidegauge detect`: keys, exit codes, bad files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from leakseries.recorded import FOLDER
from tidegauge.cli.main import main

KEYS = {
    "file", "verdict", "severity", "signal", "cause", "onset_step", "suspect_step", "alarm_step", "bytes_per_step",
    "steps_to_oom",
}  # fmt: skip
LEAK = str(FOLDER / "late_leak" / "steps.csv.gz")
HEALTHY = str(FOLDER / "steady_lm" / "steps.csv.gz")


def detect(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, object]], str]:
    code = main(["detect", "--json", *arguments])
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_a_leak_is_one_json_object_with_the_agreed_keys_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, answers, _ = detect(capsys, LEAK, "--capacity-bytes", str(150 << 30))
    assert code == 1
    (answer,) = answers
    assert set(answer) >= KEYS
    assert answer["file"] == LEAK
    assert (answer["verdict"], answer["severity"], answer["signal"]) == ("leak", "warning", "allocated")
    assert isinstance(answer["steps_to_oom"], float)
    assert isinstance(answer["bytes_per_step"], float)


def test_a_healthy_series_has_no_severity_signal_or_cause_and_exit_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    code, (answer,), _ = detect(capsys, HEALTHY)
    assert code == 0
    assert answer["verdict"] == "ok"
    assert [answer[key] for key in sorted(KEYS - {"file", "verdict"})] == [None] * 8


def test_several_files_give_a_line_each_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    code, answers, _ = detect(capsys, HEALTHY, LEAK, HEALTHY)
    assert code == 1
    assert [answer["file"] for answer in answers] == [HEALTHY, LEAK, HEALTHY]


def test_an_alarm_that_was_withdrawn_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    code, (answer,), _ = detect(capsys, str(FOLDER / "replay_buffer" / "steps.csv.gz"))
    assert code == 0
    assert answer["alarm_step"] is None
    assert answer["withdrawn_alarm_steps"]


def test_the_capacity_does_not_change_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    for path in (LEAK, HEALTHY):
        verdicts = {
            detect(capsys, path, *capacity)[1][0]["verdict"]
            for capacity in ((), ("--capacity-bytes", str(2 << 30)), ("--capacity-bytes", str(1 << 50)))
        }
        assert len(verdicts) == 1


def test_plain_csv_without_clock_peak_and_nvml_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (f"{step},{(step * 4096) + (1 << 28)},{1 << 29},x" for step in range(300))
    path = write(tmp_path / "plain.csv", "step,allocated,reserved,unknown", *rows)
    code, (answer,), _ = detect(capsys, path)
    assert (code, answer["verdict"], answer["signal"], answer["onset_step"]) == (1, "leak", "allocated", 0)
    assert answer["bytes_per_second"] is None


@pytest.mark.parametrize("unread", ["-1", ""])
def test_nvml_that_could_not_be_read_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unread: str
) -> None:
    rows = (f"{step},{1 << 28},{1 << 29},{unread}" for step in range(300))
    path = write(tmp_path / "rows.csv", "step,allocated,reserved,nvml_process", *rows)
    assert detect(capsys, path)[0] == 0


def test_a_host_leak_is_read_from_host_rss(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (f"{step},{step * 3},{1 << 28},{1 << 29},{(1 << 32) + step * (1 << 20)}" for step in range(600))
    path = write(tmp_path / "host.csv", "step,t,allocated,reserved,host_rss", *rows)
    assert detect(capsys, path)[1][0]["signal"] == "host"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["step,allocated"], "missing column reserved; the header has: step, allocated"),
        ([], "missing column step, allocated, reserved; the header has: nothing"),
        (["step,allocated,reserved"], "has a header but no rows"),
        (["step,allocated,reserved", "0,1,2", "1,many,2"], "row 3: column 'allocated' is not a number: 'many'"),
        (["step,allocated,reserved", "0,1,"], "row 2: column 'reserved' is empty or negative"),
        (["step,allocated,reserved", "0,nan,2"], "row 2: column 'allocated' is out of range"),
        (["step,allocated,reserved", "1e30,1,2"], "row 2: column 'step' is out of range"),
        (["step,allocated,reserved", "7,1,2", "3,1,2"], "row 3: column 'step' goes back from 7 to 3"),
        (["step,allocated,reserved", "0,1"], "row 2: column 'reserved' is empty"),
        (["step,t,allocated,reserved", "0,soon,1,2"], "row 2: column 't' is not a number: 'soon'"),
    ],
)
def test_a_bad_file_is_named_with_row_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], message: str
) -> None:
    path = write(tmp_path / "bad.csv", *lines) if lines else str(tmp_path / "bad.csv")
    Path(path).touch()
    code, answers, errors = detect(capsys, path)
    assert code == 2
    assert answers == []
    assert path in errors
    assert message in errors


def test_binary_rubbish_and_damaged_gzip_are_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rubbish = tmp_path / "rubbish.csv"
    rubbish.write_bytes(bytes(range(128, 256)) * 10)
    cut = tmp_path / "cut.csv.gz"
    whole = gzip.compress(b"step,allocated,reserved\n" + b"".join(b"%d,%d,9\n" % (at, at * at) for at in range(5000)))
    cut.write_bytes(whole[: len(whole) // 2])
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(b"\x1f\x8b" + b"no gzip after all")
    code, answers, errors = detect(capsys, str(rubbish), str(cut), str(broken), str(tmp_path))
    assert (code, answers) == (2, [])
    assert "is not text" in errors
    assert errors.count("gzip data is damaged") + errors.count("cannot be read") == 3


def test_after_a_bad_file_the_others_are_still_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, answers, errors = detect(capsys, str(tmp_path / "missing.csv"), LEAK)
    assert code == 2
    assert [answer["verdict"] for answer in answers] == ["leak"]
    assert "missing.csv" in errors


def test_a_capacity_that_is_no_positive_number_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-5", "lots"):
        with pytest.raises(SystemExit) as ended:
            main(["detect", LEAK, f"--capacity-bytes={text}"])
        assert ended.value.code == 2
    assert "--capacity-bytes" in capsys.readouterr().err


def test_people_get_a_table_and_a_sentence_per_leak(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", LEAK, HEALTHY, "--capacity-bytes", str(150 << 30)]) == 1
    shown = capsys.readouterr().out
    assert "allocated grew by" in shown
    assert "KiB a step" in shown
    assert "out of memory in" in shown
    assert "inf" not in shown


def test_bytes_are_written_as_everywhere_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """1,000 KiB a step was "1e+03 KiB"."""
    series = tmp_path / "series.csv"
    rows = [f"{step},{(10 << 30) + step * 1000 * 1024},{(40 << 30)}" for step in range(2000)]
    series.write_text("\n".join(["step,allocated,reserved", *rows]) + "\n")
    assert main(["detect", str(series)]) in (0, 1)
    shown = capsys.readouterr().out
    assert "1000.0 KiB" in shown
    assert "e+0" not in shown
