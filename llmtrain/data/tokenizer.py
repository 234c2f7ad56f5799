"""The tokenizer of a run."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from llmtrain.config import Config, ModelConfig
from llmtrain.data.chat_templates import check_template, read_template
from llmtrain.errors import UserError


def load_tokenizer(config: Config) -> PreTrainedTokenizerBase:
    """Loads it, adds the config's tokens and, for fine-tuning, sets the chat template that the config names.

    A tokenizer without a padding token is used all the same, since padding is told by position: its end token fills up.

    Raises:
        UserError: no tokenizer there, one without an end-of-sequence token, or one that the template does not fit.
    """
    model = config.model
    named = "model.tokenizer_name_or_path" if model.tokenizer_name_or_path else "model.model_name_or_path"
    tokenizer = read_tokenizer(model, named)
    if config.training.stage == "sft" and config.data.template is not None:
        tokenizer.chat_template = read_template(config.data.template, config.data.tool_format)
        check_template(tokenizer, config.data.template)
    return tokenizer


def read_tokenizer(model: ModelConfig, field: str) -> PreTrainedTokenizerBase:
    """Loads it and adds the config's tokens; `field` is what names it in messages.

    Raises:
        UserError: no tokenizer there, or one without an end-of-sequence token.
    """
    folder = model.tokenizer_name_or_path or model.model_name_or_path
    options: dict[str, Any] = {
        "use_fast": model.use_fast_tokenizer,
        "revision": model.model_revision,
        "trust_remote_code": model.trust_remote_code,
        "split_special_tokens": model.split_special_tokens,
    }
    options |= {k: v for k, v in {"cache_dir": model.cache_dir, "token": model.hf_hub_token}.items() if v is not None}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"{field}: no tokenizer could be read from {folder!r} ({first}).") from error
    if model.add_tokens:
        tokenizer.add_tokens(model.add_tokens)
    if model.add_special_tokens:
        # The default is to replace: the tokenizer's own (a template's end-of-turn token) would be special no more.
        tokenizer.add_special_tokens(
            {"extra_special_tokens": model.add_special_tokens}, replace_extra_special_tokens=False
        )
    if tokenizer.eos_token_id is None:
        padding = "" if tokenizer.pad_token_id is not None else " nor a padding token"
        raise UserError(
            f"{field}: the tokenizer in {folder!r} has no end-of-sequence token{padding}, so the end of a text could "
            f"not be learnt. Set eos_token in its tokenizer_config.json, or use another tokenizer."
        )
    return tokenizer


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills up short rows."""
    chosen = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    assert isinstance(chosen, int)
    return chosen
