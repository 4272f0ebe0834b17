"""Lenses: what each layer's residual stream says, read after a map into the last one."""
