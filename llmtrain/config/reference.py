"""The schema in the forms people read it: --print-config, --help, a JSON schema, the page in docs/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from llmtrain.config.loading import Resolved
from llmtrain.config.problems import describe_type
from llmtrain.config.schema import SECTIONS, Config, to_yaml
from llmtrain.config.section import default_of, extras


def render_config(resolved: Resolved) -> str:
    """The resolved config as YAML that runs again, with each value's origin as a comment."""
    lines: list[str] = []
    for section, fields in resolved.config.to_dict().items():
        lines.append(f"{section}:")
        for name, value in fields.items():
            origin = resolved.origins.get(f"{section}.{name}", "default")
            first, *rest = to_yaml({name: value}).rstrip("\n").split("\n")
            lines.append(f"  {first}".ljust(50) + f"  # {origin}")
            lines += [f"  {line}" for line in rest]
    return "\n".join(lines)


def render_help() -> str:
    """Every field by section: name, type, default, one line."""
    lines: list[str] = []
    for section, kind in SECTIONS.items():
        lines += ["", f"{section}: {kind.__doc__}"]
        for name, field in kind.model_fields.items():
            note = {"later": " [not available yet]", "moot": " [changes nothing here]"}.get(extras(field)["kind"], "")
            lines.append(
                f"  --{section}.{name}  ({describe_type(field.annotation)}; default {_short(default_of(field))})"
            )
            lines.append(f"      {field.description}{note}")
    return "\n".join(lines).lstrip("\n")


def json_schema() -> dict[str, Any]:
    """A JSON schema for editors; the markers of field kinds are left out, `base` is let in."""
    schema = Config.model_json_schema()
    for definition in schema["$defs"].values():
        for prop in definition.get("properties", {}).values():
            for marker in ("kind", "reason", "accept", "differs"):
                prop.pop(marker, None)
    schema["properties"]["base"] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    schema.pop("required", None)
    return schema


def reference_page() -> str:
    """docs/configuration.md."""
    out = [
        "# Configuration reference",
        "",
        "Generated from the schema by `python -m llmtrain.config.reference`; a test fails when it is stale.",
        "",
        "A field is **live**; **later**: known, and refused with a clear line when set to another value than its default; or",
        "**moot**: accepted, and said to change nothing. Kernel switches take true, false or auto and default to auto, where",
        "the reference trainer has false. `base:` at the top of a file names files to start from. On the command line write",
        "`--section.field value`.",
    ]
    for section, kind in SECTIONS.items():
        out += [
            "",
            f"## {section}",
            "",
            f"{kind.__doc__}",
            "",
            "| field | type | default | kind | meaning |",
            "|---|---|---|---|---|",
        ]
        for name, field in kind.model_fields.items():
            extra = extras(field)
            meaning = str(field.description)
            if extra["reason"]:
                meaning += f". *{extra['reason']}*"
            if extra["differs"]:
                meaning += f". Differs from the reference trainer: {extra['differs']}"
            cells = [
                f"`{name}`",
                describe_type(field.annotation),
                f"`{_short(default_of(field))}`",
                extra["kind"],
                meaning,
            ]
            out.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(out) + "\n"


def _short(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip().removesuffix("...").strip()
    return repr(value) if isinstance(value, float) else text


def write_reference(folder: Path) -> None:
    """Writes both generated files."""
    (folder / "configuration.md").write_text(reference_page(), encoding="utf-8")
    (folder / "config.schema.json").write_text(json.dumps(json_schema(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_reference(Path(__file__).parents[2] / "docs")
