"""Section `model`: which model, from where, with which changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from llmtrain.config.section import Rule, Section, setting

_QUANT = "quantised training is not available in this version"
_HUB = "only the Hugging Face hub and local folders are read"


class ModelConfig(Section):
    """Which model, from where, with which changes."""

    model_name_or_path: str | None = setting(
        None,
        "Hugging Face folder (or hub id) with config.json and safetensors weights",
        differs="may be left out: `model_type` builds a model without any folder",
    )
    model_type: str | None = setting(None, "transformers model type to build from scratch, without any folder")
    config_overrides: dict[str, Any] = setting(
        {}, "fields of the Hugging Face config to change; mappings are merged key by key"
    )
    attn_implementation: str | None = setting(
        None, "attention of transformers' registry (sdpa, eager, flash_attention_2, flex_attention); null: its default"
    )
    model_id: (
        Literal[
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
        | None
    ) = setting(None, "the reference trainer's name of an architecture; checked against the folder's model type")
    init_model_with_meta_device: bool = setting(
        False, "build on the meta device", moot="every model is built on the meta device and filled shard by shard"
    )
    trust_remote_code: bool = setting(False, "run Python code that lies in the model folder")
    train_from_scratch: bool = setting(False, "random weights for the config in `model_name_or_path`")
    tokenizer_name_or_path: str | None = setting(None, "tokenizer folder; null: `model_name_or_path`")
    cache_dir: str | None = setting(None, "where downloads from the hub are kept")
    use_fast_tokenizer: bool = setting(True, "use the Rust tokenizer")
    resize_vocab: bool = setting(
        False, "grow the embedding to the tokenizer", later="resizing embeddings is not available in this version"
    )
    split_special_tokens: bool = setting(False, "read special tokens in texts as plain text")
    add_tokens: list[str] | None = setting(None, "tokens to add to the tokenizer")
    add_special_tokens: list[str] | None = setting(None, "special tokens to add to the tokenizer")
    new_special_tokens_config: str | None = setting(
        None, "descriptions of new tokens", later="new embeddings by description are not available in this version"
    )
    init_special_tokens: Literal["noise_init", "desc_init", "desc_init_w_noise"] = setting(
        "noise_init",
        "how rows of new tokens start",
        later="new embeddings by description are not available in this version",
    )
    model_revision: str = setting("main", "branch, tag or commit on the hub")
    hf_hub_token: str | None = setting(None, "access token of the Hugging Face hub")
    ms_hub_token: str | None = setting(None, "access token of the ModelScope hub", later=_HUB)
    om_hub_token: str | None = setting(None, "access token of the Openmind hub", later=_HUB)
    quant_recipe_name: Literal["mxfp8"] | None = setting(None, "quantisation recipe", later=_QUANT)
    quant_apply_modules: list[str] = setting(["model.layers.{*}"], "modules to quantise", moot=_QUANT)
    quant_ignored_modules: list[str] = setting(["*lm_head", "*gate"], "modules to leave out", moot=_QUANT)
    quant_converters: list[str] = setting(["quantize.linear.mx"], "what is converted", moot=_QUANT)
    enable_fsdp_low_precision_all_gather: bool = setting(True, "gather quantised weights", moot=_QUANT)
    fsdp_low_precision_all_gather_mode: Literal["on-demand", "all"] = setting(
        "on-demand", "when to quantise for the gather", moot=_QUANT
    )

    def rules(self) -> Iterator[Rule]:
        if self.model_type is None and self.model_name_or_path is None:
            yield Rule(
                ("model_name_or_path",),
                "is missing: give a Hugging Face folder, or set model.model_type to build from scratch",
            )
        if self.model_type is not None and self.model_name_or_path is not None:
            yield Rule(
                ("model_type", "model_name_or_path"),
                "give model_type or model_name_or_path, not both; for random weights of a folder's config use train_from_scratch",
            )
        if self.model_type is not None and self.tokenizer_name_or_path is None:
            yield Rule(
                ("tokenizer_name_or_path",), "is missing: a model built from model_type has no folder with a tokenizer"
            )
