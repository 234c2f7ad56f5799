"""Saving and finding whole checkpoints, and exporting a Hugging Face folder."""
