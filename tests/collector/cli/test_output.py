"""Tables on terminals that are too narrow for them."""

from __future__ import annotations

import re

import pytest

from tidegauge.cli.jobs import incidents, jobs
from tidegauge.cli.output import bar, narrowed, plain_lines, print_table, print_wrapped

HEADER = ("job", "user", "step")
ROWS = [("4711", "ada", "1000000"), ("4712", "grace", "5")]


def test_a_table_that_fits_stays_whole() -> None:
    width = max(map(len, plain_lines(HEADER, ROWS)))
    assert narrowed(HEADER, ROWS, ("step",), width) == (HEADER, ROWS)


def test_columns_give_way_in_their_order_until_the_rest_fits() -> None:
    assert narrowed(HEADER, ROWS, ("step", "user"), 12) == (("job", "user"), [("4711", "ada"), ("4712", "grace")])
    assert narrowed(HEADER, ROWS, ("user", "step"), 4) == (("job",), [("4711",), ("4712",)])


def test_narrowed_table_keeps_columns_that_must_stay() -> None:
    assert narrowed(HEADER, ROWS, ("user",), 1)[0] == ("job", "step")


def test_a_long_name_hides_no_column() -> None:
    long = [("4711", "x" * 300, "5"), ("4712", "grace", "6")]
    header, rows = narrowed(HEADER, long, ("step", "user"), 60)
    assert header == HEADER
    assert [len(row[1]) for row in rows] == [120, 5]
    assert rows[0][1].endswith("x…")
    assert narrowed(HEADER, long, ("step",), 400) == (HEADER, long), "all of it where there is room"
    assert narrowed(HEADER, long, ("step", "user"), 48)[0] == ("job", "user")


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_name_that_has_no_room_in_its_line_goes_on_in_the_next(
    term: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    name = "job-" + "0123456789" * 7
    print_table(HEADER, [("4711", name, "5")], gives_way=("step",))
    header, *lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert header.split() == list(HEADER)
    assert max(map(len, lines)) <= 60
    assert name == "".join(line.split()[-1] if line.startswith(" ") else line.split()[1] for line in lines)


BARS = ("phase", "allocated", "")
BARRED = [("forward", "271.5 MiB", bar(1.0)), ("optimizer", "175.3 MiB", bar(0.5)), ("input", "8.0 KiB", "")]


@pytest.mark.parametrize("width", [80, 60, 40, 21])
def test_bars_keep_their_proportion_within_the_width(width: int) -> None:
    header, rows = narrowed(BARS, BARRED, (), width)
    longest = min(40, max(0, width - len("optimizer  271.5 MiB  ")))
    assert [len(row[-1]) for row in rows] == [longest, round(longest / 2), 0]
    assert max(map(len, plain_lines(header, rows))) <= max(width, len("optimizer  271.5 MiB"))


def test_a_last_column_without_a_name_that_is_no_bar_stays() -> None:
    assert narrowed(("a", ""), [("1", "#"), ("2", "note")], (), 3)[1] == [("1", "#"), ("2", "note")]


@pytest.mark.parametrize(
    ("header", "gives_way"),
    [
        (jobs.HEADER, jobs.GIVES_WAY),
        (jobs.POD_HEADER, jobs.POD_GIVES_WAY),
        (incidents.HEADER, incidents.GIVES_WAY),
        (incidents.RANK_HEADER, incidents.RANKS_GIVE_WAY),
    ],
)
def test_narrowable_columns_are_columns_of_the_table(header: tuple[str, ...], gives_way: tuple[str, ...]) -> None:
    assert set(gives_way) < set(header)


HOSTILE = "llm\x1b]0;owned\x07\x9b31m\r\n\u202e[red]x[/red]"


def test_table_and_text_output_strip_terminal_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever names a job chooses what is in a table; a coordinator that lies chooses all of it."""
    print_table(("job", "user"), [(HOSTILE, "ada"), ("4711", HOSTILE)])
    print_wrapped("because     ", HOSTILE.replace("\n", ""))
    out = capsys.readouterr().out
    assert [mark for mark in ("\x1b", "\x07", "\x9b", "\r", "\u202e") if mark in out] == []
    assert len(out.splitlines()) == 4, "a line end in a name ends no row"
    assert out.count("[red]x[/red]") == 3
