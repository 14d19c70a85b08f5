"""What the plugin takes as a value, against the probe that has to understand it: its C, called from here."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from integration.needs import missing
from tidegauge.core.jobs.checkpoint_signal import ALLOWED, parse_signal
from tidegauge.core.jobs.variables import parse_fraction
from tidegauge.probe.activation.launch import PYTHONPATH_FOLDER, activation_environ
from tidegauge.probe.levels import LEVELS

SOURCE = Path(__file__).resolve().parents[3] / "deploy/slurm/spank"

SIGNAL_WORDS = [
    "".join(parts)
    for parts in itertools.product(
        ["", "SIG", "sig", "SIGSIG"],
        ["USR1", "usr2", "USR3", "TERM", "RTMIN", "RTMAX", "", "1", "34"],
        ["", "+", "-", "+0", "-00", "+1", "-1", "+30", "-30", "+31", "-31", "+007", "+-1", "0", "4", "12", "0034"],
    )
] + [str(number) for number in range(130)]
number_words = st.from_regex(r"[0-9]{0,3}(\.[0-9]{0,12})?", fullmatch=True) | st.text(
    "0123456789.+-eExnaif", max_size=8
)
c_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """``values.c`` as a library, with overflows and misread memory made fatal where the compiler can do that."""
    if shutil.which("cc") is None:
        missing("no C compiler: the plugin's C cannot be built")
    library = tmp_path_factory.mktemp("values") / "values.so"
    traps = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error", "-D_FORTIFY_SOURCE=2"]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared", *traps]
    subprocess.run(["cc", *flags, "-o", library, SOURCE / "values.c"], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.tidegauge_billionths.restype = ctypes.c_longlong
    return loaded


def accepts(function: Callable[[bytes], int], text: str) -> bool:
    return bool(function(text.encode()))


def test_levels_are_the_probes_in_their_order(values: ctypes.CDLL) -> None:
    assert [values.tidegauge_level_of(word.encode()) for word in LEVELS] == list(range(len(LEVELS)))
    assert values.tidegauge_level_of(b"bogus") == values.tidegauge_level_of(b"") == -1
    header = (SOURCE / "values.h").read_text()
    assert f'"one of {", ".join(LEVELS)}"' in header
    assert f'"{ALLOWED}"' in header


def test_a_signal_is_accepted_exactly_when_the_probe_takes_it(values: ctypes.CDLL) -> None:
    ours = [word for word in SIGNAL_WORDS if accepts(values.tidegauge_is_signal, word)]
    assert ours == [word for word in SIGNAL_WORDS if parse_signal(word) is not None]


@given(text=c_texts)
def test_any_text_as_a_signal_is_judged_as_the_probe_does_but_for_blanks(values: ctypes.CDLL, text: str) -> None:
    expected = parse_signal(text) is not None and text == text.strip()
    assert accepts(values.tidegauge_is_signal, text) == expected


@given(text=number_words)
@example(text="1.0000000000001")
@example(text="0.00000000000001")
@example(text="0.0")
@example(text="1.")
@example(text=".5")
def test_spank_fraction_is_accepted_only_if_the_probe_accepts_it(values: ctypes.CDLL, text: str) -> None:
    theirs = parse_fraction(text)
    is_plain_decimal = all(character in "0123456789." for character in text)
    assert accepts(values.tidegauge_is_fraction, text) == (theirs is not None and is_plain_decimal)
    if theirs is not None and is_plain_decimal:
        assert values.tidegauge_billionths(text.encode()) == max(1, math.floor(theirs * 1e9 + 1e-6))


@given(text=st.integers(-5, 10**30).map(str) | c_texts)
def test_a_count_is_digits_up_to_its_limit(values: ctypes.CDLL, text: str) -> None:
    is_count = text.isascii() and text.isdigit() and 1 <= int(text) <= 1000
    assert values.tidegauge_count(text.encode(), ctypes.c_long(1000)) == (int(text) if is_count else -1)


@pytest.mark.parametrize("text", ["/a", "a/b c", "/a:/b", "/caf\u00e9"])
def test_paths_are_accepted(values: ctypes.CDLL, text: str) -> None:
    assert accepts(values.tidegauge_are_paths, text)


@pytest.mark.parametrize("text", ["", ":", "/a:", ":/a", "/a::/b", "/a\n/b", "/a\x7f", "/a\x1b[31m"])
def test_paths_that_are_empty_or_would_garble_a_log_are_refused(values: ctypes.CDLL, text: str) -> None:
    assert not accepts(values.tidegauge_are_paths, text)


@given(text=c_texts)
def test_a_hostile_text_is_shown_short_and_printable(values: ctypes.CDLL, text: str) -> None:
    shown = ctypes.create_string_buffer(b"x" * 64, 80)
    values.tidegauge_shown(shown, text.encode())
    assert len(shown.value) == min(47, len(text.encode()))
    assert all(0x20 <= byte < 0x7F for byte in shown.value)


entries = st.lists(st.sampled_from(["", "/a", "/b c", PYTHONPATH_FOLDER, PYTHONPATH_FOLDER + "x", "."]), max_size=6)


@given(before=entries.map(":".join))
def test_pythonpath_becomes_what_tidegauge_run_makes_of_it(values: ctypes.CDLL, before: str) -> None:
    expected = activation_environ("auto", {"PYTHONPATH": before}, pythonpath=True)["PYTHONPATH"]
    out = ctypes.create_string_buffer(4096)
    size = ctypes.c_size_t(4096)
    assert values.tidegauge_prepend(out, size, PYTHONPATH_FOLDER.encode(), before.encode()) == 0
    assert out.value.decode() == expected


@given(before=entries.map(":".join), spare=st.integers(-4, 4))
def test_pythonpath_is_written_whole_or_refused(values: ctypes.CDLL, before: str, spare: int) -> None:
    expected = activation_environ("auto", {"PYTHONPATH": before}, pythonpath=True)["PYTHONPATH"]
    room = len(expected) + spare
    out = ctypes.create_string_buffer(b"\xff" * (room + 100))
    rc = values.tidegauge_prepend(out, ctypes.c_size_t(room), PYTHONPATH_FOLDER.encode(), before.encode())
    assert rc == (0 if spare > 0 else -1)
    assert out.raw[room : room + 100] == b"\xff" * 100
