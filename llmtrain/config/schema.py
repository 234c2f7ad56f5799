"""The whole config: its sections, the rules between them, and the forms that it is written in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from llmtrain.config.data import DataConfig
from llmtrain.config.model import ModelConfig
from llmtrain.config.optimization import InferenceConfig, OptimizationConfig
from llmtrain.config.parallel import ParallelConfig
from llmtrain.config.section import Kind, Rule, Section, Traits, default_of, same, traits_of
from llmtrain.config.training import TrainingConfig
from llmtrain.config.yaml_values import shown, to_yaml

SECTIONS: dict[str, type[Section]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "parallel": ParallelConfig,
    "training": TrainingConfig,
    "optimization": OptimizationConfig,
    "inference": InferenceConfig,
}
FIELDS: dict[str, FieldInfo] = {
    f"{name}.{field}": info for name, kind in SECTIONS.items() for field, info in kind.model_fields.items()
}


class Config(BaseModel):
    """A frozen config. Made by `from_dict` or `load_config`, which check the rules between its fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: ModelConfig
    data: DataConfig
    parallel: ParallelConfig
    training: TrainingConfig
    optimization: OptimizationConfig
    inference: InferenceConfig

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """Validates a plain nested dict.

        Raises:
            ConfigError: all problems at once.
        """
        from llmtrain.config.validation import validate

        return validate(values, {})

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values, every field; a secret is null."""
        values = self.model_dump(mode="json")
        for path in (path for path, field in FIELDS.items() if traits_of(field).secret):
            section, _, name = path.partition(".")
            values[section][name] = None
        return values

    def to_yaml(self) -> str:
        """The resolved config; loading it gives an equal one (but for secrets)."""
        return to_yaml(self.to_dict()) + "\n"

    def broken_rules(self) -> Iterator[Rule]:
        """All rules that are broken, with dotted fields."""
        for name in SECTIONS:
            section: Section = getattr(self, name)
            for rule in (*section.missing(), *section.rules()):
                yield Rule(tuple(f"{name}.{field}" for field in rule.fields), rule.message)
        yield from self._unavailable()
        yield from self._rules_between_sections()

    def _unavailable(self) -> Iterator[Rule]:
        for path, value, traits in self._changed():
            if traits.kind != "later" or (traits.moot_in_pt and self.training.stage == "pt"):
                continue
            if not any(same(value, other) for other in traits.accept):
                accepted = " or ".join(
                    to_yaml(other, flow=True) for other in (default_of(FIELDS[path]), *traits.accept)
                )
                message = f"is {shown_unless_secret(path, value)}, but only {accepted} can be used: {traits.reason}"
                yield Rule((path, "training.stage") if traits.moot_in_pt else (path,), message)

    def _rules_between_sections(self) -> Iterator[Rule]:
        if self.data.data_manager_type == "mg" and self.training.stage != "pt":
            yield Rule(
                ("data.data_manager_type", "training.stage"),
                "is mg, which orders texts; only stage pt can be used with it",
            )
        if self.data.streaming and self.training.max_steps < 0:
            yield Rule(
                ("data.streaming", "training.max_steps"),
                "needs training.max_steps: how long a stream is shows when it has been read",
            )
        if self.training.eval_steps and not self.data.holds_out:
            yield Rule(
                ("training.eval_steps", "data.eval_dataset", "data.val_size"),
                "needs held-out data: give data.val_size or data.eval_dataset",
            )

    def notices(self) -> Iterator[str]:
        """A line for each setting that was made and changes nothing, or has a price that does not show."""
        for path, _, traits in self._changed():
            reason = traits.reason if traits.kind == "moot" else None
            if self.training.stage == "pt":
                reason = reason or traits.moot_in_pt
            if reason is not None:
                yield f"{path} changes nothing here: {reason}"
        if self.training.master_dtype != "fp32":
            yield (
                f"training.master_dtype {self.training.master_dtype} rounds small updates away: "
                f"a weight of 1 does not move by less than 1/256"
            )

    def _changed(self) -> Iterator[tuple[str, Any, Traits]]:
        for name in SECTIONS:
            for field, value, traits in getattr(self, name).changed():
                yield f"{name}.{field}", value, traits


def shown_unless_secret(path: str, value: Any) -> str:
    """The value of a field in a message."""
    return "(not shown)" if path in FIELDS and traits_of(FIELDS[path]).secret else shown(value)


def field_kinds() -> dict[str, Kind]:
    """Dotted name -> live, later or moot, for every field."""
    return {path: traits_of(field).kind for path, field in FIELDS.items()}
