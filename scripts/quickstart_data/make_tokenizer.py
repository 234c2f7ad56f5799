"""Writes configs/quickstart/tokenizer: byte-level BPE with a chat template, trained on the quickstart's data.

Run make_text.py and make_chat.py first; their training files must be there. Nothing but the trainer's own
dependencies is needed:

    python scripts/quickstart_data/make_tokenizer.py

The files are the same, byte for byte, on every run with the same versions of tokenizers and transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart"
VOCABULARY = 4096
MAX_LENGTH = 2048
EOS, PAD, START, END = "<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"

# The newline behind an assistant's <|im_end|> belongs to no answer, so it stands outside the generation block.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('This chat template knows the roles system, user and assistant, not ' + message['role']) }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def training_texts() -> Iterator[str]:
    """The chapters, then the contents of the messages."""
    for line in (QUICKSTART / "data" / "kjv_train.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)["text"]
    for line in (QUICKSTART / "data" / "wordnet_chat.jsonl").read_text(encoding="utf-8").splitlines():
        for message in json.loads(line)["messages"]:
            yield message["content"]


def train() -> Tokenizer:
    """All 256 bytes are in the vocabulary, so every text can be encoded, and decoding gives it back unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Offsets that cover leading spaces: the mask of the assistant's tokens is found through them.
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[EOS, PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(), trainer)
    return tokenizer


def main() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train(),
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[START, END],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    folder = QUICKSTART / "tokenizer"
    tokenizer.save_pretrained(folder)
    print(f"{folder.name}: {len(tokenizer):,} tokens in {', '.join(sorted(p.name for p in folder.iterdir()))}")


if __name__ == "__main__":
    main()
