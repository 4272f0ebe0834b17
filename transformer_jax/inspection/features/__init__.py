"""Sparse features of activations: streamed, learned, spliced back into the pass, shown by their best examples."""
