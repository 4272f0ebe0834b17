"""Sparse features of activations: activation streams, dictionaries, spliced passes, and pages of top examples."""
