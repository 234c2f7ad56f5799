"""`llmtrain preprocess`: texts or conversations -> Megatron's pairs of .bin and .idx."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import GPT2Tokenizer, PreTrainedTokenizerBase

from llmtrain.config import DataConfig, ModelConfig
from llmtrain.data.chat import ChatEncoder
from llmtrain.data.chat_templates import check_template, read_template
from llmtrain.data.formats import RowFormat
from llmtrain.data.indexed import CONVERSATIONS, IndexedWriter, token_dtype
from llmtrain.data.pretraining import TextEncoder
from llmtrain.data.sample import IGNORED
from llmtrain.data.sources import DataSource, resolve_sources
from llmtrain.data.store import ENDS, LEARNT, Encoded, Tally
from llmtrain.data.supervision import ChatFormat
from llmtrain.data.tokenise import Encoder, describe_rejected, encoded_chunks
from llmtrain.data.tokenizer import read_tokenizer
from llmtrain.errors import UserError

_TOKENIZERS = ("PretrainedFromHF", "GPT2BPETokenizer")
_THINKING: dict[str, dict[str, Any]] = {
    "true": {"enable_thinking": True},
    "false": {"enable_thinking": False},
    "null": {},
}
_MASK = "_packed_attention_mask_document"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The names are those of Megatron's own tool, where it has such."""
    parser.add_argument("--input", nargs="+", required=True, help="files, folders, patterns, names in --dataset-dir")
    parser.add_argument("--output-prefix", required=True, help="PREFIX_KEY_document.bin and .idx are written")
    parser.add_argument("--stage", choices=["pt", "sft"], default="pt", help="texts, or conversations")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="columns of text; each becomes a pair")
    parser.add_argument("--append-eod", action="store_true", help="end each text with the end-of-sequence token")
    parser.add_argument(
        "--tokenizer-type", choices=["PretrainedFromHF", "GPT2BPETokenizer"], default="PretrainedFromHF"
    )
    parser.add_argument("--tokenizer-name-or-path", help="folder of a Hugging Face tokenizer")
    parser.add_argument("--vocab-file", help="of GPT2BPETokenizer")
    parser.add_argument("--merge-file", help="of GPT2BPETokenizer")
    parser.add_argument("--template", help="named chat template; without, the tokenizer's own")
    parser.add_argument("--tool-format", help="how tools are written, in place of the template's own way")
    parser.add_argument("--enable-thinking", choices=_THINKING, default="true", help="null: not passed to the template")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--log-interval", type=int, default=10_000, help="rows between two lines of progress")
    parser.add_argument("--dataset-dir", default="./configs/fsdp2/data", help="folder of dataset_info.json")
    parser.add_argument("--on-bad-row", choices=["error", "skip"], default="error")
    parser.add_argument("--max-samples", type=int, help="read only the first so many rows of each dataset")


def preprocess(options: argparse.Namespace) -> None:
    """Writes the pairs; nothing is left of them where it fails.

    Raises:
        UserError: no tokenizer, a file that cannot be read, rows that cannot be used.
    """
    settings = DataConfig(
        dataset=list(options.input),
        preprocessing_num_workers=options.workers,
        max_samples=options.max_samples,
        on_bad_row=options.on_bad_row,
    )
    tokenizer = _tokenizer(options)
    sources = resolve_sources(list(options.input), options.dataset_dir, "--input")
    if stored := [source.name for source in sources if source.kind != "rows"]:
        raise UserError(f"--input: {stored[0]} holds tokens already.")
    if options.stage == "sft":
        _write_conversations(options, settings, tokenizer, sources)
        return
    eod = tokenizer.eos_token_id if options.append_eod else None
    for key in options.json_keys:
        prefix = f"{options.output_prefix}_{key}_document"
        with IndexedWriter(prefix, token_dtype(_vocabulary(tokenizer))) as writer:
            watch = _Watch(prefix, options.log_interval)
            for source in sources:
                columns = (
                    source.layout
                    if len(options.json_keys) == 1 and source.layout.columns
                    else RowFormat(columns={"text": key})
                )
                encoder = TextEncoder(tokenizer, columns, eod)
                for encoded in _chunks(replace(source, layout=columns), encoder, settings, watch):
                    writer.add(encoded.tokens, encoded.lengths)
        watch.finish()


