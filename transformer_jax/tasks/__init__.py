"""The tasks: their settings, their data, their trainers. One file or one folder each.

Imports every other wing; nothing but `experiments/` and `benchmarks/` imports it.
"""
