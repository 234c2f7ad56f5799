"""Section `data`: what is read, and how it becomes tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import field_validator

from llmtrain.config.section import Rule, Section, setting

_STREAM = "streaming datasets are not available in this version"
_MIX = "mixing several datasets is not available in this version"
_PACK = "packing of conversations is not available in this version"
_MEGATRON = "Megatron .bin/.idx data is not available in this version"


class DataConfig(Section):
    """What is read, and how it becomes tokens."""

    dataset: str | list[str] | dict[str, Any] | None = setting(
        None,
        "file, folder, glob or list of such (.jsonl, .json, .txt, .parquet), or {file_name: ..., columns: {text: ..., messages: ...}}",
    )
    eval_dataset: str | list[str] | dict[str, Any] | None = setting(
        None, "held-out data, in the same forms; or use `val_size`"
    )
    template: str | None = setting(None, "named chat template; null: the tokenizer's own")
    cutoff_len: int = setting(2048, "most tokens of a sample; in stage pt the length of every block", ge=1)
    train_on_prompt: bool = setting(False, "learn the prompt's tokens too")
    mask_history: bool = setting(False, "learn the last answer only")
    append_eod: bool = setting(
        True,
        "end each document with the end-of-sequence token (stage pt)",
        differs="off there; a model that never sees a document end never learns to stop",
    )
    val_size: float = setting(0.0, "held-out rows: a count (>= 1) or a share of the rows", ge=0)
    max_samples: int | None = setting(None, "read the first so many rows only", ge=1)
    overwrite_cache: bool = setting(False, "tokenise again, even where a fitting cache is there")
    preprocessing_batch_size: int = setting(1000, "rows tokenised at a time", ge=1)
    preprocessing_num_workers: int | None = setting(None, "processes that tokenise", ge=1)
    enable_thinking: bool | None = setting(True, "passed on to chat templates that know it; null: not passed")
    data_shared_file_system: bool = setting(False, "all nodes see one file system: one rank tokenises for all of them")
    data_manager_type: Literal["lf", "mg"] = setting(
        "lf", "data library", moot="sources are told by their files, for every stage"
    )
    no_shared_storage: bool = setting(
        False, "nodes do not share storage", moot="this is data_shared_file_system: false, the default"
    )
    dataloader_type: Literal["single"] = setting("single", "sampling order", moot="there is one kind")
    dataset_dir: str = setting(
        "./configs/fsdp2/data",
        "folder of dataset_info.json",
        later="dataset names from dataset_info.json are not available in this version; give paths in data.dataset",
    )
    streaming: bool = setting(False, "read without an index", later=_STREAM)
    buffer_size: int = setting(16384, "shuffle buffer of a stream", moot=_STREAM)
    mix_strategy: Literal["concat", "interleave_under", "interleave_over"] = setting(
        "concat", "how sources are joined", later=_MIX
    )
    interleave_probs: str | None = setting(None, "weights of the sources", later=_MIX)
    eval_num_beams: int | None = setting(
        None, "beams of generating evaluation", later="evaluation by generation is not available in this version"
    )
    ignore_pad_token_for_loss: bool = setting(True, "padding does not count", later="padding is never supervised")
    eval_on_each_dataset: bool = setting(False, "evaluate sources apart", later=_MIX)
    packing: bool = setting(False, "several conversations in one row", later=_PACK)
    neat_packing: bool = setting(False, "pack without attention between conversations", later=_PACK)
    tool_format: str | None = setting(
        None, "how tools are written", later="named templates are not available in this version"
    )
    default_system: str | None = setting(
        None, "system prompt where a sample has none", later="named templates are not available in this version"
    )
    tokenized_path: str | None = setting(
        None,
        "save or load the tokenised data",
        later="saving tokenised data to a path is not available in this version; it is cached anyway",
    )
    split: str = setting("100,0,0", "train, validation, test shares", later="use data.val_size or data.eval_dataset")
    create_attention_mask_in_dataloader: bool = setting(
        False, "dense masks from the loader", later="masks are never made dense by the loader"
    )
    reset_attention_mask: bool = setting(
        False,
        "documents of a block do not see each other",
        later="isolating the documents of a block is not available in this version",
    )

    @field_validator("dataset", "eval_dataset")
    @classmethod
    def _known_form(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        unknown = sorted(set(value) - {"file_name", "columns"})
        if unknown or "file_name" not in value:
            raise ValueError(f"takes file_name and columns, not {', '.join(unknown)}" if unknown else "needs file_name")
        columns = value.get("columns") or {}
        if not isinstance(columns, dict) or set(columns) - {"text", "messages"}:
            raise ValueError("columns takes text and messages: {text: name, messages: name}")
        return value

    @field_validator("val_size")
    @classmethod
    def _count_or_share(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("must be a whole number of rows, or a share below 1")
        return value

    def rules(self) -> Iterator[Rule]:
        if self.train_on_prompt and self.mask_history:
            yield Rule(
                ("mask_history", "train_on_prompt"),
                "train_on_prompt and mask_history contradict each other; choose one",
            )
        if self.val_size and self.eval_dataset is not None:
            yield Rule(("val_size", "eval_dataset"), "give val_size or eval_dataset, not both")
        if self.dataset is None:
            yield Rule(("dataset",), "is missing: give a file, a folder or a list of them")