def _write_conversations(
    options: argparse.Namespace,
    settings: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[DataSource],
) -> None:
    """Three pairs: the tokens, what is learnt (-100 elsewhere), and ones, as instruction data for Megatron has them."""
    if options.template is not None:
        tokenizer.chat_template = read_template(options.template, options.tool_format)
        check_template(tokenizer, options.template)
    if not tokenizer.chat_template:
        raise UserError("The tokenizer has no chat template; name one (--template).")
    prefixes = [f"{options.output_prefix}{name}" for name in (*CONVERSATIONS, _MASK)]
    with ExitStack() as stack:
        ids, labels, mask = (
            stack.enter_context(IndexedWriter(prefix, kind))
            for prefix, kind in zip(prefixes, (token_dtype(_vocabulary(tokenizer)), "int32", "uint8"), strict=True)
        )
        watch = _Watch(prefixes[0], options.log_interval)
        for source in sources:
            encoder = ChatEncoder(ChatFormat(tokenizer, _THINKING[options.enable_thinking]), source.layout)
            for encoded in _chunks(source, encoder, settings, watch):
                assert encoded.learnt is not None
                learnt = np.where(encoded.learnt == LEARNT, encoded.tokens, IGNORED)
                learnt[encoded.learnt == ENDS] = tokenizer.eos_token_id
                ids.add(encoded.tokens, encoded.lengths)
                labels.add(learnt, encoded.lengths)
                mask.add(np.ones(len(encoded.tokens)), encoded.lengths)
    watch.finish()


def _chunks(source: DataSource, encoder: Encoder, settings: DataConfig, watch: _Watch) -> Any:
    tally = Tally()
    for encoded, tally in encoded_chunks(source, encoder, settings, "--input"):
        watch.count(encoded, tally.rows)
        yield encoded
    watch.close_source(tally)
    if tally.rejected and (settings.on_bad_row == "error" or tally.used == 0):
        raise UserError(describe_rejected(tally, "--input", source.name).replace("data.on_bad_row:", "--on-bad-row"))


class _Watch:
    """Lines of progress, and the sum at the end."""

    def __init__(self, prefix: str, interval: int) -> None:
        self._prefix, self._interval, self._started = prefix, interval, time.perf_counter()
        self._documents = self._tokens = self._before = self._said = self._bad = self._empty = 0

    def count(self, encoded: Encoded, rows: int) -> None:
        self._documents += len(encoded.lengths)
        self._tokens += len(encoded.tokens)
        rows += self._before
        if rows - self._said >= self._interval:
            self._said = rows
            seconds = time.perf_counter() - self._started
            print(f"{rows:,} rows, {self._tokens:,} tokens, {rows / seconds:,.0f} rows/s", flush=True)

    def close_source(self, tally: Tally) -> None:
        self._before += tally.rows
        self._bad += tally.bad
        self._empty += tally.empty

    def finish(self) -> None:
        out = f"; {self._bad:,} rows that cannot be used and {self._empty:,} empty ones left out"
        left = out if self._bad or self._empty else ""
        seconds = time.perf_counter() - self._started
        print(f"{self._prefix}: {self._documents:,} documents, {self._tokens:,} tokens in {seconds:.1f} s{left}")


def _tokenizer(options: argparse.Namespace) -> PreTrainedTokenizerBase:
    if options.tokenizer_type == _TOKENIZERS[1]:
        if options.vocab_file is None or options.merge_file is None:
            raise UserError("--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file.")
        try:
            return GPT2Tokenizer(vocab=options.vocab_file, merges=options.merge_file)
        except Exception as error:  # the library raises its own bare ones
            raise UserError(f"--vocab-file, --merge-file: no tokenizer could be read ({error}).") from error
    if options.tokenizer_name_or_path is None:
        raise UserError("--tokenizer-name-or-path is missing; give the folder of a Hugging Face tokenizer.")
    model = ModelConfig(model_type="none", tokenizer_name_or_path=options.tokenizer_name_or_path)
    return read_tokenizer(model, "--tokenizer-name-or-path")


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> int:
    return max(tokenizer.get_vocab().values()) + 1
