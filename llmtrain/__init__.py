"""llmtrain: trains large language models with PyTorch FSDP2, driven by one YAML file."""

__version__ = "0.1.0"
