"""``tidegauge whois PSEUDONYM`` names the user behind a pseudonym, for who may read the head's key."""

from __future__ import annotations

import argparse
import pwd

from tidegauge.cli.config import add_settings_arguments
from tidegauge.cli.errors import FINE, UsageError
from tidegauge.cli.persons.head import opened_head

HELP = "name the user behind a pseudonym (setting user_pseudonyms)"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pseudonym", metavar="PSEUDONYM", help="such as user-3f9a1c0b77de")
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from tidegauge.core.incidents.forgotten import PREFIX
    from tidegauge.core.persons.pseudonyms import is_pseudonym

    asked = args.pseudonym.strip().lower()  # a sentence may begin with it
    if asked.startswith(PREFIX):
        raise UsageError(f"{asked} stands for a user who is forgotten: nobody can tell any more who it was")
    if not is_pseudonym(asked):
        raise UsageError(f"{asked!r} is no pseudonym: they look like user-3f9a1c0b77de")
    with opened_head(args) as head:
        from tidegauge.cluster.pseudonym_key import open_pseudonyms

        if not head.files.pseudonym_key.exists():
            raise UsageError(
                f"this head has no key of pseudonyms ({head.files.pseudonym_key}): it is made when the service runs "
                "with user_pseudonyms=true"
            )
        pseudonyms = open_pseudonyms(head.files.pseudonym_key)
        known = {*head.store.persons.names(), *(one.pw_name for one in pwd.getpwall())}
    found = sorted(name for name in known if pseudonyms.of(name) == asked)
    if not found:
        raise UsageError(
            f"{asked} is of no user in the database or of this machine: the user's data may be deleted, or the "
            "pseudonym is of another head"
        )
    print("\n".join(found))
    return FINE
