"""Decoding from left to right over a step function: greedy, sampling, beam search.

Imports JAX and `errors`; no model.
"""
