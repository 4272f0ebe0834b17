"""Flax modules of the models, and the functions under them.

Imports JAX, Flax, NumPy and `errors`; no trainer, no file.
"""
