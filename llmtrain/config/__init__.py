"""The typed config: five sections (and `inference`), read from YAML and the command line."""

from llmtrain.config.data import DataConfig
from llmtrain.config.loading import Resolved, load_config
from llmtrain.config.model import ModelConfig
from llmtrain.config.parallel import ParallelConfig
from llmtrain.config.problems import ConfigError
from llmtrain.config.reference import json_schema, render_config, render_help
from llmtrain.config.schema import Config, field_kinds
from llmtrain.config.training import TrainingConfig

__all__ = [
    "Config",
    "ConfigError",
    "DataConfig",
    "ModelConfig",
    "ParallelConfig",
    "Resolved",
    "TrainingConfig",
    "field_kinds",
    "json_schema",
    "load_config",
    "render_config",
    "render_help",
]
