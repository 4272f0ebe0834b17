"""How devices and processes share the work: meshes, placing of arrays, compiling, agreement of processes."""
