"""The skeleton of a model: stock transformers code, parameters on meta, buffers real."""

from __future__ import annotations

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from llmtrain.errors import UserError
from llmtrain.models.attention import CAUSAL_SDPA, choose_attention, why_not_packed


def build_skeleton(
    hf_config: PreTrainedConfig,
    dtype: torch.dtype,
    *,
    attn_implementation: str | None = None,
    packed: bool = False,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Builds the causal language model of `hf_config` without memory for its parameters.

    Buffers are computed by the constructors on the CPU as in any ordinary build: a rotary table that lived on meta
    would have to be made again by code that guesses how. Tied parameters are one object from here on, which is what
    FSDP2 looks at.

    Args:
        packed: rows hold documents that must not see each other.

    Raises:
        UserError: transformers has no causal language model for this config, the attention asked for is missing, or
            this model cannot keep documents apart.
    """
    attention = choose_attention(hf_config, attn_implementation, packed=packed)
    try:
        model = _build(hf_config, dtype, attention, trust_remote_code)
        if attention == CAUSAL_SDPA and not (model._supports_attention_backend and model._supports_sdpa):
            # A class that does not look into the registry would take the name for something else.
            model = _build(hf_config, dtype, attn_implementation, trust_remote_code)
    except (ImportError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The model of type {hf_config.model_type} cannot be built: {reason}") from error
    if packed:
        why = why_not_packed(model)
        if why:
            raise UserError(
                f"The documents of a row cannot be kept apart in a model of type {hf_config.model_type}: {why}. Turn "
                f"off data.neat_packing, data.reset_attention_mask and data.padding_free."
            )
    model.tie_weights()
    return model


def _build(
    hf_config: PreTrainedConfig, dtype: torch.dtype, attention: str | None, trust_remote_code: bool
) -> PreTrainedModel:
    options = {"attn_implementation": attention} if attention else {}
    with init_empty_weights(include_buffers=False):
        return AutoModelForCausalLM.from_config(hf_config, dtype=dtype, trust_remote_code=trust_remote_code, **options)


def layer_names(model: PreTrainedModel) -> list[str]:
    """Names of the repeated blocks, as the model class itself declares them (`_no_split_modules`)."""
    classes = set(model._no_split_modules or ())
    return [name for name, module in model.named_modules() if type(module).__name__ in classes]


def owner_and_leaf(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds the parameter or buffer `name`, and its attribute there."""
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def set_parameter(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Replaces a parameter by `value`; FSDP2 takes up the new object at its first forward."""
    module, leaf = owner_and_leaf(model, name)
    setattr(module, leaf, nn.Parameter(value, requires_grad=getattr(module, leaf).requires_grad))
