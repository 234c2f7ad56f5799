"""The Hugging Face config of the model: from a folder or a model type, with the user's overrides."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from llmtrain.config import ModelConfig
from llmtrain.errors import UserError

# The reference trainer's `model_id` names, as transformers' model types.
MODEL_TYPE_OF_ID = {
    "gpt_oss": "gpt_oss",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "qwen3_next": "qwen3_next",
    "step35": "step3p5",
    "mamba3": "mamba3",
    "minimax_m27": "minimax_m2",
    "longcat_flash_ngram": "longcat_flash_ngram",
    "glm52": "glm_moe_dsa",
    "deepseek_v4": "deepseek_v4",
}


def read_hf_config(settings: ModelConfig) -> PreTrainedConfig:
    """Reads and overrides the config.

    Overrides are applied before the config class derives its own values (a head size from the hidden size), and
    mappings are merged: a `rope_scaling` or `rope_parameters` override keeps the base's theta.

    Raises:
        UserError: no such folder, unknown model type or override, or a folder of another type than `model_id`.
    """
    if settings.model_type is not None:
        config = _from_model_type(settings.model_type, settings.config_overrides)
    else:
        config = _from_folder(settings)
    if settings.model_id is not None:
        expected = MODEL_TYPE_OF_ID[settings.model_id]
        if config.model_type != expected:
            raise UserError(
                f"model.model_id is {settings.model_id}, which is transformers' {expected}, but the config in "
                f"{settings.model_name_or_path} says {config.model_type}. Correct one of them, or leave model_id out: "
                f"it is found from the folder."
            )
    return config


def _from_model_type(model_type: str, overrides: dict[str, Any]) -> PreTrainedConfig:
    try:
        known = AutoConfig.for_model(model_type)
    except ValueError as error:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

        raise UserError(
            f"model.model_type is {model_type!r}, which transformers does not know"
            f"{_nearest(model_type, CONFIG_MAPPING_NAMES)}."
        ) from error
    _refuse_unknown(overrides, known)
    return AutoConfig.for_model(model_type, **overrides)


def _from_folder(settings: ModelConfig) -> PreTrainedConfig:
    folder = str(settings.model_name_or_path)
    loading: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code}
    for name, value in (("cache_dir", settings.cache_dir), ("token", settings.hf_hub_token)):
        if value is not None:
            loading[name] = value
    if Path(folder).is_dir() and not (Path(folder) / "config.json").is_file():
        raise UserError(
            f"model.model_name_or_path: {folder} holds no config.json, so it is no Hugging Face model folder."
        )
    try:
        config = AutoConfig.from_pretrained(folder, **loading)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"model.model_name_or_path: no Hugging Face config could be read from {folder!r} ({first}). "
            f"Give a folder with config.json, or set model.model_type to build one from scratch."
        ) from error
    if not settings.config_overrides:
        return config
    _refuse_unknown(settings.config_overrides, config)
    loading.pop("trust_remote_code")
    written, _ = type(config).get_config_dict(folder, **loading)
    return type(config).from_dict(merge_overrides(written, settings.config_overrides))


def merge_overrides(written: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """`overrides` laid over a config as it was written, mappings merged key by key.

    Rotary settings have two spellings (`rope_theta` + `rope_scaling` in older files, `rope_parameters` since
    transformers 5); an override in one spelling meets a file in the other.
    """
    merged = dict(written)
    for key, value in overrides.items():
        if key in ("rope_scaling", "rope_theta") and isinstance(merged.get("rope_parameters"), dict):
            value = {"rope_theta": value} if key == "rope_theta" else value
            key = "rope_parameters"
        if key == "rope_parameters" and key not in merged:
            older = dict(merged.get("rope_scaling") or {})
            if "rope_theta" in merged:
                older["rope_theta"] = merged["rope_theta"]
            merged[key] = older
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = {**merged[key], **value}
        else:
            merged[key] = value
    # A list with an entry a layer, which files of newer versions hold, follows the number of layers.
    layers, kinds = merged.get("num_hidden_layers"), merged.get("layer_types")
    if isinstance(kinds, list) and isinstance(layers, int) and "layer_types" not in overrides and layers != len(kinds):
        merged["layer_types"] = kinds[:layers] if layers < len(kinds) else None
    return merged


def _refuse_unknown(overrides: dict[str, Any], config: PreTrainedConfig) -> None:
    """transformers keeps any keyword as an attribute that nothing reads; a typo must not end there."""
    known = set(config.to_dict()) | {"rope_scaling", "rope_theta", "rope_parameters"}
    for key in overrides:
        if key not in known and not hasattr(config, key):
            raise UserError(
                f"model.config_overrides.{key}: {type(config).__name__} has no such field{_nearest(key, known)}."
            )


def _nearest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
