"""``tidegauge incidents acknowledge``, ``unacknowledge`` and ``exempt``: what a person does about an incident."""

from __future__ import annotations

import argparse
from typing import Any

from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.output import print_json, print_wrapped
from tidegauge.cli.service_api import send
from tidegauge.core.incidents.acts import DEFAULT_EXEMPT_HOURS, MAX_EXEMPT_HOURS, ActKind

ACTS = (ActKind.ACKNOWLEDGE, ActKind.UNACKNOWLEDGE, ActKind.EXEMPT)
HOUR_S = 3600.0


def prepare(parser: Any) -> None:
    parser.add_argument(
        "--for", dest="exempt_for", type=hours, metavar="24h",
        help=f"of exempt: for how long (whole hours, at most {MAX_EXEMPT_HOURS // 24}d; default: "
        f"{DEFAULT_EXEMPT_HOURS}h; 0h ends it)",
    )  # fmt: skip


def hours(text: str) -> int:
    """The hours of ``8h`` or ``2d``. Raises ``argparse.ArgumentTypeError``."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) <= 4 and unit in ("h", "d")):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of hours or days; examples: 8h, 2d, 0h")
    found = int(number) * (24 if unit == "d" else 1)
    if found > MAX_EXEMPT_HOURS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MAX_EXEMPT_HOURS // 24}d")
    return found


def run(args: argparse.Namespace) -> int:
    kind = ActKind(args.what)
    if args.exempt_for is not None and kind is not ActKind.EXEMPT:
        raise UsageError("--for is of `tidegauge incidents exempt`")
    fields = {"incident": str(args.number), "act": kind.value}
    if args.exempt_for is not None:
        fields["hours"] = str(args.exempt_for)
    answer = send(args, "/api/v1/acts", fields)
    if args.json:
        print_json(answer)
    else:
        print_wrapped("", str(answer["text"]))
    return FINE
