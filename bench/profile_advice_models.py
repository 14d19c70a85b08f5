"""bench/profile_advice.py on models of `transformers` that no rule of the advice was made on. Prints a table.

    PYTHONPATH=collector:bench:exporter python bench/profile_advice_models.py [gpt2 llama qwen3 bert vit t5]

Needs `transformers` beside torch, and downloads nothing: the models are small and have random weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import profile_advice
import torch
import transformers
from profile_advice import Case

SIZE = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1536}
GROUPED = {**SIZE, "num_key_value_heads": 2, "vocab_size": 16384, "bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, tuple[str, str, dict[str, int]]] = {
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"n_layer": 6, "n_embd": 512, "n_head": 8, "vocab_size": 16384}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 64}),
    "bert": ("BertForMaskedLM", "BertConfig", {**SIZE, "vocab_size": 8192}),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SIZE, "image_size": 128, "patch_size": 8}),
    "t5": (
        "T5ForConditionalGeneration", "T5Config",
        {"d_model": 512, "d_ff": 1536, "num_layers": 4, "num_heads": 8, "vocab_size": 8192,
         "decoder_start_token_id": 0},
    ),
}  # fmt: skip


class WithLoss(torch.nn.Module):  # type: ignore[misc]  # torch is not installed here
    def __init__(self, model: Any, is_of_pictures: bool) -> None:
        super().__init__()
        self.model, self.is_of_pictures = model, is_of_pictures

    def forward(self, batch: Any) -> Any:
        if self.is_of_pictures:
            return self.model(pixel_values=batch, labels=torch.zeros(len(batch), dtype=torch.long, device="cuda")).loss
        return self.model(input_ids=batch, labels=batch).loss


def made(_: Any, kind: str, checkpointed: bool, _chunks: int) -> tuple[Any, Callable[[float], tuple[Any, ...]]]:
    """As ``profile_advice.made``."""
    model_class, config_class, options = MODELS[kind]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**options)).train()
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if kind == "vit":
        return WithLoss(model, True), lambda times: (torch.zeros(int(32 * times), 3, 128, 128, device="cuda"),)
    return WithLoss(model, False), lambda times: (torch.zeros(int(8 * times), 256, dtype=torch.long, device="cuda"),)


def cases(kind: str) -> tuple[Case, ...]:
    return (
        Case("checkpointing", kind),
        Case("checkpointing", kind, amp=True),
        Case("twice the batch", kind),
        Case("half the batch, twice", kind, "sgd"),
        Case("optimizer in backward", kind),
    )


def main() -> None:
    profile_advice.trained(torch, Case("", "mlp"), measure=None)
    vars(profile_advice)["made"] = made
    wanted = tuple(case for kind in sys.argv[1:] or MODELS for case in cases(kind))
    profile_advice.shown(list(profile_advice.outcomes(torch, wanted, warm_up=False)))


if __name__ == "__main__":
    main()
