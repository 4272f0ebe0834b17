"""Which query may see which key: arrays, and symbolic masks that need none."""
