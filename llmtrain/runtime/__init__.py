"""What the machine is: device, process group, meshes, seeds. Knows no model and no data."""
