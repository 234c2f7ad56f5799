"""Generates from an exported folder with plain transformers: nothing of llmtrain is imported.

python scripts/sample.py FOLDER [--chat] PROMPT [PROMPT ...]
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--chat", action="store_true", help="put each prompt into the chat template as a user's turn")
    parser.add_argument("--max_new_tokens", type=int, default=48)
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(arguments.folder)
    model = AutoModelForCausalLM.from_pretrained(arguments.folder)
    torch.manual_seed(0)
    for prompt in arguments.prompts:
        if arguments.chat:
            turn = [{"role": "user", "content": prompt}]
            inputs = tokenizer.apply_chat_template(
                turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
            sampling = {"do_sample": False}
        else:
            inputs = tokenizer(prompt, return_tensors="pt")
            sampling = {"do_sample": True, "temperature": 0.8, "top_p": 0.95}
        output = model.generate(**inputs, max_new_tokens=arguments.max_new_tokens, **sampling)
        text = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        print(f"\n> {prompt}\n{text.strip()}")


if __name__ == "__main__":
    main()
