"""Sentences about a memory profile, for the terminal and for pages. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from tidegauge.analysis.oom.answer import RECORD_STACKS
from tidegauge.core.evidence.held_memory import line_name
from tidegauge.core.profile.advice import AdvisedMeasure, StepAdvice
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.comparison import LineChange, PhaseChange, ProfileComparison
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.step_profile import PhasePeak, ProfileLine, StepProfile
from tidegauge.core.units import format_bytes, format_bytes_apart, format_count

if TYPE_CHECKING:  # it replays, for which a report has no packages
    from tidegauge.analysis.profile.modules import ModuleGroup

NO_STACK = "no stack recorded"
OUTSIDE = "(no module)"
IN_BACKWARD = "(autograd)"
MAX_TOLD_MEASURES = 3
MAX_TOLD_TIMES = 100
"""As large as today's batch, beyond which a figure tells nothing."""
MAX_UNKNOWN_SHARE = 0.02
"""Of the peak, above which a sentence says how to record more."""
MAX_OTHER_SHARE = 0.1
"""Of the peak, above which a sentence says what is known of it."""
_TELLS_MORE = (
    "A recording that begins before the model is made tells it, as does `with tidegauge.profile(model, optimizer)`"
)
_DURING = {
    StepPhase.INPUT: "before the forward pass",
    StepPhase.FORWARD: "in the forward pass",
    StepPhase.BACKWARD: "in the backward pass",
    StepPhase.RECOMPUTATION: "in the backward pass, where activation checkpointing computes again",
    StepPhase.BEFORE_OPTIMIZER: "between backward pass and optimizer",
    StepPhase.OPTIMIZER: "in the optimizer's step",
    StepPhase.UNKNOWN: "at the beginning of the recording",
}


def known_phases(profile: StepProfile) -> list[PhasePeak]:
    """The phases without ``UNKNOWN``; empty where the recording has no stacks, or no training."""
    return [one for one in profile.phases if one.phase is not StepPhase.UNKNOWN]


def peak_sentence(profile: StepProfile) -> str:
    """How high the peak is, and when it is reached."""
    peak = profile.peak
    when = f"at event {peak.event:,}" if peak.event >= 0 else "before the first event"
    during = f" {_DURING[peak.phase]}" if known_phases(profile) else ""
    return (
        f"Peak: {format_bytes(peak.allocated_bytes)} allocated{during}, {when}; "
        f"{format_bytes(profile.reserved_bytes)} reserved at most{_unallocated(profile)}.{_not_trained(profile)}"
    )


def _not_trained(profile: StepProfile) -> str:
    phases = {one.phase for one in known_phases(profile)}
    if StepPhase.FORWARD not in phases or StepPhase.OPTIMIZER in phases or profile.backward_passes:
        return ""
    return (
        " Nothing is trained in this recording, which has no backward pass: it is of inference, generation or "
        "evaluation, or ends before the first one."
    )


def _unallocated(profile: StepProfile) -> str:
    unallocated_bytes = profile.unallocated_bytes or 0
    if unallocated_bytes <= max(profile.peak.by_category.values(), default=0):
        return ""
    return f", of which {format_bytes(unallocated_bytes)} were not allocated even then: more than any category"


def comparison_sentence(compared: ProfileComparison) -> str:
    before, after = format_bytes_apart(compared.before_peak_bytes, compared.after_peak_bytes)
    if not compared.grown_bytes:
        return f"The peak is the same: {format_bytes(compared.after_peak_bytes)}."
    word = "higher" if compared.grown_bytes > 0 else "lower"
    share = f" ({compared.grown_share:+.1%})" if compared.before_peak_bytes else ""
    return f"The peak is {format_bytes(abs(compared.grown_bytes))} {word}{share}: {before} before, {after} after."


def signed_bytes(count: int) -> str:
    return f"{'+' if count > 0 else '-' if count < 0 else ''}{format_bytes(abs(count))}"


def known_bytes(count: Optional[int]) -> str:
    return "-" if count is None else format_bytes(count)


def change_of_phase(change: PhaseChange) -> str:
    if change.before_bytes is None or change.after_bytes is None:
        return "-"
    return signed_bytes(change.after_bytes - change.before_bytes)


def line_of_change(change: LineChange) -> str:
    if change.line is not None:
        return line_name(change.line)
    return IN_BACKWARD if change.in_backward else NO_STACK


def torch_words(version: Optional[str]) -> Optional[str]:
    """Whole versions are recorded; one without its last number is the oldest that writes such a snapshot."""
    return version if version is None or version.count(".") > 1 else f"{version} or later"


def phase_of_line(line: ProfileLine) -> str:
    """``before``: most of it was there when the recording began."""
    return "before" if _is_before(line) else line.phase.value


def _is_before(line: ProfileLine) -> bool:
    if line.before_bytes is None:
        return line.phase is StepPhase.UNKNOWN
    return 2 * line.before_bytes > line.held_bytes


def name_of_line(line: ProfileLine) -> str:
    """File, number and function; the program's name for it; or why there is neither."""
    if line.line is not None:
        return line_name(line.line)
    if line.name is not None:
        return line.name
    return IN_BACKWARD if line.phase is StepPhase.BACKWARD else NO_STACK


def name_of_group(group: ModuleGroup) -> str:
    """``Net.layers.*.mlp (12)``: so many modules."""
    return f"{group.path} ({group.modules:,})" if group.modules > 1 else group.path


def outside_modules(profile: StepProfile) -> Optional[str]:
    """How much of the peak no module made; ``None`` where nothing is known of modules."""
    if not profile.modules:
        return None
    outside = format_bytes(profile.outside_modules_bytes)
    if profile.modules_missing is not None:
        return f"{outside} are not told by module."
    return f"{outside} belong to no module: what the backward pass allocates, inputs, workspaces."


