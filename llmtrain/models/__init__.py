"""From a config to a model with weights: skeleton on meta, then (sharded elsewhere) initialised or loaded."""
