"""How many examples a property test is given: Hypothesis' profiles, chosen by HYPOTHESIS_PROFILE.

``fast`` (the default) and ``ci`` think of the same examples in each run, so that a change and not luck decides;
``night`` thinks of new ones. Hypothesis also tries the constants of all modules that are loaded, which differ with what
else a worker has run before: of the first two profiles they are none.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

MAX_EXAMPLES = {"fast": 20, "ci": 100, "night": 1000}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "fast")
MIN_EXAMPLES = 5


def register() -> None:
    """Make the profiles known and load the chosen one. None has a deadline: a machine may be busy. None explains: it
    traces each line before Python 3.12, and a failure that shrinks that slowly is reported as a timeout."""
    phases = [phase for phase in Phase if phase is not Phase.explain]
    for name, most in MAX_EXAMPLES.items():
        settings.register_profile(
            name, max_examples=most, derandomize=name != "night", database=None, deadline=None, print_blob=True,
            suppress_health_check=[HealthCheck.too_slow], phases=phases,
        )  # fmt: skip
    settings.load_profile(PROFILE)
    if settings.get_profile(PROFILE).derandomize:
        no_constants = Constants()
        vars(providers)["_get_local_constants"] = lambda: no_constants  # no setting leaves them out


def fewer(divisor: int) -> settings:
    """Settings for a test whose examples cost much: so many times fewer of them, in each profile."""
    return settings(max_examples=max(MIN_EXAMPLES, MAX_EXAMPLES[PROFILE] // divisor))
