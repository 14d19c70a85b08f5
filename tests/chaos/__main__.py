"""``python -m chaos``: every scenario on one site, and the table that docs/reliability.md quotes.

Exits with 1 if a promise was broken or a bound missed, with 3 where there can be no site.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import chaos
from chaos.network import NoNamespacesError
from chaos.play import play
from chaos.scenario import Scenario
from chaos.site import ChaosSite, NoRigError, chaos_site
from chaos.table import Row, as_json, as_table, machine

BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
PASSED, FAILED, USAGE, ENVIRONMENT = 0, 1, 2, 3


def all_scenarios() -> dict[str, Scenario]:
    """By name, of every module ``scenarios_*``."""
    names = sorted(m.name for m in pkgutil.iter_modules(chaos.__path__) if m.name.startswith("scenarios_"))
    modules = [importlib.import_module(f"chaos.{name}") for name in names]
    return {scenario.name: scenario for module in modules for scenario in module.SCENARIOS}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these scenarios, in this order")
    parser.add_argument("--long", action="store_true", help="also those in which something is away for ten minutes")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="so many busy processes beside each scenario")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--keep", action="store_true", help="leave the site's files (logs, states, jobs) behind")
    args = parser.parse_args(argv)
    known = all_scenarios()
    if args.list:
        print("\n".join(f"{name:28} {scenario.what}" for name, scenario in known.items()))
        return PASSED
    if unknown := sorted(set(args.only or ()) - known.keys()):
        print(f"no scenario is called {', '.join(unknown)}; --list names them", file=sys.stderr)
        return USAGE
    chosen = [known[name] for name in args.only or known if args.only or args.long or not known[name].is_long]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(FAILED))  # so that everything is cleaned up
    try:
        rows = play_all(chosen, keep=args.keep, busy=args.busy)
    except (NoNamespacesError, NoRigError) as error:
        print(error, file=sys.stderr)
        return ENVIRONMENT
    print(f"\n{machine()}; {time.strftime('%Y-%m-%d', time.gmtime())}\n{as_table(rows)}")
    for row in rows:
        print(*row.troubles(), sep="\n", end="\n" if row.troubles() else "")
    if args.json:
        args.json.write_text(json.dumps(as_json(rows), indent=1) + "\n")
    return PASSED if all(row.passed for row in rows) else FAILED


def play_all(scenarios: Sequence[Scenario], *, keep: bool = False, busy: int = 0) -> list[Row]:
    """On one site, and on another one after a scenario that the first did not survive."""
    rows: list[Row] = []
    left = list(scenarios)
    while left:
        with ExitStack() as stack:
            site = stack.enter_context(chaos_site(say=_say, keep=keep))
            _say(f"the site is below {site.folder}" if keep else "the site is ready")
            stack.enter_context(busy_processes(busy))
            while left:
                rows.append(_play_one(site, left.pop(0)))
                if rows[-1].seconds is None:
                    site.kept = True
                    _say(f"a new site, for this one is broken; its files stay below {site.folder}")
                    break
    return rows


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """So many processes that never wait; each ends with the block, or with this process."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _play_one(site: ChaosSite, scenario: Scenario) -> Row:
    row = play(site, scenario, _say)
    _say(f"{scenario.name}: {'passed' if row.passed else 'FAILED'}: {'; '.join(row.measures())}")
    for line in row.troubles():
        _say(f"  {line[:1500]}")
    return row


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
