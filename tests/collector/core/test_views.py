"""Views that an agent makes of each rank at each poll."""

from __future__ import annotations

from dataclasses import MISSING, fields

from sample_views import rank_view
from tidegauge.core.views import RankView, view_of


def test_a_view_made_quickly_is_the_one_that_its_class_makes() -> None:
    full = rank_view()
    needed = [one.name for one in fields(RankView) if one.default is one.default_factory is MISSING]
    said = {name: getattr(full, name) for name in needed}
    assert view_of(**said) == RankView(**said)
    assert view_of(**vars(full)) == full
    assert view_of(**said).summary() == RankView(**said).summary()
