"""Masks, which say which query may see which key: arrays, and symbolic masks that do not need an array."""
