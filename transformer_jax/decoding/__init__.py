"""Decoding from left to right with a step function: greedy, sampling, beam search.

Imports JAX and `errors`; no model.
"""
