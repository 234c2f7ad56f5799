"""The schema in the forms that people read: --print-config, --help, a JSON schema, the page in docs/."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from llmtrain.config.loading import Resolved
from llmtrain.config.problems import describe_type
from llmtrain.config.schema import FIELDS, SECTIONS, Config
from llmtrain.config.section import KIND_NOTES, Section, default_of, traits_of
from llmtrain.config.yaml_values import to_yaml

_INTRODUCTION = """\
# Configuration reference

Generated from the schema by `python -m llmtrain.config`; a test fails when it is stale. `config.schema.json`
beside this page lets an editor complete and check a YAML file.

Field names follow the FSDP2 backend of MindSpeed-LLM ("the reference trainer" below), so that a YAML file written
for it runs here, or stops with one line for each setting that has no meaning here.

## Where values come from

    torchrun train_fsdp2.py config.yaml --training.lr 1e-5 --parallel.recompute --model.config_overrides.head_dim 64

Later wins: the defaults below, the files under `base:`, the file itself, the command line. Mappings merge key by key,
lists are replaced.

- `base:` at the top of a file names files to start from, relative to it: a path, or a list whose later entries win.
- `${training.lr}` stands for another value, `${oc.env:NAME,default}` for an environment variable.
- `--section.field value`, `--section.field=value`; several words are a list; a flag without a value is true.
- Values are YAML: `1e-5` is a number, `[a, b]` a list, `{a: 1}` a mapping, `null` takes a value back.
- Where a list belongs, a text with commas is one; where true or false belongs, so are yes, no, on, off, 1, 0.
- `--print-config` shows the config with the origin of every value. Each run writes it to `config.yaml` in its output
  folder, and that file runs again as it is.

Every problem of a config is told at once. A field that takes only its default is refused with another value; one that
changes nothing is accepted, and the run says so.
"""


def render_config(resolved: Resolved) -> str:
    """The resolved config as YAML that runs again, with each value's origin as a comment."""
    lines: list[str] = []
    for section, fields in resolved.config.to_dict().items():
        lines.append(f"{section}:")
        lines += _annotated(fields, f"{section}.", resolved.origins, "  ")
    return "\n".join(lines)


def _annotated(fields: dict[str, Any], prefix: str, origins: dict[str, str], indent: str) -> Iterator[str]:
    for name, value in fields.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield f"{indent}{to_yaml(name)}:"
            yield from _annotated(value, f"{path}.", origins, f"{indent}  ")
        else:
            first, *rest = to_yaml({name: value}).split("\n")
            hidden = ", not shown" if path in FIELDS and traits_of(FIELDS[path]).secret else ""
            yield f"{indent}{first}".ljust(50) + f"  # {origins[path]}{hidden}"
            yield from (f"{indent}{line}" for line in rest)


def render_help() -> str:
    """Every field by section: name, type, default, one line."""
    lines: list[str] = []
    for section, kind in SECTIONS.items():
        lines += ["", f"{section}: {kind.__doc__}"]
        for name, field in kind.model_fields.items():
            note = KIND_NOTES[traits_of(field).kind]
            lines.append(f"  --{section}.{name}  ({describe_type(field.annotation)}; {_default(field)})")
            lines.append(f"      {field.description}{f' [{note}]' if note else ''}")
    return "\n".join(lines).lstrip("\n")


def json_schema() -> dict[str, Any]:
    """A JSON schema for editors. Nothing is required, since a base file or the command line may give it."""
    schema = Config.model_json_schema()
    schema.pop("required")
    schema["properties"]["base"] = {
        "description": "files to start from, relative to this one; later wins",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    return schema


def reference_page() -> str:
    """docs/configuration.md."""
    return _INTRODUCTION + "".join(f"\n## {name}\n\n{_section(kind)}" for name, kind in SECTIONS.items())


def _section(kind: type[Section]) -> str:
    live = [name for name, field in kind.model_fields.items() if traits_of(field).kind == "live"]
    rest = [name for name in kind.model_fields if name not in live]
    parts = [f"{kind.__doc__}\n"]
    for title, names in ((None, live), ("Known from the reference trainer, without effect here", rest)):
        if names:
            heading = f"\n**{title}**\n" if title else ""
            rows = "".join(_row(name, kind.model_fields[name]) for name in names)
            parts.append(f"{heading}\n| field | type | default | meaning |\n|---|---|---|---|\n{rows}")
    return "".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    traits = traits_of(field)
    meaning = [str(field.description)]
    if traits.kind == "later":
        accepted = "".join(f" or {to_yaml(value)}" for value in traits.accept)
        meaning.append(f"**Takes only the default{accepted}**: {traits.reason}")
    if traits.kind == "moot":
        meaning.append(f"**Changes nothing**: {traits.reason}")
    if traits.moot_in_pt:
        meaning.append(f"**Changes nothing in stage pt**: {traits.moot_in_pt}")
    if traits.differs:
        meaning.append(f"*Reference trainer*: {traits.differs}")
    cells = [f"`{name}`", describe_type(field.annotation), _default(field, mark="`"), ". ".join(meaning)]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(field: FieldInfo, mark: str = "") -> str:
    if traits_of(field).required:
        return "required"
    return f"{'' if mark else 'default '}{mark}{to_yaml(default_of(field), flow=True)}{mark}"


def write_reference(folder: Path) -> None:
    """Writes both generated files."""
    (folder / "configuration.md").write_text(reference_page(), encoding="utf-8")
    (folder / "config.schema.json").write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")
