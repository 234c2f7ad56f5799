"""The whole config: its sections, and the forms it is read from and written to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from llmtrain.config.data import DataConfig
from llmtrain.config.model import ModelConfig
from llmtrain.config.optimization import InferenceConfig, OptimizationConfig
from llmtrain.config.parallel import ParallelConfig
from llmtrain.config.section import Kind, Rule, Section, extras
from llmtrain.config.training import TrainingConfig


class Config(BaseModel):
    """A validated, frozen config."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: ModelConfig
    data: DataConfig
    parallel: ParallelConfig = Field(default_factory=ParallelConfig)
    training: TrainingConfig
    optimization: OptimizationConfig = Field(default_factory=OptimizationConfig)
    inference: InferenceConfig = Field(default_factory=InferenceConfig)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """Validates a plain nested dict.

        Raises:
            ConfigError: all problems at once.
        """
        from llmtrain.config.loading import validate

        return validate(values, {})

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved config; loading it gives an equal one."""
        return to_yaml(self.to_dict())

    def rules(self) -> Iterator[Rule]:
        """Rules between sections that are broken; fields are dotted here."""
        if self.training.stage == "sft" and self.data.template is not None:
            yield Rule(
                ("data.template",),
                "named templates are not available in this version; leave it out to use the tokenizer's own chat template",
            )
        if self.training.save_only_model and self.training.resume_from_checkpoint is not None:
            yield Rule(
                ("training.save_only_model", "training.resume_from_checkpoint"),
                "checkpoints without optimizer state cannot be resumed; drop one of the two",
            )
        if self.model.train_from_scratch and self.training.lr == 0:
            yield Rule(("training.lr",), "is 0 for a model from scratch: nothing would be learnt")

    def moot_settings(self) -> Iterator[tuple[str, str]]:
        """Settings that were made and change nothing here, with the reason."""
        for section_name, section in sections(self):
            for name in sorted(section.model_fields_set):
                extra = extras(type(section).model_fields[name])
                value = getattr(section, name)
                if extra["kind"] == "moot" and value != type(section).model_fields[name].get_default(
                    call_default_factory=True
                ):
                    yield f"{section_name}.{name}", str(extra["reason"])
        if self.training.stage == "pt" and self.data.template is not None:
            yield "data.template", "pretraining uses no template"


SECTIONS: dict[str, type[Section]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "parallel": ParallelConfig,
    "training": TrainingConfig,
    "optimization": OptimizationConfig,
    "inference": InferenceConfig,
}


def sections(config: Config) -> Iterator[tuple[str, Section]]:
    for name in SECTIONS:
        yield name, getattr(config, name)


def field_kinds() -> dict[str, Kind]:
    """Dotted name -> live, later or moot, for every field of the schema."""
    return {
        f"{section}.{name}": extras(field)["kind"]
        for section, kind in SECTIONS.items()
        for name, field in kind.model_fields.items()
    }


class _Dumper(yaml.SafeDumper):
    """Floats so that every YAML reader takes them for numbers: 1.0e-05, never 1e-05, which YAML 1.1 reads as text."""


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _represent_float)


def to_yaml(values: Any) -> str:
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
