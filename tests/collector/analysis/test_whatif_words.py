from __future__ import annotations

import shlex

import pytest

from tidegauge.analysis.whatif.candidates import EXPANDABLE, GC, MAX_SPLIT, ROUNDUP
from tidegauge.analysis.whatif.results import ReplayConfidence, SearchLimits, WhatIf
from tidegauge.analysis.whatif.words import export_line, findings
from whatif_worlds import GIB, MIB, failed_request, replay_of, trial_of, whatif_of

TODAY = trial_of({}, replay_of(2402 * MIB))
EXPANDED = trial_of({EXPANDABLE: "True"}, replay_of(1100 * MIB))
OUT_OF_MEMORY = replay_of(
    2 * GIB, ooms=2, alloc_retries=2, failed=(failed_request(512 * MIB, largest_free_bytes=300 * MIB),)
)


def told(result: WhatIf) -> str:
    return "\n".join(findings(result))


@pytest.mark.parametrize(
    ("torch_version", "line"),
    [
        ("2.11.0+cu130", "export PYTORCH_ALLOC_CONF=expandable_segments:True"),
        ("2.9.1", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        (None, "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ],
)
def test_the_line_names_the_variable_that_this_torch_reads(torch_version: str | None, line: str) -> None:
    assert export_line(whatif_of(TODAY, EXPANDED, torch_version=torch_version)) == line


def test_no_line_where_nothing_is_to_change() -> None:
    assert export_line(whatif_of(TODAY)) is None


def test_no_line_where_no_setting_survives() -> None:
    best = trial_of({EXPANDABLE: "True"}, OUT_OF_MEMORY)
    assert export_line(whatif_of(trial_of({}, OUT_OF_MEMORY), best)) is None


def test_whatif_export_line_unsets_variables_if_the_defaults_are_best() -> None:
    today = trial_of({}, replay_of(4 * GIB), alloc_conf="max_split_size_mb:64")
    line = export_line(whatif_of(today, trial_of({MAX_SPLIT: None}, replay_of(2 * GIB))))
    assert line == "unset PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF"


def test_the_line_survives_what_a_recording_says_of_its_own_settings() -> None:
    conf = "pinned_num_register_threads:$(reboot);\x1b[2J\n'x,expandable_segments:True"
    line = export_line(whatif_of(TODAY, trial_of({EXPANDABLE: "True"}, replay_of(GIB), alloc_conf=conf)))
    assert line is not None
    assert line.isprintable()
    assert len(shlex.split(line)) == 2


def test_the_best_is_said_with_both_peaks() -> None:
    assert "Best: expandable_segments:True. Reserved peaks at 1.1 GiB instead of 2.3 GiB" in told(
        whatif_of(TODAY, EXPANDED)
    )


def test_peaks_that_look_alike_are_told_so_that_they_differ() -> None:
    best = trial_of({EXPANDABLE: "True"}, replay_of(2400 * MIB))
    failing = trial_of(
        {}, replay_of(2402 * MIB, ooms=1, alloc_retries=1, failed=(failed_request(512 * MIB, largest_free_bytes=MIB),))
    )
    assert "no request fails (today: 1). Peak reserved falls from 2,402 MiB to 2,400 MiB." in told(
        whatif_of(failing, best)
    )
    same = trial_of({EXPANDABLE: "True"}, replay_of(2402 * MIB))
    assert "Peak reserved stays at 2.3 GiB." in told(whatif_of(failing, same))
    more = trial_of({EXPANDABLE: "True"}, replay_of(3 * GIB))
    assert "Peak reserved rises from 2.3 GiB to 3.0 GiB." in told(whatif_of(failing, more))


def test_waste_is_said_of_today() -> None:
    assert "reserved peaks at 2.3 GiB, and 1.3 GiB (57%) of that is not allocated" in told(whatif_of(TODAY, EXPANDED))


def test_no_need_where_today_is_as_good_as_any() -> None:
    text = told(whatif_of(trial_of({}, replay_of(2402 * MIB)), trial_of({ROUNDUP: "4"}, replay_of(2400 * MIB)),
                          recommended=TODAY))  # fmt: skip
    assert "No need to change anything" in text
    assert "too little better" not in text


def test_a_lower_peak_by_less_than_one_per_cent_is_named_and_left() -> None:
    both = trial_of({EXPANDABLE: "True", ROUNDUP: "4"}, replay_of(1095 * MIB))
    text = told(whatif_of(TODAY, both, EXPANDED, recommended=EXPANDED))
    assert "expandable_segments:True,roundup_power2_divisions:4 would reach 1.1 GiB: too little better" in text


def test_popular_advice_that_harms_is_said_plainly() -> None:
    worse = trial_of({MAX_SPLIT: "64"}, replay_of(3900 * MIB))
    text = told(whatif_of(TODAY, EXPANDED, worse))
    assert "worse for this job than today's 2.3 GiB: " in text
    assert "max_split_size_mb:64 (3.8 GiB)" in text


def test_whatif_text_ignores_unusual_settings_that_are_worse() -> None:
    unheard_of = trial_of({MAX_SPLIT: "301"}, replay_of(9 * GIB))
    assert "worse for this job" not in told(whatif_of(TODAY, EXPANDED, unheard_of))


def test_a_setting_of_the_owner_s_that_harms_is_said() -> None:
    today = trial_of({}, replay_of(3900 * MIB), alloc_conf="max_split_size_mb:64")
    text = told(whatif_of(today, trial_of({MAX_SPLIT: None}, replay_of(2402 * MIB))))
    assert "max_split_size_mb, set today, does harm: without it reserved peaks at 2.3 GiB" in text


def test_when_allocated_memory_itself_is_too_much_no_setting_helps() -> None:
    result = whatif_of(trial_of({}, OUT_OF_MEMORY), needed_bytes=8 * GIB, limits=SearchLimits(6 * GIB))
    text = told(result)
    assert "No setting helps: allocated memory itself is the problem. It wants 8.0 GiB" in text
    assert "there are 6.0 GiB for it" in text
    assert "`tidegauge oom`" in text
    assert "Best:" not in text


def test_when_all_fail_though_allocated_memory_would_fit_what_is_needed_is_said() -> None:
    today = trial_of({}, OUT_OF_MEMORY, needs_bytes=9 * GIB)
    best = trial_of({EXPANDABLE: "True"}, replay_of(2 * GIB, ooms=1), needs_bytes=7 * GIB)
    text = told(whatif_of(today, best, needed_bytes=5 * GIB, limits=SearchLimits(6 * GIB)))
    assert "No setting tried survives: all 2 run out of memory" in text
    assert "needs a cap of 7,168 MiB; today's settings need 9,216 MiB" in text


def test_a_failing_request_is_told_beside_the_largest_free_block() -> None:
    text = told(whatif_of(trial_of({}, OUT_OF_MEMORY), EXPANDED, limits=SearchLimits(2 * GIB)))
    assert "2 requests out of memory (the first wants 512.0 MiB, the largest free block has 300.0 MiB)" in text


def test_whatif_text_claims_nothing_after_an_oom() -> None:
    text = told(whatif_of(trial_of({}, OUT_OF_MEMORY), EXPANDED, limits=SearchLimits(2 * GIB), died=True))
    assert "what it would have needed after that is not in it" in text


def test_garbage_collection_needs_a_cap_that_the_job_sets() -> None:
    collects = trial_of({GC: "0.8"}, replay_of(GIB))
    assert "Without one it does nothing" in told(whatif_of(TODAY, collects, limits=SearchLimits(3 * GIB, is_own=False)))
    assert "Without one it does nothing" not in told(whatif_of(TODAY, collects, limits=SearchLimits(3 * GIB)))


def test_garbage_collection_without_a_cap_is_said_to_do_nothing() -> None:
    today = trial_of({}, replay_of(GIB), alloc_conf="garbage_collection_threshold:0.6")
    assert "garbage_collection_threshold, set today, does nothing" in told(whatif_of(today))


def test_a_setting_with_many_more_calls_to_the_device_names_its_price() -> None:
    busy = trial_of({GC: "0.6"}, replay_of(GIB, device_calls=5000))
    by_step = told(whatif_of(TODAY, busy, steps=100))
    assert "Its price: 50.0 calls a step to the device for memory, today 0.1 calls a step." in by_step
    assert "Its price: 5,000 calls to the device for memory, today 10 calls." in told(whatif_of(TODAY, busy))
    assert "price" not in told(whatif_of(TODAY, EXPANDED, steps=100))


def test_why_a_figure_is_only_close_is_said() -> None:
    close = trial_of({ROUNDUP: "4"}, replay_of(GIB), confidence=ReplayConfidence.CLOSE, doubts=("addresses decide",))
    assert "Confidence: close. Addresses decide." in told(whatif_of(TODAY, close))
    assert "Exact: under its own settings the model gives back every address of 1,000 events" in told(
        whatif_of(TODAY, EXPANDED)
    )


def test_a_cap_that_was_concluded_is_told_with_its_range() -> None:
    text = told(whatif_of(TODAY, EXPANDED, limits=SearchLimits(150 * MIB, below_bytes=176 * MIB)))
    assert "It was at least 150 MiB, which is taken here, and below 176 MiB: --cap tells the true one." in text
    assert "--cap" not in told(whatif_of(TODAY, EXPANDED, limits=SearchLimits(150 * MIB)))


def test_settings_of_today_are_taken_out_of_the_name_that_wins() -> None:
    today = trial_of({}, replay_of(4 * GIB), alloc_conf="max_split_size_mb:64")
    better = trial_of({EXPANDABLE: "True"}, replay_of(GIB), alloc_conf="max_split_size_mb:64,expandable_segments:True")
    line = export_line(whatif_of(today, better, torch_version="2.12.0"))
    assert line == (
        "unset PYTORCH_CUDA_ALLOC_CONF; export PYTORCH_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True"
    )
    older = export_line(whatif_of(today, better, torch_version="2.9.1"))
    assert older == "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True"
