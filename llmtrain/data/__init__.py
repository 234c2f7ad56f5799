"""From files to micro-batches: sources, tokens, targets, and a loader whose position can be saved. Knows no model."""
