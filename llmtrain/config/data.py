"""Section `data`: what is read, and how it becomes tokens."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import field_validator

from llmtrain.config.section import Rule, Section, setting

_STREAM = "streaming datasets are not available in this version"
_MIX = "weighing and telling apart several datasets is not available in this version"
_PACK = "packing of conversations is not available in this version"
_TEMPLATE = "named templates are not available in this version; the tokenizer's own chat template is used"

Source = str | list[str] | dict[str, Any]


class DataConfig(Section):
    """What is read, and how it becomes tokens."""

    dataset: Source | None = setting(
        None,
        "file, folder or glob (.jsonl, .json, .txt, .parquet), a list of them, or a mapping "
        "{file_name: ..., columns: {text: NAME, messages: NAME}}",
        required="give a file, a folder or a list of them",
    )
    eval_dataset: Source | None = setting(None, "held-out data, in the same forms; excludes `val_size`")
    val_size: float = setting(0.0, "rows to hold out: a count (1 or more) or a share of the rows", ge=0)
    max_samples: int | None = setting(None, "read only the first so many rows", ge=1)
    cutoff_len: int = setting(2048, "most tokens of a sample; in stage pt the length of every block", ge=1)
    append_eod: bool = setting(
        True,
        "end each document with the end-of-sequence token (stage pt)",
        differs="false; a model that never sees a document end does not learn to stop",
    )
    train_on_prompt: bool = setting(
        False, "learn the prompts' tokens too", moot_in_pt="pretraining learns every token anyway"
    )
    mask_history: bool = setting(
        False, "learn only the last answer of a conversation", moot_in_pt="pretraining learns every token"
    )
    enable_thinking: bool | None = setting(True, "passed on to chat templates that know it; null: not passed")
    overwrite_cache: bool = setting(False, "tokenise anew, even where a cache fits")
    preprocessing_batch_size: int = setting(1000, "rows tokenised at a time", ge=1)
    preprocessing_num_workers: int | None = setting(None, "processes that tokenise", ge=1)
    data_shared_file_system: bool = setting(False, "all nodes see one file system: one rank tokenises for all of them")

    template: str | None = setting(
        None, "named chat template", later=_TEMPLATE, moot_in_pt="pretraining uses no chat template"
    )
    tool_format: str | None = setting(None, "how tools are written", later=_TEMPLATE)
    default_system: str | None = setting(None, "system prompt of conversations that have none", later=_TEMPLATE)
    packing: bool = setting(
        False, "several conversations in one row", later=_PACK, moot_in_pt="pretraining always fills its blocks"
    )
    neat_packing: bool = setting(False, "pack without attention between conversations", later=_PACK)
    reset_attention_mask: bool = setting(
        False,
        "no attention between the documents of a block",
        later="isolating the documents of a block is not available in this version",
    )
    create_attention_mask_in_dataloader: bool = setting(
        False, "dense masks from the loader", later="attention masks are never made dense by the loader"
    )
    dataset_dir: str = setting(
        "./configs/fsdp2/data",
        "folder of dataset_info.json",
        later="names from a dataset_info.json are not available in this version; give paths in data.dataset",
    )
    streaming: bool = setting(False, "read rows without an index", later=_STREAM)
    buffer_size: int = setting(16384, "shuffle buffer of a stream", moot=f"it is read when streaming only; {_STREAM}")
    mix_strategy: Literal["concat", "interleave_under", "interleave_over"] = setting(
        "concat", "how datasets are joined", later=_MIX
    )
    interleave_probs: str | None = setting(None, "weights of the datasets", later=_MIX)
    eval_on_each_dataset: bool = setting(False, "evaluate each dataset by itself", later=_MIX)
    eval_num_beams: int | None = setting(
        None, "beams of generating evaluation", later="evaluation by generation is not available in this version"
    )
    ignore_pad_token_for_loss: bool = setting(True, "padding is not learnt", later="padding is never learnt")
    tokenized_path: str | None = setting(
        None,
        "folder of tokenised data",
        later="a folder for tokenised data is not available in this version; it is cached beside its source's name",
    )
    split: str = setting(
        "100,0,0", "shares for training, validation, test", later="use data.val_size or data.eval_dataset"
    )
    data_manager_type: Literal["lf", "mg"] = setting(
        "lf", "data library", moot="one library reads every kind of file, for every stage"
    )
    no_shared_storage: bool = setting(
        False, "nodes do not share storage", moot="data.data_shared_file_system says it, and is false by default"
    )
    dataloader_type: Literal["single"] = setting("single", "sampling order", moot="there is one kind")

    @field_validator("dataset", "eval_dataset")
    @classmethod
    def _known_form(cls, value: Source | None) -> Source | None:
        if isinstance(value, dict):
            _refuse_unknown(value, ["file_name", "columns"], "")
            if not _is_path(value.get("file_name")):
                raise ValueError("file_name must be a path or a list of paths")
            columns = value.get("columns") or {}
            if not isinstance(columns, dict) or not all(isinstance(name, str) for name in columns.values()):
                raise ValueError("columns must be a mapping {text: NAME, messages: NAME}")
            _refuse_unknown(columns, ["text", "messages"], "columns.")
        elif value is not None and not _is_path(value):
            raise ValueError("it names no file")
        return value

    @field_validator("val_size")
    @classmethod
    def _count_or_share(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError("a whole number of rows, or a share below 1")
        return value

    def rules(self) -> Iterator[Rule]:
        if self.train_on_prompt and self.mask_history:
            yield Rule(("mask_history", "train_on_prompt"), "and data.train_on_prompt exclude each other; choose one")
        if self.val_size and self.eval_dataset is not None:
            yield Rule(("val_size", "eval_dataset"), "and data.eval_dataset exclude each other; give one")


def _is_path(value: Any) -> bool:
    paths = value if isinstance(value, list) else [value]
    return bool(paths) and all(isinstance(path, str) and path for path in paths)


def _refuse_unknown(given: dict[str, Any], known: list[str], prefix: str) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known are {', '.join(known)}"
            raise ValueError(f"{prefix}{key} is unknown; {hint}")
