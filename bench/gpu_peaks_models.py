"""The training jobs whose memory bench/gpu_peaks.py records: model, batch, optimizer and habits, each one line of JSON.

A line is enough to build the job again: `getattr(transformers, model)(getattr(transformers, config)(**family_config))`,
or for `fam` "tv" the torchvision model `name` with `family_config` as its arguments. The lines of
../shared/recordings/peaks.jsonl name only sizes; `of_recorded` says which configurations they stand for.

A step, as the recorder of that file took it:

    with torch.autocast("cuda", torch.bfloat16, enabled=amp):
        loss = model(input_ids=x, labels=x).loss        # the output is dropped at once, the same batch every step
    optimizer.zero_grad(set_to_none=True)               # after the forward: old gradients live through it
    loss.backward()
    optimizer.step()

The model is made on the CPU, moved to the GPU, left in train mode (dropout is on), with transformers' own defaults
(SDPA, `use_cache`), torch's for the optimizers (foreach), and neither `cudnn.benchmark` nor TF32 matrix products.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Fields = Mapping[str, Any]
VOCABULARY = 32000


class Family(NamedTuple):
    """One size of a transformers model."""

    config: str
    model: str
    inputs: str
    """tokens, seq2seq, image, audio or pairs: how `Training` makes a batch."""
    sizes: Fields


def _decoder(name: str, model: str, width: int, layers: int, heads: int, **more: Any) -> Family:
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": VOCABULARY}
    return Family(f"{name}Config", f"{name}{model}", "tokens", {**sizes, **more})


FAMILIES: Mapping[str, Family] = {
    "gpt2_medium": Family(
        "GPT2Config",
        "GPT2LMHeadModel",
        "tokens",
        {"vocab_size": VOCABULARY, "n_positions": 1024, "n_embd": 1024, "n_layer": 24, "n_head": 16},
    ),
    "qwen2": _decoder("Qwen2", "ForCausalLM", 896, 12, 14, num_key_value_heads=2, intermediate_size=4864),
    "t5": Family(
        "T5Config",
        "T5ForConditionalGeneration",
        "seq2seq",
        {"d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8, "decoder_start_token_id": 0},
    ),
    "vit": Family("ViTConfig", "ViTForImageClassification", "image", {"num_labels": 1000}),
    "opt": _decoder("OPT", "ForCausalLM", 768, 12, 12, ffn_dim=3072, word_embed_proj_dim=768),
    "roberta": _decoder("Roberta", "ForMaskedLM", 768, 12, 12, max_position_embeddings=514),
    "mistral": _decoder(
        "Mistral", "ForCausalLM", 1024, 8, 16, num_key_value_heads=4, intermediate_size=3584, sliding_window=256
    ),
    "whisper_tiny": Family(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        "audio",
        {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6}
        | {"decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536},
    ),
    "gpt_neox": _decoder("GPTNeoX", "ForCausalLM", 768, 12, 12, intermediate_size=3072),
    "bart": Family(
        "BartConfig",
        "BartForConditionalGeneration",
        "seq2seq",
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12}
        | {"decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072},
    ),
    "qwen3": _decoder("Qwen3", "ForCausalLM", 1024, 8, 16, num_key_value_heads=8, head_dim=128, intermediate_size=3072),
    "swin": Family("SwinConfig", "SwinForImageClassification", "image", {"num_labels": 1000}),
    "distilbert": Family("DistilBertConfig", "DistilBertForMaskedLM", "tokens", {"vocab_size": VOCABULARY}),
    "albert": _decoder("Albert", "ForMaskedLM", 768, 12, 12, intermediate_size=3072),
    "gemma": _decoder("Gemma", "ForCausalLM", 1024, 8, 8, num_key_value_heads=1, head_dim=128, intermediate_size=4096),
    "electra": _decoder("Electra", "ForMaskedLM", 256, 12, 4, embedding_size=128, intermediate_size=1024),
    "clip": Family("CLIPConfig", "CLIPModel", "pairs", {}),
    "bloom": _decoder("Bloom", "ForCausalLM", 768, 8, 12, n_head=12, n_layer=8),
    "phi": _decoder("Phi", "ForCausalLM", 768, 8, 12, intermediate_size=3072),
    "deberta_v2": _decoder("DebertaV2", "ForMaskedLM", 768, 6, 12, intermediate_size=3072),
    "mixtral": _decoder(
        "Mixtral", "ForCausalLM", 512, 6, 8, num_key_value_heads=4, intermediate_size=1024, num_local_experts=4
    ),
    "whisper_base": Family(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        "audio",
        {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8}
        | {"decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048},
    ),
    "dinov2": Family("Dinov2Config", "Dinov2ForImageClassification", "image", {"num_labels": 1000}),
    "mamba": _decoder("Mamba", "ForCausalLM", 512, 4, 8),
}
"""Most different first: what a spent budget costs is at the end."""

TORCHVISION: Mapping[str, Fields] = {
    "resnet18": {},
    "vit_b_16": {},
    "efficientnet_b0": {},
    "densenet121": {},
    "mobilenet_v3_large": {},
    "swin_t": {},
    "convnext_base": {},
    "regnet_y_3_2gf": {},
    "deeplabv3_resnet50": {"weights_backbone": None},
    "resnet101": {},
    "mobilenet_v2": {},
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "googlenet": {"aux_logits": False, "init_weights": False},
    "alexnet": {},
    "shufflenet_v2_x1_0": {},
    "squeezenet1_1": {},
    "efficientnet_b4": {},
    "vgg16": {},
}
SIDES: Mapping[str, int] = {"inception_v3": 299, "deeplabv3_resnet50": 256}
"""Height and width of the pictures where it is not 224."""

_TOKEN_VARIANTS: tuple[Fields, ...] = (
    {"b": 4, "t": 256, "opt": "adamw"},
    {"b": 8, "t": 512, "opt": "adamw", "amp": 1},
    {"b": 16, "t": 256, "opt": "adamw"},
    {"b": 8, "t": 512, "opt": "adamw", "amp": 1, "ckpt": 1},
    {"b": 8, "t": 256, "opt": "sgd"},
)
_VARIANTS: Mapping[str, tuple[Fields, ...]] = {
    "tokens": _TOKEN_VARIANTS,
    "seq2seq": _TOKEN_VARIANTS,
    "image": tuple({**variant, "b": 4 * variant["b"], "t": 0} for variant in _TOKEN_VARIANTS),
    "audio": tuple({**variant, "b": variant["b"], "t": 64} for variant in _TOKEN_VARIANTS),
    "pairs": tuple({**variant, "b": 2 * variant["b"], "t": 64} for variant in _TOKEN_VARIANTS),
}
_PICTURE_VARIANTS: tuple[Fields, ...] = (
    {"b": 16, "opt": "sgd"},
    {"b": 64, "opt": "adamw", "amp": 1},
    {"b": 64, "opt": "sgd"},
    {"b": 128, "opt": "adamw"},
)
_SMALLER_PICTURE_VARIANTS: Mapping[str, tuple[Fields, ...]] = {
    "deeplabv3_resnet50": tuple({**variant, "b": variant["b"] // 4} for variant in _PICTURE_VARIANTS),
    "vgg16": ({"b": 32, "opt": "sgd"}, {"b": 32, "opt": "adamw", "amp": 1}),
}
HABITS: tuple[Fields, ...] = (
    *(
        {"opt": name}
        for name in ("adam", "adagrad", "rmsprop", "sgd_plain", "adamw_fused", "adamw_loop", "adamw_amsgrad")
    ),
    *({"opt": name} for name in ("adamax", "nadam", "radam", "adadelta", "adafactor")),
    {"opt": "adamw", "accumulation": 4},
    {"opt": "adamw", "scaler": 1},
    {"opt": "adamw", "dtype": "bfloat16"},
    {"opt": "adamw", "clip": 1},
    {"opt": "adamw", "zero_grad": "before_forward"},
    {"opt": "adamw", "keep_output": 1},
    {"opt": "adamw", "attention": "eager"},
    {"opt": "adamw", "amp": 1, "scaler": 0, "clip": 1, "accumulation": 2},
)
"""Other optimizers and other ways to write the loop, each tried with GPT-2 (768, 12 layers) and ResNet-50."""


AMP: Fields = {"amp": 1}
SCALED: Fields = {"amp": 1, "scaler": 1}
DENOISERS: tuple[tuple[int, int, Fields, tuple[Any, ...]], ...] = (
    (24, 64, SCALED, (128, (1, 2, 2), 2, (2,), 4, False)),
    (7, 64, SCALED, (128, (1, 2, 2), 2, (2,), 4, False)),
    (60, 64, SCALED, (128, (1, 2, 2), 2, (2,), 4, False)),
    (24, 64, AMP, (128, (1, 2, 2), 2, (2,), 4, False)),
    (24, 64, {}, (128, (1, 2, 2), 2, (2,), 4, False)),
    (24, 64, {**SCALED, "channels_last": 1}, (128, (1, 2, 2), 2, (2,), 4, False)),
    (24, 64, SCALED, (128, (1, 2, 2), 2, (1, 2), 4, True)),
    (24, 128, SCALED, (64, (1, 2, 4), 2, (2,), 8, True)),
    (24, 128, SCALED, (64, (1, 2, 4), 2, (2,), 1, False)),
    (24, 64, SCALED, (64, (1, 2, 4, 8), 2, (2, 3), 8, False)),
    (12, 96, SCALED, (96, (1, 2, 3), 1, (2,), 6, False)),
    (128, 32, {**SCALED, "clip": 1}, (128, (1, 2, 2, 2), 2, (1,), 4, False)),
    (8, 64, SCALED, (320, (1, 2, 4), 2, (1, 2), 8, False)),
    (6, 256, SCALED, (64, (1, 1, 2, 4), 1, (3,), 4, False)),
    (32, 64, AMP, (192, (1, 2, 3), 2, (2,), 6, False)),
    (24, 128, SCALED, (64, (1, 2, 4), 1, (), 8, True)),
    (24, 64, SCALED, (64, (1, 2), 2, (), 8, True)),
    (24, 64, SCALED, (128, (1, 2, 2), 1, (1,), 8, True)),
    (60, 64, SCALED, (64, (1, 2), 2, (), 8, True)),
    (24, 64, AMP, (96, (1, 2), 2, (1,), 4, True)),
)
"""Batch, side of the pictures, habits, and the arguments of a ``DenoisingUNet`` in their order."""


def recorded_family(line: Fields) -> Family:
    """The configuration behind a line of ../shared/recordings/peaks.jsonl: these give its `params` and its peaks."""
    width, layers, heads = line["d"], line["l"], line["h"]
    if line["fam"] == "gpt2":
        sizes = {"vocab_size": VOCABULARY, "n_positions": 1024, "n_embd": width, "n_layer": layers, "n_head": heads}
        return Family("GPT2Config", "GPT2LMHeadModel", "tokens", sizes)
    if line["fam"] == "bert":
        return _decoder("Bert", "ForMaskedLM", width, layers, heads, intermediate_size=4 * width)
    # Two thirds of 4 d, rounded up to 256: with a quarter of the heads for keys and values, 2816 at d = 1024.
    inner = -(-8 * width // 3 // 256) * 256
    return _decoder(
        "Llama", "ForCausalLM", width, layers, heads, num_key_value_heads=heads // 4, intermediate_size=inner
    )


def _with_family(line: Fields, family: Family) -> dict[str, Any]:
    build = {"config": family.config, "model": family.model, "inputs": family.inputs, "family_config": family.sizes}
    return {"amp": 0, "ckpt": 0, **line, **build}


def _picture_line(name: str, variant: Fields) -> dict[str, Any]:
    build = {"inputs": "picture", "side": SIDES.get(name, 224), "family_config": TORCHVISION.get(name, {})}
    return {"fam": "tv", "name": name, "amp": 0, **variant, **build}


def of_recorded(line: Fields) -> dict[str, Any]:
    """A line of ../shared/recordings/peaks.jsonl with what it takes to build its job."""
    job = {key: line[key] for key in ("i", "fam", "name", "d", "l", "h", "b", "t", "opt", "amp", "ckpt") if key in line}
    if line["fam"] == "tv":
        return {**_picture_line(line["name"], {}), **job}
    return _with_family(job, recorded_family(line))


def more_jobs() -> list[dict[str, Any]]:
    """Jobs of other families: every family's first variant, then every family's second, and so on; then U-Nets."""
    ranked: list[tuple[int, dict[str, Any]]] = []
    for name, family in FAMILIES.items():
        for rank, variant in enumerate(_VARIANTS[family.inputs]):
            ranked.append((rank, _with_family({"fam": name, **variant}, family)))
    for name in TORCHVISION:
        for rank, variant in enumerate(_SMALLER_PICTURE_VARIANTS.get(name, _PICTURE_VARIANTS)):
            ranked.append((rank, _picture_line(name, variant)))
    ranked += [(1, job) for job in _habits()]
    jobs = [job for _, job in sorted(ranked, key=lambda entry: entry[0])]
    jobs += [denoiser(batch, side, habits, sizes) for batch, side, habits, sizes in DENOISERS]
    return [{"i": 1000 + number, **job} for number, job in enumerate(jobs)]


def denoiser(batch: int, side: int, habits: Fields, sizes: tuple[Any, ...]) -> dict[str, Any]:
    """A line of DENOISERS as a job."""
    arguments = ("width", "multiples", "blocks", "attention", "heads", "by_hand")
    build = {"inputs": "own", "family_config": dict(zip(arguments, sizes, strict=True))}
    return {
        "fam": "own",
        "name": "denoising_unet",
        "amp": 0,
        "b": batch,
        "side": side,
        "opt": "adamw",
        **habits,
        **build,
    }


def _habits() -> Iterator[dict[str, Any]]:
    gpt2 = {"fam": "gpt2", "d": 768, "l": 12, "h": 12, "b": 4, "t": 256}
    for habit in HABITS:
        yield _with_family({**gpt2, **habit}, recorded_family(gpt2))
        if "attention" not in habit:
            yield _picture_line("resnet50", {"b": 16, **habit})
    yield _picture_line("resnet50", {"b": 64, "opt": "sgd", "channels_last": 1})
    yield _picture_line("resnet50", {"b": 64, "opt": "sgd", "amp": 1, "channels_last": 1})
