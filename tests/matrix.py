"""What rotates through the gate: further releases of torch, further Pythons, further Slurms, the container images,
a containerd, and long tests; and a systemd, which does not rotate.

A test that repeats for a cell of the matrix what another test shows without it carries ``@in_matrix(CELL)``; it runs
where ``--matrix`` names its cell and nowhere else. ``scripts/matrix.sh`` runs cells, ``.ci/run`` those that the
commit's hash chooses (``chosen``), ``make test-all`` all of them. Nothing that checks behaviour is in a cell alone, but
what only the images have (their size, users and bills), what a real containerd makes of the plugin's answers, and what
a real systemd makes of the units.

A long test that repeats a promise on a further stand, in a further trainer or by a further fault has a turn
(``@turn(NUMBER)``): ``make integration`` runs all of them, ``.ci/run`` those of the turn that the hash chooses.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

REQUIREMENTS = Path(__file__).parents[1] / "requirements"
FIRST_TORCH = "2.13.0"
"""Of the first rig, ``requirements/rig.txt``."""
TORCHES = tuple(sorted(path.stem.removeprefix("rig-") for path in REQUIREMENTS.glob("rig-*.txt")))
"""Releases of torch with a rig of their own, beside the first rig's."""
PYTHONS = ("3.9", "3.10", "3.12", "3.13", "3.14")
"""Pythons of jobs, beside the one that the tests themselves run on where that is one of these."""
SLURMS = ("trixie", "sid")
"""Debian suites whose Slurm is another release than this machine's."""
IMAGES = ("bookworm",)
"""Debian suites on which the container images are built."""
CONTAINERDS = ("trixie",)
"""Debian suites whose containerd has NRI."""
SYSTEMDS = ("bookworm",)
"""Debian suites whose systemd boots in a container of its own."""
AXES = (
    tuple(f"torch-{release}" for release in TORCHES),
    tuple(f"python-{version}" for version in PYTHONS),
    (
        *(f"slurm-{suite}" for suite in SLURMS),
        *(f"images-{suite}" for suite in IMAGES),
        *(f"containerd-{suite}" for suite in CONTAINERDS),
    ),
)
CELLS = (*(cell for axis in AXES for cell in axis), *(f"systemd-{suite}" for suite in SYSTEMDS))
"""All of them; what is of no axis has no turn, and is run by ``make matrix`` alone."""
TURNS = 6


def in_matrix(cell: str) -> pytest.MarkDecorator:
    """The mark of a test that runs only where ``cell`` is asked for."""
    assert cell in CELLS, f"{cell} is none of {CELLS}"
    return pytest.mark.matrix(cell)


def turn(number: int) -> pytest.MarkDecorator:
    """The mark of a long test that the gate runs for one commit of ``TURNS``."""
    return pytest.mark.turn(number % TURNS)


def in_turns(cases: Iterable[object], first: int = 0) -> list[ParameterSet]:
    """Parameters of a test, or tuples of some, each in the turn after the last one's."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=turn(number)) for number, case in enumerate(values, first)]


def torches(cases: Iterable[str | tuple[object, ...]]) -> list[ParameterSet]:
    """Parameters of a test: releases of torch, or tuples that begin with one. Those of the first rig run always, those
    of another release in its cell."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [
        pytest.param(*case, marks=() if case[0] == FIRST_TORCH else in_matrix(f"torch-{case[0]}")) for case in values
    ]


def pythons(*versions: str) -> list[ParameterSet]:
    """Parameters of a test under further Pythons, each in its cell."""
    return [pytest.param(version, marks=in_matrix(f"python-{version}")) for version in versions]


def chosen(commit: str) -> Sequence[str]:
    """One cell of each axis, by the commit's hash: as likely as any other, and the same for everybody who asks."""
    number = int(commit, 16)
    cells = []
    for axis in AXES:
        number, place = divmod(number, len(axis))
        cells.append(axis[place])
    return cells


def chosen_turn(commit: str) -> int:
    """The turn of a commit, independent of its cells."""
    return (int(commit, 16) // 1_000_003) % TURNS


def keep_chosen(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of cells that ``--matrix`` does not name; where it names some, all others as well. Deselect
    those of turns that ``--turn`` does not name."""
    wanted = set(str(config.getoption("matrix") or "").split())
    unknown = wanted - set(CELLS)
    if unknown:
        raise pytest.UsageError(f"--matrix: {' '.join(sorted(unknown))} is none of {' '.join(CELLS)}")
    kept = [item for item in items if _cells(item) & wanted or not (_cells(item) or wanted)]
    asked = config.getoption("turn")
    if asked is not None:
        kept = [item for item in kept if all(mark.args[0] == asked for mark in item.iter_markers("turn"))]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def _cells(item: pytest.Item) -> set[str]:
    return {str(mark.args[0]) for mark in item.iter_markers("matrix")}


def main(arguments: Iterable[str]) -> int:
    """``all`` prints every cell; a commit's hash, the cells that are its turn; ``turn`` and a hash, the turn."""
    *what, asked = arguments
    print(*([chosen_turn(asked)] if what == ["turn"] else CELLS if asked == "all" else chosen(asked)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
