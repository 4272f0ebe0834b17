"""Attention as a function of queries, keys and values, and the ways in which it is computed."""
