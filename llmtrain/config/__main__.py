"""`python -m llmtrain.config` writes docs/configuration.md and docs/config.schema.json."""

from pathlib import Path

from llmtrain.config.reference import write_reference

if __name__ == "__main__":
    write_reference(Path(__file__).parents[2] / "docs")
