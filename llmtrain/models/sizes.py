"""What a model costs in numbers: parameters and floating-point operations per token, read off the built module."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class ModelSize:
    """Counts for one model.

    total: all parameters, tied ones once. embedding: those of the input table. matmul: weights that every token is
    multiplied with (an output head counts, tied or not; an input table does not). attention: query width summed over
    the attention layers, the factor of the sequence length in the attention's cost.
    """

    total: int
    embedding: int
    matmul: int
    attention: int

    def flops(self, tokens: int, squared_lengths: int) -> float:
        """Model FLOPs of forward and backward for `tokens` tokens in sequences whose squared lengths sum up as given.

        Two operations per weight forward, four backward. Causal attention multiplies each query with half of the keys,
        twice (scores and values). Recomputation is not counted: MFU is about the model's work.
        """
        return 6.0 * self.matmul * tokens + 6.0 * self.attention * squared_lengths


def measure(model: PreTrainedModel) -> ModelSize:
    """Measures an unsharded skeleton."""
    table = model.get_input_embeddings()
    matmul = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear | Conv1D))
    return ModelSize(
        total=sum(p.numel() for p in model.parameters()),
        embedding=sum(p.numel() for p in table.parameters()) if table is not None else 0,
        matmul=matmul,
        attention=_attention_width(model.config.get_text_config()),
    )


def _attention_width(config: PreTrainedConfig) -> int:
    heads = getattr(config, "num_attention_heads", 0) or 0
    hidden = getattr(config, "hidden_size", 0) or 0
    head_dim = getattr(config, "head_dim", None) or (hidden // heads if heads else 0)
    layers = getattr(config, "num_hidden_layers", 0) or 0
    kinds = getattr(config, "layer_types", None)
    attending = sum("attention" in k and "linear" not in k for k in kinds) if kinds else layers
    return attending * heads * head_dim
