from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.whatif.results import Trial, best_first, harms, helps, recommended
from whatif_worlds import GIB, MIB, replay_of, trial_of

TODAY = trial_of({}, replay_of(3 * GIB))


def changed(key: str, peak_reserved_bytes: int, *, ooms: int = 0, retries: int = 0, calls: int = 10) -> Trial:
    return trial_of({key: "1"}, replay_of(peak_reserved_bytes, ooms=ooms, alloc_retries=retries, device_calls=calls))


def test_no_out_of_memory_comes_before_a_lower_peak() -> None:
    fails, survives = changed("a", GIB, ooms=1), changed("b", 2 * GIB, retries=3)
    assert best_first([fails, survives]) == [survives, fails]


def test_fewer_retries_come_before_a_lower_peak() -> None:
    retries, none = changed("a", GIB, retries=1), changed("b", 2 * GIB)
    assert best_first([retries, none]) == [none, retries]


def test_of_equal_peaks_fewer_changes_then_fewer_device_calls_come_first() -> None:
    busy, calm = changed("a", GIB, calls=900), changed("b", GIB, calls=9)
    both = trial_of({"a": "1", "b": "1"}, replay_of(GIB, device_calls=1))
    assert best_first([both, busy, calm]) == [calm, busy, both]


def test_the_simplest_within_one_per_cent_is_recommended() -> None:
    lowest = trial_of({"a": "1", "b": "1"}, replay_of(10_000 * MIB))
    simple, simple_but_more = changed("a", 10_099 * MIB), changed("b", 10_101 * MIB)
    today = trial_of({}, replay_of(30_000 * MIB))
    assert recommended(best_first([today, lowest, simple_but_more, simple]), today) is simple


def test_of_a_small_job_one_large_segment_more_is_as_good() -> None:
    lowest = trial_of({"a": "1", "b": "1"}, replay_of(340 * MIB))
    simple = changed("a", 360 * MIB)
    assert recommended(best_first([TODAY, lowest, simple]), TODAY) is simple
    more = changed("a", 362 * MIB)
    assert recommended(best_first([TODAY, lowest, more]), TODAY) is lowest


def test_today_s_settings_stay_where_they_are_as_good() -> None:
    today = trial_of({}, replay_of(10_050 * MIB))
    assert recommended(best_first([today, changed("a", 10_000 * MIB)]), today) is today


def test_a_setting_that_goes_to_the_device_much_more_often_is_taken_only_where_it_alone_helps() -> None:
    dear, cheap = changed("a", GIB, calls=500), trial_of({"b": "1", "c": "1"}, replay_of(GIB + MIB, device_calls=20))
    assert recommended(best_first([TODAY, dear, cheap]), TODAY) is cheap
    assert recommended(best_first([TODAY, dear]), TODAY) is dear


def test_a_setting_with_retries_is_not_recommended_for_being_simple() -> None:
    today = trial_of({}, replay_of(1000 * MIB, alloc_retries=2))
    without = changed("a", 1005 * MIB)
    assert recommended(best_first([today, without]), today) is without


def test_an_equal_peak_with_fewer_calls_helps_nobody() -> None:
    assert not helps(changed("a", 3 * GIB, calls=1), TODAY)
    assert helps(changed("a", 2 * GIB, calls=99), TODAY)


def test_harm_is_more_than_a_person_would_notice() -> None:
    assert not harms(changed("a", 3 * GIB + 30 * MIB), TODAY)
    assert harms(changed("a", 4 * GIB), TODAY)
    assert harms(changed("a", GIB, ooms=1), TODAY)
    assert not harms(TODAY, changed("a", GIB, ooms=1))


OUTCOMES = st.builds(
    changed,
    st.sampled_from("abc"),
    st.integers(1, 4000).map(lambda size: size * MIB),
    ooms=st.integers(0, 2),
    retries=st.integers(0, 2),
)


@given(st.lists(OUTCOMES, min_size=1, max_size=8))
def test_whatif_recommendation_is_as_good_as_the_best_trial(trials: list[Trial]) -> None:
    ranked = best_first([*trials, TODAY])
    chosen, best = recommended(ranked, TODAY), ranked[0]
    assert not harms(chosen, best)
    assert (chosen.replay.ooms, chosen.replay.alloc_retries) == (best.replay.ooms, best.replay.alloc_retries)
