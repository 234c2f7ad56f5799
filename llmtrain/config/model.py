"""Section `model`: which model, from where, with which changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from llmtrain.config.section import Rule, Section, setting

_NEW_ROWS = "new embedding rows are not available in this version"
_HUB = "only the Hugging Face hub and local folders are read"
_QUANT = "quantised training is not available in this version"
_QUANT_ONLY = "it is read in quantised training only, which is not available in this version"

ModelId = Literal[
    "gpt_oss",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "step35",
    "mamba3",
    "minimax_m27",
    "longcat_flash_ngram",
    "glm52",
    "deepseek_v4",
]


class ModelConfig(Section):
    """Which model, from where, with which changes."""

    model_name_or_path: str | None = setting(
        None,
        "Hugging Face folder (or hub id) with config.json and safetensors weights",
        differs="required; here `model_type` builds a model without any folder",
    )
    model_type: str | None = setting(
        None, "model type of transformers, to build from scratch without a folder; excludes `model_name_or_path`"
    )
    config_overrides: dict[str, Any] = setting(
        {}, "fields of the Hugging Face config to change; mappings are merged key by key"
    )
    attn_implementation: str | None = setting(
        None,
        "attention of transformers' registry (sdpa, eager, flash_attention_2, ...); null: the model's default",
    )
    model_id: ModelId | None = setting(None, "name of the architecture; checked against the model type of the folder")
    trust_remote_code: bool = setting(False, "run Python code that lies in the model folder")
    train_from_scratch: bool = setting(False, "random weights for the config in `model_name_or_path`")
    model_revision: str = setting("main", "branch, tag or commit on the hub")
    hf_hub_token: str | None = setting(
        None, "access token of the Hugging Face hub; never written to outputs", secret=True
    )
    cache_dir: str | None = setting(None, "folder that keeps downloads from the hub")

    tokenizer_name_or_path: str | None = setting(None, "tokenizer folder; null: `model_name_or_path`")
    use_fast_tokenizer: bool = setting(True, "use the tokenizer's Rust implementation")
    split_special_tokens: bool = setting(False, "read special tokens that stand in a text as plain text")
    add_tokens: list[str] | None = setting(None, "tokens to add to the tokenizer")
    add_special_tokens: list[str] | None = setting(None, "special tokens to add to the tokenizer")

    init_model_with_meta_device: bool = setting(
        False, "build on the meta device", moot="every model is built on the meta device and filled shard by shard"
    )
    resize_vocab: bool = setting(False, "grow the embedding to the tokenizer", later=_NEW_ROWS)
    new_special_tokens_config: str | None = setting(None, "descriptions of new tokens", later=_NEW_ROWS)
    init_special_tokens: Literal["noise_init", "desc_init", "desc_init_w_noise"] = setting(
        "noise_init", "how the rows of new tokens start", later=_NEW_ROWS
    )
    ms_hub_token: str | None = setting(None, "access token of the ModelScope hub", later=_HUB, secret=True)
    om_hub_token: str | None = setting(None, "access token of the Openmind hub", later=_HUB, secret=True)
    quant_recipe_name: Literal["mxfp8"] | None = setting(None, "quantisation recipe", later=_QUANT)
    quant_apply_modules: list[str] = setting(["model.layers.{*}"], "modules to quantise", moot=_QUANT_ONLY)
    quant_ignored_modules: list[str] = setting(["*lm_head", "*gate"], "modules left unquantised", moot=_QUANT_ONLY)
    quant_converters: list[str] = setting(["quantize.linear.mx"], "kinds of modules to quantise", moot=_QUANT_ONLY)
    enable_fsdp_low_precision_all_gather: bool = setting(True, "gather quantised weights", moot=_QUANT_ONLY)
    fsdp_low_precision_all_gather_mode: Literal["on-demand", "all"] = setting(
        "on-demand", "when weights are quantised for the gather", moot=_QUANT_ONLY
    )

    def rules(self) -> Iterator[Rule]:
        names = ("model_name_or_path", "model_type")
        if self.model_type is None and self.model_name_or_path is None:
            yield Rule(names, "is missing; give a Hugging Face folder, or model.model_type to build from scratch")
        if self.model_type is not None and self.model_name_or_path is not None:
            yield Rule(
                names,
                "and model.model_type exclude each other; for random weights of a folder's config set "
                "model.train_from_scratch",
            )
        if self.model_type is not None and self.tokenizer_name_or_path is None:
            yield Rule(
                ("tokenizer_name_or_path", "model_type"),
                "is missing; with model.model_type there is no model folder to take a tokenizer from",
            )
