"""Documents of one row do not see each other: against stock transformers run on each document by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from llmtrain.errors import UserError
from llmtrain.models.attention import choose_attention, packed_inputs
from llmtrain.models.build import build_skeleton

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "intermediate_size": 48, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
# Windows and chunks of 4: shorter than some documents, longer than others.
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {},
    "glm4": {},
    "phi3": {},
    "opt": {},  # hands no positions to the making of its mask
    "mistral": {"sliding_window": 4},
    "gemma2": {"sliding_window": 4, "query_pre_attn_scalar": 8},  # capped scores
    "gemma3_text": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {"sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},  # sinks, no positions either
    "llama4_text": {"attention_chunk_size": 4, "num_local_experts": 2, "intermediate_size_mlp": 48},
    "qwen3_moe": {"num_experts": 4, **EXPERTS},
    "deepseek_v3": {  # values narrower than keys
        "n_routed_experts": 4, "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
        "v_head_dim": 6, "head_dim": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "num_key_value_heads": 4, **EXPERTS,
    },
}  # fmt: skip
# A single token, equal lengths, lengths that are padded to each other, one alone.
DOCUMENTS = (7, 5, 9, 1, 3, 7, 8)


def config_of(model_type: str) -> PreTrainedConfig:
    config = CONFIG_MAPPING[model_type](**{**SIZES, **MODELS.get(model_type, {})})
    config._experts_implementation = "eager"
    return config


def packed(model_type: str, asked: str | None) -> PreTrainedModel:
    config = config_of(model_type)
    torch.manual_seed(0)
    name = choose_attention(config, asked, packed=True)
    return AutoModelForCausalLM.from_config(config, attn_implementation=name).eval()


def stock(model_type: str, weights: dict[str, torch.Tensor]) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_config(config_of(model_type), attn_implementation="eager").eval()
    model.load_state_dict(weights)
    return model


def row_inputs(model: PreTrainedModel) -> dict[str, Any]:
    positions = torch.cat([torch.arange(n) for n in DOCUMENTS])[None]
    inputs = packed_inputs(model.config._attn_implementation, DOCUMENTS, torch.device("cpu"))
    return {"position_ids": positions, "use_cache": False, **inputs}


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(3, 64, (1, sum(DOCUMENTS)), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("asked", [None, "eager"])
@pytest.mark.parametrize("model_type", MODELS)
def test_losses_and_gradients_are_those_of_each_document_alone(
    model_type: str, asked: str | None, ids: torch.Tensor
) -> None:
    model = packed(model_type, asked)
    alone = stock(model_type, model.state_dict())
    logits = model(input_ids=ids, **row_inputs(model)).logits
    expected = torch.cat([alone(input_ids=part, use_cache=False).logits for part in ids.split(DOCUMENTS, 1)], dim=1)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    targets = ids.roll(-1, 1)
    for output in (logits, expected):
        torch.nn.functional.cross_entropy(output[0], targets[0]).backward()
    reference = dict(alone.named_parameters())
    for name, parameter in model.named_parameters():
        if reference[name].grad is not None:
            torch.testing.assert_close(parameter.grad, reference[name].grad, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("asked", [None, "eager"])
@pytest.mark.parametrize("model_type", MODELS)
def test_no_gradient_reaches_another_document(model_type: str, asked: str | None, ids: torch.Tensor) -> None:
    model = packed(model_type, asked)
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    outputs = model(inputs_embeds=embeddings, **row_inputs(model)).logits.split(DOCUMENTS, 1)
    for number, output in enumerate(outputs):
        (gradient,) = torch.autograd.grad(output.square().sum(), embeddings, retain_graph=True)
        reached = [bool(part.any()) for part in gradient.split(DOCUMENTS, 1)]
        assert reached == [other == number for other in range(len(DOCUMENTS))]


@pytest.mark.parametrize("model_type", ["qwen3", "mistral", "llama4_text"])
def test_flex_attention_keeps_documents_apart(model_type: str, ids: torch.Tensor) -> None:
    """Forward only: torch has no backward of it on CPU."""
    model = packed(model_type, "flex_attention")
    alone = stock(model_type, model.state_dict())
    with torch.no_grad():
        logits = model(input_ids=ids, **row_inputs(model)).logits
        expected = torch.cat([alone(input_ids=p, use_cache=False).logits for p in ids.split(DOCUMENTS, 1)], dim=1)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_without_the_lengths_attention_is_refused(ids: torch.Tensor) -> None:
    model = packed("qwen3", None)
    with pytest.raises(UserError, match="kept apart"):
        model(input_ids=ids, use_cache=False)


@pytest.mark.parametrize(
    ("model_type", "settings", "reason"),
    [
        ("mamba", {}, "carry something along the row"),
        ("qwen3_next", {"num_experts": 4, **EXPERTS}, "linear_attention"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "conv"),
        ("bloom", {}, "attention functions"),
    ],
)
def test_models_whose_documents_would_meet_are_refused(model_type: str, settings: dict[str, Any], reason: str) -> None:
    sizes = {key: value for key, value in SIZES.items() if model_type != "bloom" or "head" not in key}
    config = CONFIG_MAPPING[model_type](**{**sizes, **settings})
    with pytest.raises(UserError, match=reason):
        build_skeleton(config, torch.float32, attn_implementation="eager", packed=True)


def test_the_lengths_that_flash_attention_takes() -> None:
    inputs = packed_inputs("flash_attention_2", (3, 1, 4), torch.device("cpu"))
    assert inputs["cu_seq_lens_q"].tolist() == inputs["cu_seq_lens_k"].tolist() == [0, 3, 4, 8]
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert inputs["max_length_q"] == inputs["max_length_k"] == 4
