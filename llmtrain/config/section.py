"""The base of every section: strict, frozen, with the readings of text that users expect, and three kinds of fields."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

Kind = Literal["live", "later", "moot"]
KIND_NOTES: dict[Kind, str | None] = {"live": None, "later": "not available yet", "moot": "changes nothing here"}

_TRUE = {"true", "yes", "on", "1", "y", "t"}
_FALSE = {"false", "no", "off", "0", "n", "f"}


@dataclass(frozen=True)
class Traits:
    """What a field is, beside its type; see `setting`."""

    kind: Kind
    reason: str | None
    accept: tuple[Any, ...]
    moot_in_pt: str | None
    differs: str | None
    required: str | None
    secret: bool

    def __call__(self, schema: JsonDict) -> None:
        """Pydantic's hook into the JSON schema: an editor shows that a field has no effect."""
        note = KIND_NOTES[self.kind]
        if note is not None:
            schema["description"] = f"{schema['description']} ({note})"
        if self.required:
            schema.pop("default", None)


def setting(
    default: Any,
    description: str,
    *,
    later: str | None = None,
    accept: tuple[Any, ...] = (),
    moot: str | None = None,
    moot_in_pt: str | None = None,
    differs: str | None = None,
    required: str | None = None,
    secret: bool = False,
    **limits: Any,
) -> Any:
    """Declares a field.

    Args:
        later: the field is known but refused when set to anything but its default or a value of `accept`; says what
            is missing.
        moot: the field is accepted and changes nothing here; says why. The user is told when it is set.
        moot_in_pt: in stage pt the field changes nothing; says why. A `later` field is then accepted in that stage.
        differs: why the default is not the reference trainer's.
        required: the field has no default; says what to give.
        secret: never written out.
        limits: pydantic's bounds (ge, gt, le, lt).
    """
    kind: Kind = "later" if later else "moot" if moot else "live"
    traits = Traits(kind, later or moot, accept, moot_in_pt, differs, required, secret)
    options = {"description": description, "json_schema_extra": traits, "repr": not secret, **limits}
    if isinstance(default, list | dict):
        return Field(default_factory=default.copy, **options)
    return Field(default, **options)


def traits_of(field: FieldInfo) -> Traits:
    assert isinstance(field.json_schema_extra, Traits)
    return field.json_schema_extra


def default_of(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


@dataclass(frozen=True)
class Rule:
    """A broken rule: the fields that it binds, and what to say after the first one's name."""

    fields: tuple[str, ...]
    message: str


class Section(BaseModel):
    """One section of the config. Unknown keys are errors; a validated section cannot be changed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        return read_value(value, cls.model_fields[str(info.field_name)].annotation)

    def missing(self) -> Iterator[Rule]:
        """Required fields that were not given."""
        for name, field in type(self).model_fields.items():
            required = traits_of(field).required
            if required is not None and getattr(self, name) is None:
                yield Rule((name,), f"is missing; {required}")

    def rules(self) -> Iterator[Rule]:
        """Rules between fields of this section that are broken."""
        return iter(())

    def changed(self) -> Iterator[tuple[str, Any, Traits]]:
        """Name, value and traits of the fields that differ from their default."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if not same(value, default_of(field)):
                yield name, value, traits_of(field)


def same(a: Any, b: Any) -> bool:
    """Equality that does not take True for 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union type, or the type itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def read_value(value: Any, annotation: Any) -> Any:
    """The value of the field's type that a person means; what has no such reading is left for the type check.

    Raises:
        ValueError: a bool where a number belongs, which pydantic would take for 1 or 0.
    """
    members = union_members(annotation)
    types_taken = {get_origin(member) or member for member in members}
    if isinstance(value, str) and value == "None" and type(None) in types_taken:
        return None
    if value is None and type(None) not in types_taken:
        return {} if dict in types_taken else [] if list in types_taken else None
    if bool in types_taken:
        text = str(value).lower()
        return text in _TRUE if text in _TRUE | _FALSE else value
    if list in types_taken and str not in types_taken and isinstance(value, str | int | float):
        value = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else [value]
    item_types = {arg for member in members if get_origin(member) is list for arg in get_args(member)}
    numeric = {int, float} & (item_types if isinstance(value, list) else types_taken)
    if numeric and any(isinstance(item, bool) for item in (value if isinstance(value, list) else [value])):
        raise ValueError("a switch is no number")
    return _whole_number(value) if int in types_taken and isinstance(value, str) else value


def _whole_number(text: str) -> int | str:
    """Reads `1e3` as 1000."""
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() and abs(number) < 2**53 else text
