"""Section `data`: what is read, and how it becomes tokens."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import field_validator

from llmtrain.config.section import Rule, Section, setting

Source = str | list[str | dict[str, Any]] | dict[str, Any]

# What describes a dataset, in `data.dataset` or in a dataset_info.json: LLaMA-Factory's fields, `name`, `weight` and
# `dtype`.
SOURCE_FIELDS = (
    *("name", "weight", "dtype", "num_samples", "formatting", "columns", "tags", "ranking"),
    *("file_name", "cloud_file_name", "hf_hub_url", "subset", "split", "folder", "ms_hub_url", "om_hub_url"),
    "script_url",
)
# Types of tokens in files that hold nothing else.
TOKEN_TYPES = ("uint8", "uint16", "uint32", "int16", "int32", "int64")
_FORMATTINGS = ("alpaca", "sharegpt", "openai")
# The names of dataset_info.json for what a row holds, and what they stand for unless `columns` or `tags` say otherwise.
COLUMNS = {
    "text": "text",
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "history": "history",
    "messages": "messages",
    "system": "system",
    "tools": "tools",
    "chosen": "chosen",
    "rejected": "rejected",
    "kto_tag": "kto_tag",
}
TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
_ELSEWHERE = {
    "script_url": "loading scripts are not run",
    "ms_hub_url": "only the Hugging Face hub is read; download the files and give file_name",
    "om_hub_url": "only the Hugging Face hub is read; download the files and give file_name",
}


class DataConfig(Section):
    """What is read, and how it becomes tokens."""

    dataset: Source | None = setting(
        None,
        "file, folder or glob (.jsonl, .json, .parquet, .arrow, .csv, .tsv, .txt, also compressed), a name in "
        "dataset_info.json, a mapping with the fields of one ({file_name: ..., columns: {text: NAME}}), or a list",
        required="give a file, a folder or a list of them",
    )
    eval_dataset: Source | None = setting(None, "held-out data, in the same forms; excludes `val_size`")
    dataset_dir: str = setting("./configs/fsdp2/data", "folder of dataset_info.json")
    on_bad_row: Literal["error", "skip"] = setting(
        "error", "rows that cannot be used: stop and name them, or train without them and count them"
    )
    streaming: bool = setting(
        False, "read, tokenise and cut rows into samples during the run, for data larger than memory and disk"
    )
    buffer_size: int = setting(16384, "rows that are shuffled together in a stream", ge=1)
    mix_strategy: Literal["concat", "interleave_under", "interleave_over"] = setting(
        "concat",
        "several datasets: all of each; or by weight, an epoch ending when the first is used up (under) or when all "
        "have been seen (over)",
    )
    interleave_probs: str | None = setting(
        None, "weights of the datasets, `0.7,0.3`; without, each dataset's own `weight`, or equal ones"
    )
    data_manager_type: Literal["lf", "mg"] = setting(
        "lf",
        "lf: each pass over the data shuffled; mg: Megatron-Core's GPT dataset, the same samples in the same order",
    )
    split: str = setting("100,0,0", "with `mg`: shares of the documents for training, validation, test")
    val_size: float = setting(
        0.0, "documents or conversations to hold out: a count (1 or more) or a share of them", ge=0
    )
    eval_on_each_dataset: bool = setting(False, "a held-out loss of each dataset, beside that of all")
    max_samples: int | None = setting(None, "read only the first so many rows of each dataset", ge=1)
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
    template: str | None = setting(
        None,
        "chat template, by name or as a .jinja file; null: the tokenizer's own",
        moot_in_pt="pretraining uses no chat template",
    )
    tool_format: str | None = setting(
        None,
        "how tools and calls are written, in place of the named template's own way",
        moot_in_pt="pretraining uses no chat template",
    )
    enable_thinking: bool | None = setting(True, "passed on to chat templates that know it; null: not passed")
    default_system: str | None = setting(
        None, "system prompt of conversations that have none", moot_in_pt="pretraining has no conversations"
    )
    packing: bool = setting(
        False,
        "fill rows of `cutoff_len` with several conversations, which see each other unless `neat_packing` is set",
        moot_in_pt="pretraining always fills its blocks",
    )
    neat_packing: bool = setting(False, "pack, and keep the documents of a row apart")
    reset_attention_mask: bool = setting(
        False, "keep the documents of a row apart: no attention between them, positions that start anew"
    )
    padding_free: bool = setting(False, "lay the samples of a micro-batch end to end in one row, without padding")
    overwrite_cache: bool = setting(False, "tokenise anew, even where a cache fits")
    tokenized_path: str | None = setting(
        None, "folder that keeps the tokens; null: ~/.cache/llmtrain, or $LLMTRAIN_CACHE"
    )
    preprocessing_batch_size: int = setting(1000, "rows tokenised at a time", ge=1)
    preprocessing_num_workers: int | None = setting(None, "processes that tokenise", ge=1)
    data_shared_file_system: bool = setting(False, "all nodes see one file system: one rank tokenises for all of them")

    create_attention_mask_in_dataloader: bool = setting(
        False, "dense masks from the loader", later="attention masks are never made dense by the loader"
    )
    eval_num_beams: int | None = setting(
        None, "beams of generating evaluation", later="evaluation by generation is not available in this version"
    )
    ignore_pad_token_for_loss: bool = setting(True, "padding is not learnt", later="padding is never learnt")
    no_shared_storage: bool = setting(
        False, "nodes do not share storage", moot="data.data_shared_file_system says it, and is false by default"
    )
    dataloader_type: Literal["single"] = setting("single", "sampling order", moot="there is one kind")

    @field_validator("dataset", "eval_dataset")
    @classmethod
    def _known_form(cls, value: Source | None) -> Source | None:
        if value is not None:
            items = value if isinstance(value, list) else [value]
            for item in items:
                if isinstance(item, dict):
                    check_source(item)
            if not items or "" in items:
                raise ValueError("it names no file")
        return value

    @field_validator("interleave_probs")
    @classmethod
    def _weights(cls, value: str | None) -> str | None:
        if value is not None:
            parse_weights(value)
        return value

    @field_validator("val_size")
    @classmethod
    def _count_or_share(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError("a whole number of rows, or a share below 1")
        return value

    @field_validator("split")
    @classmethod
    def _shares(cls, value: str) -> str:
        parse_split(value)
        return value

    @property
    def holds_out(self) -> bool:
        """Whether there is data to evaluate on."""
        by_split = self.data_manager_type == "mg" and parse_split(self.split)[1] > 0
        return bool(self.val_size) or self.eval_dataset is not None or by_split

    def rules(self) -> Iterator[Rule]:
        yield from self._manager_rules()
        yield from self._stream_rules()
        if self.train_on_prompt and self.mask_history:
            yield Rule(("mask_history", "train_on_prompt"), "and data.train_on_prompt exclude each other; choose one")
        if self.val_size and self.eval_dataset is not None:
            yield Rule(("val_size", "eval_dataset"), "and data.eval_dataset exclude each other; give one")
        if self.tool_format is not None and self.template is None:
            yield Rule(
                ("tool_format",),
                "has a meaning for a named data.template only; the tokenizer's own writes tools its way",
            )
        if self.interleave_probs is not None and self.mix_strategy == "concat":
            yield Rule(
                ("interleave_probs", "mix_strategy"),
                "has no meaning where data.mix_strategy is concat, which takes all of each dataset; use "
                "interleave_under or interleave_over",
            )
        if self.eval_on_each_dataset and not self.holds_out:
            yield Rule(
                ("eval_on_each_dataset",), "has nothing to evaluate; hold out some (data.val_size, data.eval_dataset)"
            )

    def _stream_rules(self) -> Iterator[Rule]:
        if not self.streaming:
            return
        if self.data_manager_type == "mg":
            yield Rule(
                ("streaming", "data_manager_type"), "and data.data_manager_type mg exclude each other; choose one"
            )
        if self.val_size:
            yield Rule(("val_size", "streaming"), "cannot be taken out of a stream; use data.eval_dataset")

    def _manager_rules(self) -> Iterator[Rule]:
        if self.data_manager_type == "lf":
            if parse_split(self.split)[0] < 1:
                yield Rule(
                    ("split", "data_manager_type"),
                    "is read where data.data_manager_type is mg; use data.val_size or data.eval_dataset",
                )
            return
        if self.val_size:
            yield Rule(("val_size", "data_manager_type"), "is not for data.data_manager_type mg; use data.split")
        if self.eval_dataset is not None and parse_split(self.split)[1]:
            yield Rule(("eval_dataset", "split"), "and a validation share in data.split exclude each other; give one")
        if self.mix_strategy != "concat" or self.interleave_probs is not None:
            yield Rule(
                ("mix_strategy", "interleave_probs", "data_manager_type"),
                "is not for data.data_manager_type mg, which blends by weights: dataset: [0.3, PREFIX, 0.7, PREFIX]",
            )


def parse_weights(text: str) -> list[float]:
    """The numbers of `interleave_probs`.

    Raises:
        ValueError: no numbers, or such as cannot be weights.
    """
    try:
        weights = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError("numbers with commas between them, one a dataset") from None
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not sum(weights):
        raise ValueError("no weight may be negative, and not all may be 0")
    return weights


def parse_split(text: str) -> list[float]:
    """The three shares of `split`, adding up to 1.

    Raises:
        ValueError: other text than up to three numbers, or none above 0.
    """
    if not re.fullmatch(r"\s*\d*\.?\d+\s*([,/]\s*\d*\.?\d+\s*){0,2}", text):
        raise ValueError("up to three shares with commas between them, 969,30,1")
    values = [float(value) for value in re.findall(r"[.0-9]+", text)]
    values += [0.0] * (3 - len(values))
    if not sum(values):
        raise ValueError("not all shares may be 0")
    return [value / sum(values) for value in values]


def check_source(entry: Mapping[str, Any]) -> None:
    """Checks the description of one dataset.

    Raises:
        ValueError: an unknown field, or a value that the field cannot take.
    """
    _refuse_unknown(entry, SOURCE_FIELDS, "")
    for key, reason in _ELSEWHERE.items():
        if entry.get(key):
            raise ValueError(f"{key} cannot be used: {reason}")
    files = entry.get("file_name") or entry.get("cloud_file_name") or entry.get("hf_hub_url")
    paths = files if isinstance(files, list) else [files]
    if not files or not all(isinstance(path, str) and path for path in paths):
        raise ValueError("file_name must be a path or a list of paths")
    if entry.get("formatting") not in (None, *_FORMATTINGS):
        raise ValueError(f"formatting is {entry['formatting']!r}; known are {', '.join(_FORMATTINGS)}")
    for key, known in (("columns", COLUMNS), ("tags", TAGS)):
        names = entry.get(key) or {}
        if not isinstance(names, Mapping) or not all(isinstance(name, str | None) for name in names.values()):
            raise ValueError(f"{key} must be a mapping of names to names")
        media = {"images", "videos", "audios"} & {name for name in names if names[name]}
        if media:
            raise ValueError(f"{key}.{min(media)} cannot be used: only text is trained on")
        _refuse_unknown([name for name in names if names[name]], known, f"{key}.")
    if entry.get("dtype") not in (None, *TOKEN_TYPES):
        raise ValueError(f"dtype is {entry['dtype']!r}; known are {', '.join(TOKEN_TYPES)}")
    count, weight = entry.get("num_samples"), entry.get("weight")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"num_samples is {count!r}; it takes a whole number from 1 on")
    if weight is not None and (isinstance(weight, bool) or not isinstance(weight, int | float) or not weight >= 0):
        raise ValueError(f"weight is {weight!r}; it takes a number from 0 on")


def _refuse_unknown(given: Iterable[str], known: Collection[str], prefix: str) -> None:
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix}{close[0]}?" if close else f"known are {', '.join(known)}"
            raise ValueError(f"{prefix}{key} is unknown; {hint}")