def caller_of_line(line: ProfileLine) -> Optional[str]:
    return None if line.caller is None else line_name(line.caller)


def doubts(profile: StepProfile, *, of_steps: bool = False) -> Iterator[str]:
    """What the profile does not know, and how to record it; ``of_steps``: it is of some steps, and says of which."""
    if not known_phases(profile) and any(one.line is not None for one in profile.lines):
        yield (
            "The recording has no forward pass, backward pass or optimizer's step, so phases are not known, and few "
            "purposes."
        )
    elif not known_phases(profile):
        yield f"The recording has no stacks, so neither phases nor lines are known. To see them: {RECORD_STACKS}"
    elif profile.peak.unknown_share > MAX_UNKNOWN_SHARE:
        yield (
            f"{profile.peak.unknown_share:.0%} of the peak was allocated before the recording began and is not told "
            f"apart.{'' if of_steps else f' {_TELLS_MORE}.'}"
        )
    other = _other(profile, of_steps=of_steps)
    if other is not None:
        yield other
    if profile.modules_missing is not None:
        which = "Memory" if not any(Category.ACTIVATIONS in one.total for one in profile.modules) else "Some memory"
        yield f"{which} that modules allocated is not told by module: {profile.modules_missing}."
    if not profile.is_complete and not of_steps:
        yield (
            "The recording does not have the process's first events: it began later, or its ring (`max_entries`) was "
            "full. A higher peak may lie before it."
        )
    if profile.skipped_events:
        left_out = format_count(profile.skipped_events, "event")
        yield (
            f"{left_out} left out, of kinds that this version of Tidegauge does not know, such as a newer PyTorch's: "
            "figures may be off."
        )
    if not profile.is_exact:
        yield (
            "The allocator's model did not come to the recorded addresses, so rounding is what PyTorch's rules give, "
            "without blocks that were not split."
        )


def overlap(threads: int, device: int) -> str:
    """Of a recording in which several threads step optimizers."""
    count = "two" if threads == 2 else f"{threads:,}"
    return (
        f"{count} threads train on device {device}: the recording does not tell which one allocated, so activations, "
        "gradients, temporaries and inputs may be taken for each other where their steps overlap"
    )


def rank_doubts(one: RankProfile) -> Iterator[str]:
    """What a rank's process, and the agent, say beside its profile."""
    if one.is_compiled:
        yield "torch.compile compiled code in this process: lines of compiled code are those of generated files."
    yield from (f"Rank {one.rank}: {problem}." for problem in one.problems)


def _other(profile: StepProfile, *, of_steps: bool) -> Optional[str]:
    """What is known of the category ``OTHER``, where that is a large part."""
    sizes = profile.peak.by_category
    held = sizes.get(Category.OTHER, 0)
    lines = [one for one in profile.lines if one.category is Category.OTHER and one.line is not None]
    if not lines or (held <= MAX_OTHER_SHARE * profile.peak.allocated_bytes and held < max(sizes.values())):
        return None
    most = lines[0]
    when = "before the recording began" if _is_before(most) else _DURING[most.phase]
    said = (
        f"{held / profile.peak.allocated_bytes:.0%} of the peak is {Category.OTHER.value}: its lines are known, its "
        f"purpose is not. The largest part, {format_bytes(most.held_bytes)} in "
        f"{format_count(most.blocks, 'block')}, was allocated {when} at {name_of_line(most)}"
    )
    if _is_before(most) and not of_steps:
        return f"{said}. If these are tensors of the model: {_TELLS_MORE[0].lower()}{_TELLS_MORE[1:]}."
    return f"{said}."


def advice_sentences(advice: StepAdvice) -> Iterator[str]:
    """The measures that save most, then what room there is on the card."""
    for one in advice.measures[:MAX_TOLD_MEASURES]:
        yield measure_sentence(one)
    yield from room_sentences(advice)


def measure_sentence(one: AdvisedMeasure) -> str:
    """What to do, what it saves and costs."""
    today, then = format_bytes_apart(one.peak_bytes + one.saved_bytes, one.peak_bytes)
    what = "reserved memory" if one.is_reserved else "the peak"
    most = " at best" if one.is_bound else ""
    condition = "" if one.condition is None else f", {one.condition}"
    return f"{one.action}: {what} falls from {today} to {then}{most}{condition}; {one.price}."


def room_sentences(advice: StepAdvice) -> Iterator[str]:
    """How much larger the batch can be, and which smaller cards would do, where the card is known."""
    room = advice.room
    if room is not None and room.safe_times > MAX_TOLD_TIMES:
        yield (
            f"The batch can be more than {MAX_TOLD_TIMES} times as large: PyTorch has {format_bytes(room.limit_bytes)}."
        )
    elif room is not None and room.safe_times >= 1:
        yield (
            f"The batch can be {room.safe_times:.1f} times as large: PyTorch has {format_bytes(room.limit_bytes)}. "
            f"At {room.border_times:.1f} times allocated memory alone fills it."
        )
    elif room is not None and not room.safe_times:
        yield (
            f"PyTorch has {format_bytes(room.limit_bytes)}: what does not grow with the batch, such as parameters and "
            "optimizer state, does not fit safely by itself."
        )
    elif room is not None:
        yield (
            f"PyTorch has {format_bytes(room.limit_bytes)}: a batch of {room.safe_times:.2f} times today's fits safely."
        )
    if room is not None and advice.cards:
        card = advice.cards[0]
        yield (
            f"A smaller card would do: {card.name} has {format_bytes(card.total_bytes)} for PyTorch, which reserves "
            f"{format_bytes(advice.reserved_bytes)} at most."
        )
