"""Makes the quickstart's conversations: questions about words, answered from WordNet's glosses and relations.

    apt-get install wordnet-base
    python scripts/quickstart_data/make_chat.py

Words are the most frequent ones by WordNet's own tag counts, in their first sense. 1 word in 20 is held out.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

WORDNET = Path("/usr/share/wordnet")
OUT = Path(__file__).parents[2] / "configs" / "quickstart" / "data"
KINDS = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
NAMES = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
WORDS = 2600
LONGEST_ANSWER = 160


@dataclass
class Sense:
    """One synset: its words, definition, example sentences, and the offsets of more general ones and of opposites."""

    kind: str
    words: list[str]
    definition: str
    examples: list[str]
    hypernyms: list[str] = field(default_factory=list)
    antonyms: list[tuple[str, int, int]] = field(default_factory=list)


def read_senses(kind: str) -> dict[str, Sense]:
    """Offset -> sense, from a data file."""
    senses = {}
    for line in (WORDNET / f"data.{KINDS[kind]}").read_text().splitlines():
        if line.startswith("  "):
            continue
        left, _, gloss = line.partition(" | ")
        parts = left.split(" ")
        count = int(parts[3], 16)
        words = [re.sub(r"\(\w+\)$", "", parts[4 + 2 * i]).replace("_", " ") for i in range(count)]
        pointers = parts[5 + 2 * count :]
        definition = gloss.split('; "')[0].split('"')[0].strip().rstrip(";:").strip()
        sense = Sense(kind, words, definition, re.findall(r'"([^"]+)"', gloss))
        for i in range(int(parts[4 + 2 * count])):
            symbol, offset, target_kind, places = pointers[4 * i : 4 * i + 4]
            if symbol == "@" and target_kind == kind:
                sense.hypernyms.append(offset)
            if symbol == "!" and target_kind == kind:
                sense.antonyms.append((offset, int(places[:2], 16), int(places[2:], 16)))
        senses[parts[0]] = sense
    return senses


def frequent_words() -> list[tuple[str, str]]:
    """(word, kind) by how often its first sense was tagged, each word once."""
    kinds = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
    counts: dict[str, tuple[int, str]] = {}
    for line in (WORDNET / "cntlist.rev").read_text().splitlines():
        key, number, count = line.split(" ")
        word, _, rest = key.partition("%")
        if number == "1" and re.fullmatch(r"[a-z]{3,}", word) and int(count) > counts.get(word, (0, ""))[0]:
            counts[word] = (int(count), kinds[rest[0]])
    ranked = sorted(counts, key=lambda w: (-counts[w][0], w))
    return [(word, counts[word][1]) for word in ranked]


def first_sense(index: dict[str, str], senses: dict[str, Sense], word: str) -> Sense | None:
    return senses.get(index.get(word, ""))


def read_index(kind: str) -> dict[str, str]:
    """Word -> offset of its first sense."""
    index = {}
    for line in (WORDNET / f"index.{KINDS[kind]}").read_text().splitlines():
        if not line.startswith("  "):
            parts = line.split(" ")
            index[parts[0]] = parts[6 + int(parts[3])]
    return index


def article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def sentence(text: str) -> str:
    text = text.strip()
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def define(word: str, sense: Sense, style: int) -> tuple[str, str]:
    questions = [
        f'What does the {NAMES[sense.kind]} "{word}" mean?',
        f'Define "{word}".',
        f'What is the meaning of "{word}"?',
        f'How would you explain the word "{word}"?',
    ]
    return questions[style % len(questions)], f'"{word}" ({NAMES[sense.kind]}): {sense.definition}.'


def more(word: str, sense: Sense, senses: dict[str, Sense], style: int) -> list[tuple[str, str]]:
    """Other things WordNet knows about the word, as questions and answers."""
    found = []
    examples = [example for example in sense.examples if word in example.lower().split()]
    if examples:
        ask = [f'Use "{word}" in a sentence.', f'Give an example of how "{word}" is used.']
        found.append((ask[style % 2], sentence(examples[0])))
    others = [w for w in sense.words if w.lower() != word]
    if others:
        ask = [f'What is another word for "{word}"?', f'Name a synonym of "{word}".']
        found.append((ask[style % 2], sentence(", ".join(others[:3]))))
    if sense.kind == "n" and sense.hypernyms:
        general = senses[sense.hypernyms[0]].words[0]
        if general.islower():
            found.append((f'What kind of thing is "{word}"?', f"{article(word).capitalize()} {word} is a kind of {general}."))
    for offset, here, there in sense.antonyms:
        if here and sense.words[here - 1].lower() == word:
            found.append((f'What is the opposite of "{word}"?', f'The opposite of "{word}" is "{senses[offset].words[there - 1]}".'))
            break
    return found


def talk(*turns: tuple[str, str]) -> dict[str, list[dict[str, str]]]:
    pairs = [({"role": "user", "content": q}, {"role": "assistant", "content": a}) for q, a in turns]
    return {"messages": [message for pair in pairs for message in pair]}


def main() -> None:
    senses = {kind: read_senses(kind) for kind in KINDS}
    index = {kind: read_index(kind) for kind in KINDS}
    train, held_out = [], []
    used = 0
    for word, kind in frequent_words():
        sense = first_sense(index[kind], senses[kind], word)
        if sense is None or not 10 <= len(sense.definition) <= LONGEST_ANSWER:
            continue
        if used == WORDS:
            break
        extra = [pair for pair in more(word, sense, senses[kind], used) if len(pair[1]) <= LONGEST_ANSWER]
        definition = define(word, sense, used)
        # Every fourth word becomes one conversation of two turns, the others single questions.
        talks = [talk(definition, extra[0])] if extra and used % 4 == 3 else [talk(definition), *map(talk, extra[:1])]
        (held_out if used % 20 == 10 else train).extend(talks)
        used += 1
    OUT.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("heldout", held_out)):
        (OUT / f"wordnet_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
