"""Where ``tidegauge snapshot`` puts its files, and in which form."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots.files import write_packed
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.torch_pickle import torch_pickle
from tidegauge.cli.errors import USAGE, CommandError
from tidegauge.cli.output import write_output
from tidegauge.cli.snapshot.ranks import TakenSnapshot

PICKLES = (".pickle", ".pkl")
PACKED = ".snap.zst"


class Outputs(NamedTuple):
    """``file`` for one snapshot, or a folder for any number of them."""

    folder: Path
    file: Optional[Path] = None

    def write(self, snapshot: TakenSnapshot, *, with_pid: bool = False) -> str:
        """Its file's name, ``with_pid`` where another rank of the same number is asked. Raises ``CommandError``."""
        path = self.file or self.folder / self._name(snapshot, with_pid=with_pid)
        try:
            if path.suffix in PICKLES:
                content = torch_pickle(from_packed(snapshot.packed))
            else:
                content = write_packed([snapshot.content])
        except BadTraceError as error:
            raise CommandError(str(error)) from error
        write_output(path, content)
        return str(path)

    def _name(self, snapshot: TakenSnapshot, *, with_pid: bool) -> str:
        pid = f"pid-{snapshot.pid}"
        who = pid if snapshot.rank is None else f"rank-{snapshot.rank}" + f"-{pid}" * with_pid
        when = "" if snapshot.step is None else f"-step-{snapshot.step}"
        return f"{who}{when}{PACKED}"


def outputs_of(given: Optional[str], *, several: bool) -> Outputs:
    """What ``-o`` means. Raises ``CommandError``."""
    if given is None:
        return Outputs(Path())
    path = Path(given)
    if path.is_dir():
        return Outputs(path)
    if several:
        raise CommandError(
            f"{given} is not a folder, and there are several ranks: use --rank R, or a folder", exit_code=USAGE
        )
    if not given.endswith((*PICKLES, PACKED)):
        raise CommandError(
            f"{given} is not a folder; a file name must end in {PACKED}, or in {PICKLES[0]} for a PyTorch snapshot",
            exit_code=USAGE,
        )
    return Outputs(path.parent, path)
