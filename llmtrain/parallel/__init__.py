"""How a model is laid over ranks: sharding plans, recomputation, and gradients over meshes."""
