"""Textbook formulas for comparison with the estimate: a check that a person can do in the head.

They leave out what an estimate is for (temporaries, workspaces, the allocator's rounding), so a ratio far from 1 is no
error in itself; it shows where the memory is that the formula does not know. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Optional

from tidegauge.estimator.results import ClosedForm


class ModelFacts(NamedTuple):
    """Facts about a model and its step that the formulas need; ``None`` where not known."""

    parameters: int
    """Trainable numbers (in this rank)."""
    bytes_per_parameter: float
    optimizer: str
    """The class's name."""
    states_kept: int
    """Numbers that it keeps for each parameter: 2 for Adam."""
    autocast: bool
    """Whether forward runs under autocast."""
    checkpointed: bool
    layers: Optional[int] = None
    """Repeated blocks."""
    hidden: Optional[int] = None
    heads: Optional[int] = None
    batch: Optional[int] = None
    """Samples in a step."""
    sequence: Optional[int] = None
    """Tokens in a sample."""


def closed_forms(
    facts: ModelFacts, states_bytes: int, activation_bytes: int, checkpointed_activation_bytes: Optional[int] = None
) -> tuple[ClosedForm, ...]:
    """The formulas that ``facts`` suffice for, each with the most that the run ever held of it.

    ``states_bytes``: of parameters, gradients and optimizer state together. ``checkpointed_activation_bytes``: of
    activations in the same step with checkpointing, where that was run.
    """
    forms = [model_states(facts, states_bytes), *_megatron(facts, activation_bytes)]
    if facts.layers is not None and checkpointed_activation_bytes is not None and not facts.checkpointed:
        forms.append(
            ClosedForm(
                "activations with checkpointing (Chen et al. 2016)",
                f"activations / sqrt(L), L = {facts.layers}",
                round(activation_bytes / math.sqrt(facts.layers)),
                "activations with each block checkpointed",
                checkpointed_activation_bytes,
            )
        )
    return tuple(forms)


def model_states(facts: ModelFacts, states_bytes: int) -> ClosedForm:
    """Parameters, gradients and optimizer state: 4 + 4 + 8 = 16 bytes a parameter with Adam in 32 bits."""
    width = facts.bytes_per_parameter
    whole = width * (2 + facts.states_kept)
    more = f"; {whole + 2:g} with autocast's 16-bit copies, which are activations here" if facts.autocast else ""
    return ClosedForm(
        f"model states, {facts.optimizer}",
        f"{whole:g} bytes a parameter ({width:g} + {width:g} + {facts.states_kept * width:g}{more})",
        round(facts.parameters * whole),
        "parameters, gradients and optimizer state together",
        states_bytes,
    )


def _megatron(facts: ModelFacts, activation_bytes: int) -> list[ClosedForm]:
    """Activations of a transformer by Korthikanti et al. 2022, equation 2, for layers of the GPT shape.

    A layer of the paper keeps 32 sbh bytes of 16-bit tensors and 2 sbh of dropout masks, and for the scores of the
    attention 4 a s^2 b and a mask of a s^2 b; tensors of 32 bits double all but the masks. A fused attention keeps no
    scores.
    """
    layers, hidden, batch, sequence = facts.layers, facts.hidden, facts.batch, facts.sequence
    if layers is None or hidden is None or batch is None or sequence is None or facts.checkpointed:
        return []
    wide = facts.bytes_per_parameter > 2 and not facts.autocast
    tokens, scores = (66, 9) if wide else (34, 5)
    fused = layers * tokens * sequence * batch * hidden
    sizes = f"L = {layers}, s = {sequence}, b = {batch}, h = {hidden}"
    name, of = f"activations of a transformer (Korthikanti et al. 2022, {32 if wide else 16} bits)", "activations"
    forms = [ClosedForm(f"{name}, fused attention", f"L {tokens} s b h, {sizes}", fused, of, activation_bytes)]
    if facts.heads is not None:
        full = fused + layers * scores * facts.heads * sequence**2 * batch
        formula = f"L ({tokens} s b h + {scores} a s^2 b), {sizes}, a = {facts.heads}"
        forms.append(ClosedForm(f"{name}, scores kept", formula, full, of, activation_bytes))
    return forms
