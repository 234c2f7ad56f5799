"""The typed config: sections of fields, read from YAML files and the command line."""

from llmtrain.config.data import DataConfig
from llmtrain.config.loading import Resolved, load_config
from llmtrain.config.model import ModelConfig
from llmtrain.config.parallel import ParallelConfig
from llmtrain.config.problems import ConfigError, Problem
from llmtrain.config.reference import json_schema, reference_page, render_config, render_help, write_reference
from llmtrain.config.schema import Config, field_kinds
from llmtrain.config.training import TrainingConfig

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "ParallelConfig",
    "Problem",
    "Resolved",
    "TrainingConfig",
    "field_kinds",
    "json_schema",
    "load_config",
    "reference_page",
    "render_config",
    "render_help",
    "write_reference",
]
