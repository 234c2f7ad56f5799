"""Writes configs/quickstart/data/wordnet_chat.jsonl and wordnet_chat_heldout.jsonl: questions about common words.

Every answer is what WordNet says of the first (most frequent) sense of the word. Words are taken by how often that
sense was tagged in running text; no word and no synset of the held-out file is asked about in the training file. The
database is Debian's package wordnet-base:

    apt-get install wordnet-base
    python scripts/quickstart_data/make_chat.py

The files are the same, byte for byte, on every run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

DATA = Path(__file__).resolve().parents[2] / "configs" / "quickstart" / "data"
WORDNET = Path("/usr/share/wordnet")
WORDS, HELD_OUT_EVERY = 2226, 21
MAX_WORDS = 22  # of a definition or an example: most answers stay under 60 tokens

# WordNet's letter of a part of speech -> its file and its name here. Satellite adjectives (s) live in data.adj.
FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
NAMES = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
# "A book is a kind of whole" is what WordNet says, and tells nobody anything.
EMPTY_KINDS = {"entity", "abstraction", "physical entity", "object", "whole", "psychological feature", "thing", "be"}
UNSUITABLE = re.compile(
    r"\b(slang|offensive|vulgar|obscen\w+|derogatory|disparag\w+|slur|sex\w*|prostitut\w+|rap(e|ist)|genital\w*|negro\w*|"
    r"jew\w*|ethnic\w*|rac(e|es|ial)|damn\w*|hell|shit\w*|piss\w*|fuck\w*|whore\w*|suicid\w+|naked|nude|copulat\w+|nazi\w*|"
    r"muslim\w*|gay|colored|sells her body|make a pass|breast\w*)\b",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[a-z]+(?:[ -][a-z]+)*")
_QUOTED = re.compile(r'"([^"]*)"(?=;|$)')  # a quotation with its author behind it is left out

# The word stands in {word}, its part of speech in {pos}; of several wordings a word takes one.
QUESTIONS = {
    "definition": (
        'What does "{word}" mean?',
        'What does the {pos} "{word}" mean?',
        'Define the {pos} "{word}".',
        'What is the meaning of "{word}"?',
        'How would you define "{word}"?',
        'Please explain the word "{word}".',
        'I do not know the word "{word}". What does it mean?',
    ),
    "example": (
        'How is the word "{word}" used?',
        'Give me an example of the {pos} "{word}".',
        'Show me how to use "{word}".',
        'Can you use "{word}" in an example?',
    ),
    "synonym": (
        'What is another word for "{word}"?',
        'Give me a synonym of "{word}".',
        'How else can I say "{word}"?',
        'Which word means the same as "{word}"?',
    ),
    "antonym": (
        'What is the opposite of "{word}"?',
        'Which word means the opposite of "{word}"?',
        'Give me an antonym of "{word}".',
        'Name the opposite of the {pos} "{word}".',
    ),
    "kind": (
        'What kind of thing is meant by "{word}"?',
        'What does the noun "{word}" name a kind of?',
        'The noun "{word}" is a kind of what?',
    ),
    "way": (
        'To "{word}" is a way to do what?',
        'What do you do when you "{word}"?',
        'The verb "{word}" is one way to do what?',
    ),
}
# The second turn of a conversation about the same word.
FOLLOW_UPS = {
    "definition": ("And what does the word mean?", "What does it mean?", "Please define it."),
    "example": ("Can you give me an example?", "How is it used?", "Show me how to use it."),
    "synonym": ("Is there another word for it?", "Do you know a synonym?", "How else can I say that?"),
    "antonym": ("And what is its opposite?", "Which word means the opposite?", "Do you know an antonym?"),
    "kind": ("What kind of thing is that?", "And what is it a kind of?"),
    "way": ("What is that a way to do?", "And what do you do when you do that?"),
}


@dataclass(frozen=True)
class Synset:
    """A line of a data file: words that share a meaning, what it is, and pointers to other synsets."""

    words: tuple[str, ...]
    definition: str  # empty where the gloss cannot be told from its examples
    examples: tuple[str, ...]
    pointers: tuple[tuple[str, str, str, int, int], ...]  # symbol, part of speech, offset, from word, to word (from 1)

    @property
    def suitable(self) -> bool:
        """Nothing in it that a demonstration should not say."""
        return not UNSUITABLE.search(" ; ".join((*self.words, self.definition, *self.examples)))


@dataclass(frozen=True)
class Entry:
    """A common word in its first sense. `answers`: kind of question -> answer; it always holds a definition."""

    word: str
    pos: str
    answers: dict[str, str]


Database = dict[tuple[str, str], Synset]


def read_synsets() -> Database:
    """(part of speech, offset) -> synset, of all four data files; the format is wndb(5WN)."""
    return {
        (pos, line[:8]): parse_synset(line)
        for pos, name in FILES.items()
        for line in (WORDNET / f"data.{name}").read_text(encoding="utf-8").splitlines()
        if not line.startswith("  ")  # the licence on top
    }


def parse_synset(line: str) -> Synset:
    """A line of a data file as a Synset."""
    head, gloss = line.split(" | ", 1)
    fields = head.split()
    count = int(fields[3], 16)
    words = tuple(re.sub(r"\(\w+\)$", "", word).replace("_", " ") for word in fields[4 : 4 + 2 * count : 2])
    rest = fields[4 + 2 * count :]
    pointers = tuple(
        (symbol, pos.replace("s", "a"), offset, int(ends[:2], 16), int(ends[2:], 16))
        for symbol, offset, pos, ends in (rest[1 + 4 * i : 5 + 4 * i] for i in range(int(rest[0])))
    )
    definition, quote, _ = gloss.partition('"')
    # Examples stand behind a semicolon; a quotation that does not is part of the definition, which would end in it.
    whole = not quote or definition.rstrip().endswith(";")
    return Synset(words, definition.strip("; ") if whole else "", tuple(_QUOTED.findall(gloss.strip())), pointers)


def first_senses() -> list[tuple[str, str, str]]:
    """(word, part of speech, offset of its first sense), the most often tagged words first."""
    tagged: dict[tuple[str, str], int] = {}
    for line in (WORDNET / "cntlist.rev").read_text(encoding="utf-8").splitlines():
        key, sense, count = line.split()
        word, _, rest = key.partition("%")
        if sense == "1":
            tagged[word, "nvara"[int(rest[0]) - 1]] = int(count)
    found = []
    for pos, name in FILES.items():
        for line in (WORDNET / f"index.{name}").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if not line.startswith("  ") and (fields[0], pos) in tagged:
                found.append((tagged[fields[0], pos], fields[0], pos, fields[-int(fields[2])]))
    return [(word, pos, offset) for _, word, pos, offset in sorted(found, key=lambda item: (-item[0], *item[1:]))]


def choose_entries(synsets: Database) -> list[Entry]:
    """The `WORDS` most common words that can be explained; no two share a synset."""
    entries: list[Entry] = []
    used: set[str] = set()
    for word, pos, offset in first_senses():
        synset = synsets[pos, offset]
        # An upper-case spelling in the synset is a name.
        if not re.fullmatch("[a-z]{3,}", word) or word not in synset.words or not synset.suitable:
            continue
        definition = short_definition(synset.definition, word)
        if definition is None or not used.isdisjoint((word, pos + offset)):
            continue
        used |= {word, pos + offset}
        entries.append(Entry(word, pos, answers(word, pos, synset, definition, synsets)))
        if len(entries) == WORDS:
            return entries
    raise ValueError(f"only {len(entries)} words, expected {WORDS}")


def short_definition(definition: str, word: str) -> str | None:
    """The definition, or its first part if it is long; None if it needs its brackets or explains the word by itself."""
    if len(definition.split()) > MAX_WORDS:
        definition = definition.split(";")[0]
    tokens = definition.lower().split()
    stem = word.removesuffix("e").removesuffix("y")
    circular = any(token.startswith(stem) for token in tokens)
    # "Used to ..." tells about grammar, and is no meaning after "means".
    if not 2 <= len(tokens) <= MAX_WORDS or circular or set("()`[]") & set(definition) or tokens[0] == "used":
        return None
    return definition


def answers(word: str, pos: str, synset: Synset, definition: str, synsets: Database) -> dict[str, str]:
    """Kind of question -> answer, for what WordNet says of the word; where it says several things, the first."""
    article = "an" if NAMES[pos].startswith("a") else "a"
    meaning = f"to {definition.removeprefix('to ')}" if pos == "v" else definition
    found = {"definition": f'As {article} {NAMES[pos]}, "{word}" means {meaning.removesuffix(".")}.'}
    if example := next((text for text in synset.examples if shows(text, word)), None):
        end = "" if example[-1] in "?!." else "."
        found["example"] = f'For example: "{example[0].upper()}{example[1:]}{end}"'
    synonyms = [f'"{other}"' for other in synset.words if is_synonym(other, word)][:3]
    if len(synonyms) == 1:
        found["synonym"] = f'Another word for "{word}" is {synonyms[0]}.'
    elif synonyms:
        found["synonym"] = f'Other words for "{word}" are {", ".join(synonyms[:-1])} and {synonyms[-1]}.'
    for symbol, other_pos, offset, source, target in synset.pointers:
        other = synsets[other_pos, offset]
        kind = other.words[0]
        if symbol == "!" and synset.words[source - 1] == word:
            found.setdefault("antonym", f'The opposite of "{word}" is "{other.words[target - 1]}".')
        elif symbol == "@" and _PLAIN.fullmatch(kind) and kind not in EMPTY_KINDS | {word} and other.suitable:
            if pos == "n":
                found.setdefault("kind", f'"{word.capitalize()}" is a kind of {kind}.')
            else:
                found.setdefault("way", f"To {word} is one way to {kind}.")
    return found


def is_synonym(other: str, word: str) -> bool:
    """Whether it is a word of its own: "verbal description" tells little about "description"."""
    return len(other) > 2 and bool(_PLAIN.fullmatch(other)) and word not in other and other not in word


def shows(example: str, word: str) -> bool:
    """Whether a short example holds the word itself, regularly inflected or not."""
    stem = word.removesuffix("e")
    forms = [word, word + "s", word + "es", stem + "ed", stem + "ing", word + word[-1] + "ed", word + word[-1] + "ing"]
    if word.endswith("y"):
        forms += [word[:-1] + "ies", word[:-1] + "ied"]
    inside = re.search(rf"\b({'|'.join(forms)})\b", example, re.IGNORECASE)
    return bool(inside) and 3 <= len(example.split()) <= MAX_WORDS and not set("()[]`;") & set(example)


def pick(options: Sequence[str], *key: str) -> str:
    """One of the options, by a checksum of the key: spread evenly, and the same on every machine."""
    return options[crc32("/".join(key).encode()) % len(options)]


def conversations(entry: Entry) -> Iterator[list[dict[str, str]]]:
    """One that opens with the definition and, if WordNet says more of the word, one that opens with something else."""
    others = [kind for kind in entry.answers if kind != "definition"]
    follow = pick(others, entry.word, "follow") if others else ""
    two_turns = pick(("one", "two"), entry.word, "turns") == "two"
    yield converse(entry, ["definition", follow] if others and two_turns else ["definition"])
    if others:
        opening = pick([kind for kind in others if kind != follow] or others, entry.word, "opening")
        defined = pick(("yes", "no", "no", "no"), entry.word, "defined") == "yes"
        yield converse(entry, [opening, "definition"] if defined else [opening])


def converse(entry: Entry, kinds: Sequence[str]) -> list[dict[str, str]]:
    """The messages of one conversation: a question and its answer a kind."""
    messages = []
    for turn, kind in enumerate(kinds):
        wordings = FOLLOW_UPS[kind] if turn else QUESTIONS[kind]
        question = pick(wordings, entry.word, kind).format(word=entry.word, pos=NAMES[entry.pos])
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": entry.answers[kind]}]
    return messages


def write_jsonl(path: Path, entries: Sequence[Entry]) -> None:
    """One {"messages": ...} a line, shuffled by checksum so that the first rows are as varied as all."""
    lines = [json.dumps({"messages": messages}) for entry in entries for messages in conversations(entry)]
    lines.sort(key=lambda line: (crc32(line.encode()), line))
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    print(f"{path.name}: {len(lines):,} conversations about {len(entries):,} words, {path.stat().st_size:,} bytes")


def main() -> None:
    entries = choose_entries(read_synsets())
    DATA.mkdir(parents=True, exist_ok=True)
    write_jsonl(DATA / "wordnet_chat.jsonl", [e for i, e in enumerate(entries) if i % HELD_OUT_EVERY != 10])
    write_jsonl(DATA / "wordnet_chat_heldout.jsonl", [e for i, e in enumerate(entries) if i % HELD_OUT_EVERY == 10])


if __name__ == "__main__":
    main()
