"""Work on several devices and processes: meshes, sharding, compilation, agreement of processes."""
