"""Flax modules of the models, and the functions that they are made of.

Imports JAX, Flax, NumPy and `errors`; no trainer, no file.
"""
