"""Training jobs that no table of the estimator was made from: other families, sizes, batches and pictures.

`tidegauge estimate` was fitted to the jobs of gpu_peaks_models.py; these say how far it is off elsewhere. None of
their models but resnet101 is there in the same size, and none of their batches. A line is as there; `fam` "own" is one
of gpu_peaks_own_models.py. The numbers begin at 2000.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_peaks_models import SCALED, VOCABULARY, Fields, denoiser

TORCHVISION: tuple[Fields, ...] = (
    {"name": "resnet34", "b": 24, "opt": "sgd", "side": 160},
    {"name": "resnet152", "b": 12, "opt": "adamw", "amp": 1},
    {"name": "wide_resnet50_2", "b": 20, "opt": "sgd", "side": 192},
    {"name": "wide_resnet50_2", "b": 48, "opt": "sgd", "amp": 1, "channels_last": 1},
    {"name": "resnext50_32x4d", "b": 48, "opt": "adamw", "amp": 1},
    {"name": "densenet161", "b": 12, "opt": "sgd"},
    {"name": "mobilenet_v3_small", "b": 96, "opt": "adamw", "zero_grad": "before_forward"},
    {"name": "mnasnet0_75", "b": 48, "opt": "sgd", "amp": 1},
    {"name": "efficientnet_b2", "b": 20, "opt": "adamw", "side": 256},
    {"name": "efficientnet_v2_s", "b": 24, "opt": "adamw", "amp": 1, "side": 192},
    {"name": "vgg11_bn", "b": 24, "opt": "sgd"},
    {"name": "vgg19", "b": 6, "opt": "adamw", "side": 192},
    {"name": "regnet_x_1_6gf", "b": 48, "opt": "sgd"},
    {"name": "vit_l_16", "b": 6, "opt": "adamw", "amp": 1},
    {"name": "swin_v2_t", "b": 12, "opt": "adamw", "side": 256},
    {"name": "maxvit_t", "b": 6, "opt": "adamw", "amp": 1, "family_config": {"input_size": [224, 224]}},
    {"name": "shufflenet_v2_x1_5", "b": 96, "opt": "sgd", "side": 160},
    {"name": "fcn_resnet50", "b": 6, "opt": "sgd", "side": 192, "family_config": {"weights_backbone": None}},
    {"name": "lraspp_mobilenet_v3_large", "b": 12, "opt": "adamw", "amp": 1, "side": 256}
    | {"family_config": {"weights_backbone": None}},
    {"name": "convnext_small", "b": 20, "opt": "adamw_fused", "amp": 1, "clip": 1},
    {"name": "resnet101", "b": 20, "opt": "sgd", "scaler": 1, "side": 256},
)

_WIDE = {"vocab_size": VOCABULARY, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_GPT_J = {"vocab_size": VOCABULARY, "n_embd": 768, "n_layer": 6, "n_head": 12, "rotary_dim": 32, "n_positions": 1024}
_BART = {"vocab_size": VOCABULARY, "d_model": 512, "encoder_layers": 4, "decoder_layers": 4} | {
    f"{part}_{size}": value
    for part in ("encoder", "decoder")
    for size, value in (("attention_heads", 8), ("ffn_dim", 2048))
}

TRANSFORMERS: tuple[tuple[str, str, str, Fields, Fields], ...] = (
    ("falcon", "Falcon", "ForCausalLM", {"vocab_size": VOCABULARY, "hidden_size": 768, "num_hidden_layers": 8}
     | {"num_attention_heads": 12}, {"b": 6, "t": 384, "opt": "adamw"}),
    ("gpt_bigcode", "GPTBigCode", "ForCausalLM", {"vocab_size": VOCABULARY, "n_layer": 8},
     {"b": 12, "t": 192, "opt": "adamw", "amp": 1}),
    ("gptj", "GPTJ", "ForCausalLM", _GPT_J, {"b": 6, "t": 320, "opt": "sgd"}),
    ("codegen", "CodeGen", "ForCausalLM", _GPT_J, {"b": 12, "t": 192, "opt": "adamw", "amp": 1}),
    ("stablelm", "StableLm", "ForCausalLM", {**_WIDE, "num_hidden_layers": 8, "num_key_value_heads": 12},
     {"b": 6, "t": 384, "opt": "adamw", "amp": 1, "ckpt": 1}),
    ("olmo2", "Olmo2", "ForCausalLM", {**_WIDE, "num_hidden_layers": 6, "num_key_value_heads": 12},
     {"b": 12, "t": 192, "opt": "adamw"}),
    ("cohere", "Cohere", "ForCausalLM", {**_WIDE, "num_hidden_layers": 6, "num_key_value_heads": 4},
     {"b": 6, "t": 320, "opt": "adamw", "amp": 1}),
    ("phi3", "Phi3", "ForCausalLM", {**_WIDE, "num_hidden_layers": 8, "num_key_value_heads": 6, "pad_token_id": 0},
     {"b": 6, "t": 384, "opt": "adamw", "amp": 1, "accumulation": 3}),
    ("gemma2", "Gemma2", "ForCausalLM", {**_WIDE, "num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 64},
     {"b": 6, "t": 256, "opt": "adamw"}),
    ("xlnet", "XLNet", "LMHeadModel", {"d_model": 768, "n_layer": 6, "n_head": 12, "d_inner": 3072},
     {"b": 6, "t": 192, "opt": "adamw"}),
    ("deberta", "Deberta", "ForMaskedLM", {**_WIDE, "num_hidden_layers": 6}, {"b": 12, "t": 192, "opt": "adamw"}),
    ("longformer", "Longformer", "ForMaskedLM", {**_WIDE, "num_hidden_layers": 4, "attention_window": 128}
     | {"max_position_embeddings": 1026}, {"b": 2, "t": 1024, "opt": "adamw"}),
    ("mbart", "MBart", "ForConditionalGeneration", _BART, {"b": 12, "t": 160, "opt": "adamw", "amp": 1}),
    ("pegasus", "Pegasus", "ForConditionalGeneration", _BART, {"b": 20, "t": 96, "opt": "sgd"}),
    ("gpt2", "GPT2", "LMHeadModel", {"vocab_size": VOCABULARY, "n_embd": 512, "n_layer": 8, "n_head": 8},
     {"b": 6, "t": 384, "opt": "adamw"}),
    ("gpt2", "GPT2", "LMHeadModel", {"vocab_size": VOCABULARY, "n_embd": 1280, "n_layer": 6, "n_head": 20},
     {"b": 6, "t": 640, "opt": "adamw_fused", "amp": 1, "clip": 1, "zero_grad": "before_forward"}),
    ("llama", "Llama", "ForCausalLM", {**_WIDE, "num_hidden_layers": 8, "num_key_value_heads": 12},
     {"b": 6, "t": 384, "opt": "adamw", "amp": 1}),
    ("llama", "Llama", "ForCausalLM", {**_WIDE, "hidden_size": 1536, "num_hidden_layers": 5, "intermediate_size": 4096}
     | {"num_key_value_heads": 4}, {"b": 3, "t": 640, "opt": "adamw", "accumulation": 2, "clip": 1}),
    ("bert", "Bert", "ForMaskedLM", {**_WIDE, "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16},
     {"b": 12, "t": 192, "opt": "adamw", "scaler": 1, "clip": 1}),
    ("t5", "T5", "ForConditionalGeneration", {"d_model": 768, "d_ff": 2048, "num_layers": 4, "num_heads": 12}
     | {"decoder_start_token_id": 0}, {"b": 6, "t": 192, "opt": "adamw", "amp": 1}),
    ("segformer", "Segformer", "ForSemanticSegmentation", {"num_labels": 21}, {"b": 6, "side": 256, "opt": "adamw"}),
    ("beit", "Beit", "ForImageClassification", {"num_labels": 1000, "num_hidden_layers": 8},
     {"b": 12, "opt": "adamw", "amp": 1}),
    ("deit", "DeiT", "ForImageClassification", {"num_labels": 1000, "hidden_size": 384, "num_attention_heads": 6}
     | {"intermediate_size": 1536}, {"b": 20, "opt": "adamw"}),
    ("convnextv2", "ConvNextV2", "ForImageClassification", {"num_labels": 1000}, {"b": 12, "opt": "adamw", "amp": 1}),
    ("dinov2", "Dinov2", "ForImageClassification", {"num_labels": 1000, "hidden_size": 384, "num_attention_heads": 6},
     {"b": 24, "side": 196, "opt": "adamw", "amp": 1}),
    ("mobilevit", "MobileViT", "ForImageClassification", {"num_labels": 1000}, {"b": 24, "side": 256, "opt": "sgd"}),
    ("wav2vec2", "Wav2Vec2", "ForSequenceClassification", {"layerdrop": 0.0, "num_hidden_layers": 6, "num_labels": 12},
     {"b": 6, "samples": 48000, "opt": "adamw"}),
    ("hubert", "Hubert", "ForSequenceClassification", {"layerdrop": 0.0, "num_hidden_layers": 6, "num_labels": 12},
     {"b": 12, "samples": 32000, "opt": "adamw", "amp": 1}),
)  # fmt: skip
"""Family, the stem of transformers' names, the model's ending, sizes, habits."""

OWN: tuple[Fields, ...] = (
    {"name": "translation_transformer", "b": 12, "t": 160, "opt": "adamw"},
    {"name": "translation_transformer", "b": 24, "t": 96, "opt": "adamw", "amp": 1},
    {"name": "unet", "b": 12, "side": 160, "opt": "adamw"},
    {"name": "unet", "b": 20, "side": 192, "opt": "adamw", "amp": 1},
    {"name": "diffusion_unet", "b": 6, "side": 64, "opt": "adamw"},
    {"name": "lstm_language_model", "b": 24, "t": 96, "opt": "adamw"},
    {"name": "lstm_language_model", "b": 48, "t": 64, "opt": "sgd", "amp": 1, "clip": 1},
    {"name": "gru_tagger", "b": 20, "t": 160, "opt": "adamw"},
    {"name": "gan", "b": 96, "side": 64, "opt": "adam"},
    {"name": "waveform_net", "b": 24, "samples": 16000, "opt": "sgd"},
    {"name": "video_net", "b": 6, "side": 112, "opt": "adamw", "amp": 1},
    {"name": "video_net", "b": 6, "side": 96, "opt": "sgd"},
    {"name": "recommender", "b": 2000, "opt": "adagrad"},
    {"name": "routed_experts", "b": 6, "t": 192, "opt": "adamw"},
)


DENOISERS: tuple[tuple[int, int, Fields, tuple[Any, ...]], ...] = (
    (20, 48, SCALED, (160, (1, 2, 3), 2, (2,), 4, False)),
    (10, 80, SCALED, (64, (1, 2, 3, 4), 2, (3,), 8, False)),
    (18, 64, {}, (192, (1, 2, 2), 1, (2,), 6, False)),
    (9, 112, SCALED, (128, (1, 1, 2, 3), 1, (3,), 4, True)),
)

_INPUTS: Mapping[str, str] = {"mbart": "seq2seq", "pegasus": "seq2seq", "t5": "seq2seq"} | {
    **dict.fromkeys(("beit", "deit", "convnextv2", "dinov2", "mobilevit"), "image"),
    **dict.fromkeys(("wav2vec2", "hubert"), "sound"),
    "segformer": "labelled_image",
}
"""How a batch is made, for all but lines of tokens."""
_LABELLED_PICTURES = ("fcn_resnet50", "lraspp_mobilenet_v3_large")


def heldout_jobs() -> list[dict[str, Any]]:
    """All of them, by number."""
    jobs = [_picture_line(line) for line in TORCHVISION]
    jobs += [
        {"fam": family, "amp": 0, "ckpt": 0, **habits, "config": f"{stem}Config", "model": f"{stem}{ending}"}
        | {"inputs": _INPUTS.get(family, "tokens"), "family_config": sizes}
        for family, stem, ending, sizes, habits in TRANSFORMERS
    ]
    jobs += [{"fam": "own", "amp": 0, **line, "inputs": "own"} for line in OWN]
    jobs += [denoiser(batch, side, habits, sizes) for batch, side, habits, sizes in DENOISERS]
    return [{"i": 2000 + number, **job} for number, job in enumerate(jobs)]


def _picture_line(line: Fields) -> dict[str, Any]:
    inputs = "labelled_picture" if line["name"] in _LABELLED_PICTURES else "picture"
    return {"fam": "tv", "amp": 0, "side": 224, "family_config": {}, **line, "inputs": inputs}
