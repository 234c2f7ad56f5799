"""The base of every section: strict, frozen, with the readings of text that users expect, and three kinds of fields."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

Kind = Literal["live", "later", "moot"]

_TRUE = {"true", "yes", "on", "1", "y", "t"}
_FALSE = {"false", "no", "off", "0", "n", "f"}


def setting(
    default: Any,
    description: str,
    *,
    later: str | None = None,
    accept: tuple[Any, ...] = (),
    moot: str | None = None,
    differs: str | None = None,
    **limits: Any,
) -> Any:
    """Declares a field.

    Args:
        later: the field is known but refused when set to anything but its default or a value of `accept`; says what
            is missing.
        moot: the field is accepted and changes nothing here; says why. The user is told when it is set.
        differs: why the default is not the reference trainer's.
        limits: pydantic's bounds (ge, gt, le, lt, ...).
    """
    kind: Kind = "later" if later else "moot" if moot else "live"
    extra = {"kind": kind, "reason": later or moot, "accept": list(accept), "differs": differs}
    if isinstance(default, list | dict):
        return Field(
            default_factory=lambda: type(default)(default), description=description, json_schema_extra=extra, **limits
        )
    return Field(default, description=description, json_schema_extra=extra, **limits)


def extras(field: FieldInfo) -> dict[str, Any]:
    """The kind, reason, accepted values and note of a field."""
    assert isinstance(field.json_schema_extra, dict)
    return dict(field.json_schema_extra)


def default_of(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


class Section(BaseModel):
    """One section of the config. Unknown keys are errors; a validated section cannot be changed."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=False,
        allow_inf_nan=False,
        coerce_numbers_to_str=True,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _read_like_a_person(cls, values: Any) -> Any:
        """Text forms that mean a value of the field's type; anything else is left for the type check to refuse."""
        if not isinstance(values, dict):
            return values
        return {
            k: _coerce(v, cls.model_fields[k].annotation) if k in cls.model_fields else v for k, v in values.items()
        }

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        broken = [*self._refused(), *self.rules()]
        if broken:
            raise RulesBroken(broken)
        return self

    def rules(self) -> Iterator[Rule]:
        """Rules between fields of this section that are broken."""
        return iter(())

    def _refused(self) -> Iterator[Rule]:
        for name in sorted(self.model_fields_set):
            field = type(self).model_fields[name]
            extra, value = extras(field), getattr(self, name)
            allowed = [default_of(field), *extra["accept"]]
            if extra["kind"] == "later" and not any(_same(value, other) for other in allowed):
                yield Rule((name,), str(extra["reason"]))


@dataclass(frozen=True)
class Rule:
    """A broken rule: the fields it binds (the first gives the place), and what to say."""

    fields: tuple[str, ...]
    message: str


class RulesBroken(ValueError):
    """All broken rules of one section."""

    def __init__(self, rules: list[Rule]) -> None:
        super().__init__("; ".join(rule.message for rule in rules))
        self.rules = rules


def _same(a: Any, b: Any) -> bool:
    """Equality that does not take True for 1."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def union_members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union type, or the type itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _coerce(value: Any, annotation: Any) -> Any:
    members = union_members(annotation)
    bare = {m for m in members if isinstance(m, type)}
    if value == "None" and type(None) in bare:
        return None
    if isinstance(value, bool):
        # pydantic takes true for the number 1; a switch where a number belongs is a slip.
        if bool not in bare and bare & {int, float}:
            return f"{str(value).lower()} (a switch)"
        return value
    if bool in bare:
        text = str(value).lower()
        if text in _TRUE | _FALSE and not (isinstance(value, int | float) and bare & {int, float}):
            return text in _TRUE
    if isinstance(value, str) and any(get_origin(m) is list for m in members) and str not in bare:
        parts = [part.strip() for part in value.split(",") if part.strip()]
        item = next(get_args(m)[0] for m in members if get_origin(m) is list)
        return [int(p) if item is int and p.lstrip("-").isdigit() else p for p in parts]
    return value
