"""Models that were trained: open a run, export it, and what `--pretrained` may name.

Imports `training`, `weights` and the wings below them; a task only when it opens a run of it.
"""
